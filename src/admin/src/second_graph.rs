//! The second graph of previews: it has the inputs of the live graph, and is kept for a while after a preview.

mod memory;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use sluice_engine::{Engine, InputsSnapshot, Origin, Snapshot};
use sluice_graph::{GraphOptions, Handles, Inputs, start_without_history};
use sluice_model::ParsedObject;

use memory::TooLittleMemory;

/// How long the second graph is kept after a preview, so that the next one copies only what has changed.
const KEEP_TIME: Duration = Duration::from_secs(60);
/// Priority of its dataflow thread, as of `nice`: the live dataflow and the streams go first.
const NICE: i32 = 15;

/// The reason why there is no second graph.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum SecondGraphError {
    /// One preview at a time.
    #[error("another preview is being computed; try again in a second")]
    Busy,
    /// It would not fit.
    #[error(transparent)]
    Memory(#[from] TooLittleMemory),
    /// The dataflow thread has ended.
    #[error("the dataflow has stopped")]
    Stopped,
}

/// The second graph, if there is one now. Clones are handles to the same one.
#[derive(Clone, Default)]
pub struct PreviewGraph {
    kept: Arc<Mutex<Kept>>,
    /// The graph is being prepared for a preview that is likely to follow.
    is_preparing: Arc<AtomicBool>,
}

#[derive(Default)]
struct Kept {
    graph: Option<SecondGraph>,
    used: Option<Instant>,
}

/// The exclusive use of the second graph.
pub(crate) struct PreviewGuard<'a>(MutexGuard<'a, Kept>);

impl PreviewGraph {
    /// Fails while another preview uses the graph. Waits while it is prepared.
    pub(crate) fn lock(&self) -> Result<PreviewGuard<'_>, SecondGraphError> {
        match self.kept.try_lock() {
            Ok(kept) => Ok(PreviewGuard(kept)),
            Err(TryLockError::WouldBlock) if self.is_preparing.load(Ordering::Acquire) => {
                Ok(self.kept.lock().map_or_else(|poisoned| self.without_graph(poisoned.into_inner()), PreviewGuard))
            }
            Err(TryLockError::WouldBlock) => Err(SecondGraphError::Busy),
            Err(TryLockError::Poisoned(poisoned)) => Ok(self.without_graph(poisoned.into_inner())),
        }
    }

    /// A preview has panicked: its graph is not used again.
    fn without_graph<'a>(&'a self, mut kept: MutexGuard<'a, Kept>) -> PreviewGuard<'a> {
        kept.graph = None;
        self.kept.clear_poison();
        PreviewGuard(kept)
    }

    /// Copies the current inputs of the live graph, after a preview in progress.
    pub(crate) fn prepare(&self, live: &Engine, options: &GraphOptions) -> Result<(), SecondGraphError> {
        self.is_preparing.store(true, Ordering::Release);
        let prepared = self.lock().and_then(|mut guard| guard.prepare(live, options).map(|_| ()));
        self.is_preparing.store(false, Ordering::Release);
        prepared
    }

    /// Drops the graph when no preview has used it for a while. To be called after each preview.
    pub(crate) async fn drop_unused(self) {
        tokio::time::sleep(KEEP_TIME).await;
        let release = move || {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.used.is_none_or(|used| used.elapsed() >= KEEP_TIME) {
                kept.graph = None;
            }
        };
        // Freeing the memory of a large mesh takes a while.
        let _ = tokio::task::spawn_blocking(release).await;
    }
}

impl PreviewGuard<'_> {
    /// The graph with the current inputs of the live one, these inputs, and the number of them that were copied.
    pub(crate) fn current(
        &mut self,
        live: &Engine,
        options: &GraphOptions,
    ) -> Result<(&SecondGraph, InputsSnapshot, usize), SecondGraphError> {
        let (graph, inputs, copied) = self.prepare(live, options)?;
        graph.engine.flush();
        Ok((graph, inputs, copied))
    }

    /// The same, without waiting until the graph has processed the inputs.
    fn prepare(
        &mut self,
        live: &Engine,
        options: &GraphOptions,
    ) -> Result<(&SecondGraph, InputsSnapshot, usize), SecondGraphError> {
        self.0.used = Some(Instant::now());
        let inputs = live.inputs().ok_or(SecondGraphError::Stopped)?;
        if self.0.graph.is_none() {
            memory::check()?;
            self.0.graph = Some(SecondGraph::start(options));
        }
        let Some(graph) = &self.0.graph else { return Err(SecondGraphError::Stopped) };
        let copied = graph.copy(&inputs)?;
        Ok((graph, inputs, copied))
    }
}

impl Drop for PreviewGuard<'_> {
    fn drop(&mut self) {
        self.0.used = Some(Instant::now());
    }
}

/// Inputs and outputs at one epoch.
pub(crate) struct GraphState {
    pub(crate) inputs: InputsSnapshot,
    pub(crate) outputs: Arc<Snapshot>,
}

/// A second engine of the same graph.
pub(crate) struct SecondGraph {
    engine: Engine,
    handles: Handles,
}

impl SecondGraph {
    fn start(options: &GraphOptions) -> Self {
        let (engine, handles) = start_without_history(options, || sluice_tasks::lower_thread_priority(NICE));
        engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
        Self { engine, handles }
    }

    /// Writes what differs from these inputs of the live graph, also what a preview has changed, and returns the number of writes.
    /// Does not wait until they are processed.
    pub(crate) fn copy(&self, live: &InputsSnapshot) -> Result<usize, SecondGraphError> {
        let own = self.engine.inputs().ok_or(SecondGraphError::Stopped)?;
        let writes = live.writes_since(&own);
        // The shared rows are released before they are written.
        drop(own);
        self.engine.submit(|tx| writes.iter().for_each(|write| tx.write_record(write)));
        Ok(writes.len())
    }

    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    pub(crate) fn inputs(&self) -> &Inputs {
        &self.handles.inputs
    }

    /// Applies objects; one without a value and without findings is deleted. Returns the states before and after.
    pub(crate) fn apply(&self, objects: Vec<ParsedObject>) -> Result<(GraphState, GraphState), SecondGraphError> {
        let before = self.state()?;
        self.engine.transaction(|tx| {
            objects.into_iter().for_each(|parsed| self.handles.inputs.apply(tx, parsed, Origin::default()));
        });
        Ok((before, self.state()?))
    }

    fn state(&self) -> Result<GraphState, SecondGraphError> {
        let inputs = self.engine.inputs().ok_or(SecondGraphError::Stopped)?;
        Ok(GraphState { inputs, outputs: self.engine.snapshot() })
    }
}
