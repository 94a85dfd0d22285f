//! Replays a recording into a graph of this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_engine::{Engine, InputsSnapshot, Origin, Snapshot, Transaction};
use sluice_graph::{GraphOptions, Handles, Inputs, JsonRecord, JsonRecordError, start_without_history};

use crate::format::RecordedWrite;
use crate::outcome::Outcome;
use crate::reader::RecordedStep;

/// A record that this version cannot write.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The record has another form, because the recording is of another version.
    #[error("the recording does not fit this version: {0}")]
    Record(#[from] JsonRecordError),
}

impl RecordedWrite {
    /// The record for the inputs of the graph.
    pub(crate) fn into_record(self) -> JsonRecord {
        let origin = Origin { generation: self.generation, ..Origin::version(self.source) };
        let value = (!self.deleted).then_some(self.value);
        JsonRecord { collection: self.input, key: self.key, value, origin }
    }
}

/// Writes records as one epoch, and waits for it. All inputs are synced then.
///
/// # Errors
/// A record does not fit. Those before it are written.
pub(crate) fn write_epoch(engine: &Engine, inputs: &Inputs, writes: Vec<RecordedWrite>) -> Result<(), ReplayError> {
    let mut result = Ok(());
    engine.transaction(|tx: &mut Transaction| {
        result = writes.into_iter().try_for_each(|write| inputs.write_json(tx, write.into_record()));
        if result.is_ok() {
            inputs.mark_all_synced(tx);
        }
    });
    Ok(result?)
}

/// A graph with the records of the steps so far.
pub struct Replay {
    engine: Engine,
    handles: Handles,
    last: Arc<Snapshot>,
}

/// What a step changed.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedStep {
    /// Number of writes.
    pub writes: usize,
    /// Number of changed resources and segments.
    pub changed: usize,
    /// Time of the dataflow.
    pub took: Duration,
}

impl Replay {
    /// An empty graph with the settings of a recording.
    #[must_use]
    pub fn start(options: &GraphOptions) -> Self {
        let (engine, handles) = start_without_history(options, || {});
        let last = engine.snapshot();
        Self { engine, handles, last }
    }

    /// Writes the records of a step, as one epoch.
    ///
    /// # Errors
    /// A record does not fit. Those before it are written.
    pub fn apply(&mut self, step: RecordedStep) -> Result<ReplayedStep, ReplayError> {
        let writes = step.writes.len();
        let begin = Instant::now();
        write_epoch(&self.engine, &self.handles.inputs, step.writes)?;
        let took = begin.elapsed();
        let now = self.engine.snapshot();
        let resources = self.handles.resources.iter().map(|of| now.changes_since(&self.last, of).len());
        let segments = self.handles.segments.iter().map(|of| now.changes_since(&self.last, of).len());
        let changed = resources.chain(segments).sum();
        self.last = now;
        Ok(ReplayedStep { writes, changed, took })
    }

    /// The records now. `None` if the engine has stopped.
    #[must_use]
    pub fn inputs(&self) -> Option<InputsSnapshot> {
        self.engine.inputs()
    }

    /// The resources of all proxies now.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome::of(&self.last, &self.handles)
    }
}
