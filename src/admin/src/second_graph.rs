//! The second graph of a preview: a copy of the live one. It shares what it does not change with it.

mod memory;

use std::sync::Arc;
use std::time::Duration;

use sluice_engine::{CopyError, Engine, InputsSnapshot, Origin, Snapshot};
use sluice_graph::{GraphOptions, Handles, Inputs, start_copy};
use sluice_model::ParsedObject;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use memory::TooLittleMemory;

/// How long a preview waits for its turn.
const MAX_TURN_WAIT: Duration = Duration::from_secs(2);
/// Priority of the dataflow thread, as of `nice`: the live dataflow and the streams go first.
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
    /// There is no copy.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// The turns of previews: there is one second graph at a time.
#[derive(Clone)]
pub struct PreviewTurns(Arc<Semaphore>);

impl Default for PreviewTurns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// The turn of a preview.
pub(crate) struct PreviewTurn {
    _permit: OwnedSemaphorePermit,
}

impl PreviewTurns {
    /// Fails if another preview takes long.
    pub(crate) async fn next(&self) -> Result<PreviewTurn, SecondGraphError> {
        match tokio::time::timeout(MAX_TURN_WAIT, self.0.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(PreviewTurn { _permit: permit }),
            _ => Err(SecondGraphError::Busy),
        }
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
    /// Released once the memory of the engine is.
    _turn: PreviewTurn,
}

impl SecondGraph {
    /// Copies the live graph. Fails if a copy might not fit into memory.
    pub(crate) fn copy_of(live: &Engine, options: &GraphOptions, turn: PreviewTurn) -> Result<Self, SecondGraphError> {
        memory::check()?;
        let (engine, handles) = start_copy(live, options, || sluice_tasks::lower_thread_priority(NICE))?;
        engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
        Ok(Self { engine, handles, _turn: turn })
    }

    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    pub(crate) fn inputs(&self) -> &Inputs {
        &self.handles.inputs
    }

    /// Applies objects; one without a value and without findings is deleted.
    pub(crate) fn apply(&self, objects: Vec<ParsedObject>) {
        self.engine.transaction(|tx| {
            objects.into_iter().for_each(|parsed| self.handles.inputs.apply(tx, parsed, Origin::default()));
        });
    }

    /// The current state.
    pub(crate) fn state(&self) -> Result<GraphState, SecondGraphError> {
        let inputs = self.engine.inputs().ok_or(SecondGraphError::Stopped)?;
        Ok(GraphState { inputs, outputs: self.engine.snapshot() })
    }
}
