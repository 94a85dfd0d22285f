//! Recordings: the inputs of the graph, their changes and their times in one file. A recording is a bug report: its replay has the
//! same outputs as the control plane had.
//!
//! A recording is gzip of lines, each a JSON object. The first is the [`Header`]. Each other one is a [`Line`]: a write of a record, or the
//! end of a step, with the time since the beginning. The first step has all records, each later one the writes until its end. Records
//! are in the form of the debug pages: private keys and passwords of Secrets are not in it. A hash with a key of the recording stands for
//! them, so that equal ones are equal and a change is seen.

mod fingerprint;
mod format;
mod outcome;
mod reader;
mod recorder;
mod replay;
mod served;
mod speed;

pub use format::{FORMAT_VERSION, Header, Line, RecordedWrite, StepEnd};
pub use outcome::{DifferentResource, Outcome, OutcomeResource, differences};
pub use reader::{ReadError, RecordedStep, RecordingReader};
pub use recorder::{RecordError, Recorder};
pub use replay::{Replay, ReplayError, ReplayedStep};
pub use served::{RecordingFileError, RecordingLength, ServedRecording, ServedReplay};
pub use speed::{InvalidSpeed, ReplaySpeed};
