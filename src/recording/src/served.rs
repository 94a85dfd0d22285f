//! A recording that a server replays in place of its sources of objects.

use std::fs::File;
use std::io::{self, Seek};
use std::path::Path;

use sluice_engine::Engine;
use sluice_graph::{GraphOptions, Inputs};
use sluice_model::Kind;

use crate::format::{Header, RecordedWrite};
use crate::reader::{ReadError, RecordedStep, RecordingReader};
use crate::replay::{ReplayError, write_epoch};

/// Inputs that are those of the server, not of the recording:
///
/// - `connected_proxies` and `secret_clients`: the proxies that are connected to the server.
/// - `trust_bundle`: the roots that the authority of the server collects.
/// - `secret_reviews`: which service accounts may read Secrets. Without it, no Secret is served: a recording does not have their content.
const OWN_INPUTS: [&str; 4] = ["connected_proxies", "secret_clients", "trust_bundle", "secret_reviews"];

/// Field of a Secret: [`docker_config`](sluice_model::Secret::docker_config). Extensions are sent with it, whatever a review says.
const PULL_CREDENTIALS: &str = "docker_config";

/// The reason why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecordingFileError {
    /// It cannot be opened.
    #[error("the file cannot be opened: {0}")]
    Open(io::Error),
    /// It is no recording of this format.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record is of another version.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// It has no end.
    #[error("the recording is truncated: {steps} complete steps, and no end")]
    Truncated {
        /// Number of complete steps.
        steps: usize,
    },
}

/// An open recording, of which only the header is read.
pub struct ServedRecording {
    file: File,
    header: Header,
}

/// A recording whose first step is written.
pub struct ServedReplay {
    steps: RecordingReader<File>,
    engine: Engine,
    inputs: Inputs,
    /// End of the first step, in seconds since the beginning of the recording.
    begin: f64,
    length: RecordingLength,
}

/// The length of a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordingLength {
    /// Number of steps with changes after the first one, which is the state at the beginning.
    pub changes: usize,
    /// Time between the first and the last step, in seconds.
    pub seconds: f64,
}

impl ServedRecording {
    /// Opens a file and reads the header.
    ///
    /// # Errors
    /// The file is no recording of this format.
    pub fn open(path: &Path) -> Result<Self, RecordingFileError> {
        let file = File::open(path).map_err(RecordingFileError::Open)?;
        let header = RecordingReader::open(&file)?.header().clone();
        Ok(Self { file, header })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Settings of the graph of a server that replays it: those of the recorded graph, except that each access to Secrets waits for
    /// a review, which no API server does.
    #[must_use]
    pub fn graph_options(&self) -> GraphOptions {
        GraphOptions { reviews_secrets: true, ..self.header.options.clone() }
    }

    /// Checks the whole file, then writes its first step and waits for the epoch.
    ///
    /// # Errors
    /// The file is truncated, or a record is of another version. Nothing is written then.
    pub fn begin(self, engine: &Engine, inputs: &Inputs) -> Result<ServedReplay, RecordingFileError> {
        let (begin, length) = self.check(inputs)?;
        let mut steps = RecordingReader::open(rewound(self.file)?)?;
        let first = steps.next_step()?.ok_or(RecordingFileError::Truncated { steps: 0 })?;
        write_epoch(engine, inputs, replayed(first.writes))?;
        Ok(ServedReplay { steps, engine: engine.clone(), inputs: inputs.clone(), begin, length })
    }

    /// Reads the whole file. Returns the end of the first step, and the length.
    fn check(&self, inputs: &Inputs) -> Result<(f64, RecordingLength), RecordingFileError> {
        let mut reader = RecordingReader::open(rewound(&self.file)?)?;
        let (mut begin, mut end, mut steps, mut changes) = (None, 0.0, 0, 0);
        while let Some(RecordedStep { writes, end: step }) = reader.next_step()? {
            let writes = replayed(writes);
            changes += usize::from(begin.is_some() && !writes.is_empty());
            for write in writes {
                inputs.check_json(write.into_record()).map_err(ReplayError::from)?;
            }
            begin.get_or_insert(step.at);
            (end, steps) = (step.at, steps + 1);
        }
        match begin {
            Some(begin) if !reader.is_cut() => Ok((begin, RecordingLength { changes, seconds: end - begin })),
            _ => Err(RecordingFileError::Truncated { steps }),
        }
    }
}

impl ServedReplay {
    /// The length of the recording.
    #[must_use]
    pub fn length(&self) -> RecordingLength {
        self.length
    }

    /// The next step; `None` at the end.
    ///
    /// # Errors
    /// The file has changed since it was checked.
    pub fn next_step(&mut self) -> Result<Option<RecordedStep>, RecordingFileError> {
        Ok(self.steps.next_step()?)
    }

    /// Seconds between the first step and this one.
    #[must_use]
    pub fn seconds_until(&self, step: &RecordedStep) -> f64 {
        step.end.at - self.begin
    }

    /// Writes a step, unless it changes nothing, and waits for the epoch. Returns the number of writes.
    ///
    /// # Errors
    /// As [`Self::next_step`].
    pub fn apply(&self, step: RecordedStep) -> Result<usize, RecordingFileError> {
        let writes = replayed(step.writes);
        let count = writes.len();
        if count > 0 {
            write_epoch(&self.engine, &self.inputs, writes)?;
        }
        Ok(count)
    }
}

/// The writes of inputs that are not those of the server. Secrets have no credentials to pull images: a hash is none.
fn replayed(mut writes: Vec<RecordedWrite>) -> Vec<RecordedWrite> {
    writes.retain(|write| !OWN_INPUTS.contains(&write.input.as_str()));
    for write in &mut writes {
        if Inputs::collection(Kind::Secret) == Some(write.input.as_str())
            && let Some(secret) = write.value.as_object_mut()
        {
            secret.remove(PULL_CREDENTIALS);
        }
    }
    writes
}

/// The file, at its beginning.
fn rewound<F: Seek>(mut file: F) -> Result<F, RecordingFileError> {
    file.rewind().map_err(RecordingFileError::Open)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use sluice_engine::Origin;
    use sluice_graph::{JsonRecord, JsonRecordError, start_without_history};

    use super::*;

    #[test]
    fn own_inputs_are_inputs_of_the_graph() {
        let (_engine, handles) = start_without_history(&GraphOptions::default(), || {});
        let check = |collection: &str| {
            let (collection, key) = (collection.to_owned(), Value::from("no key"));
            let record = JsonRecord { collection, key, value: None, origin: Origin::default() };
            handles.inputs.check_json(record)
        };
        for name in OWN_INPUTS {
            assert!(!matches!(check(name), Err(JsonRecordError::UnknownCollection(_))), "{name}");
        }
        assert!(matches!(check("other"), Err(JsonRecordError::UnknownCollection(_))));
    }
}
