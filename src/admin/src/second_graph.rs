//! The second graph of previews: it has the inputs of the live graph, and is kept for a while after a preview.

mod memory;

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
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
pub struct PreviewGraph(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Held by the preview in progress.
    turn: Mutex<()>,
    /// Held while the graph is used, prepared or dropped.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    graph: Option<SecondGraph>,
    used: Option<Instant>,
}

/// The exclusive use of the second graph.
pub(crate) struct PreviewGuard<'a> {
    kept: MutexGuard<'a, Kept>,
    _turn: MutexGuard<'a, ()>,
}

impl PreviewGraph {
    /// Fails during another preview. Waits while the graph is prepared or dropped.
    pub(crate) fn lock(&self) -> Result<PreviewGuard<'_>, SecondGraphError> {
        let turn = match self.0.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::WouldBlock) => return Err(SecondGraphError::Busy),
            // It protects nothing that a panic could have left behind.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        Ok(PreviewGuard { kept: self.kept(), _turn: turn })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(|poisoned| {
            // A preview has panicked: its graph is not used again.
            let mut kept = poisoned.into_inner();
            kept.graph = None;
            self.0.kept.clear_poison();
            kept
        })
    }

    /// Copies the current inputs of the live graph, after a preview in progress.
    pub(crate) fn prepare(&self, live: &Engine, options: &GraphOptions) -> Result<(), SecondGraphError> {
        self.kept().prepare(live, options).map(|_| ())
    }

    /// Drops the graph when no preview has used it for a while. To be called after each preview.
    pub(crate) async fn drop_unused(self) {
        tokio::time::sleep(KEEP_TIME).await;
        let release = move || {
            let mut kept = self.kept();
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
        let (graph, inputs, copied) = self.kept.prepare(live, options)?;
        graph.engine.flush();
        Ok((graph, inputs, copied))
    }
}

impl Kept {
    /// As [`PreviewGuard::current`], without waiting until the graph has processed the inputs.
    fn prepare(
        &mut self,
        live: &Engine,
        options: &GraphOptions,
    ) -> Result<(&SecondGraph, InputsSnapshot, usize), SecondGraphError> {
        self.used = Some(Instant::now());
        let inputs = live.inputs().ok_or(SecondGraphError::Stopped)?;
        if self.graph.is_none() {
            memory::check()?;
            self.graph = Some(SecondGraph::start(options));
        }
        let Some(graph) = &self.graph else { return Err(SecondGraphError::Stopped) };
        let copied = graph.copy(&inputs)?;
        Ok((graph, inputs, copied))
    }
}

impl Drop for PreviewGuard<'_> {
    fn drop(&mut self) {
        self.kept.used = Some(Instant::now());
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
