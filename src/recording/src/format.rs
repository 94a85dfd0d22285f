//! The lines of a recording.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluice_graph::GraphOptions;

/// Version of the format. A reader reads this one only.
pub const FORMAT_VERSION: u32 = 1;

/// The first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// [`FORMAT_VERSION`] of the writer.
    pub sluice_recording: u32,
    /// Version of the control plane.
    pub version: String,
    /// When it begins, in seconds since the Unix epoch.
    pub started: f64,
    /// Settings of the graph.
    pub options: GraphOptions,
}

/// Each other line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// A write of a record.
    Write(RecordedWrite),
    /// All writes before it, since the last one, are one step.
    End(StepEnd),
}

/// A write of a record of an input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordedWrite {
    /// Name of the input.
    pub input: String,
    /// The key of the record.
    pub key: Value,
    /// Its value. Some records have no content, so `null` does not mean that it is deleted.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
    /// Whether it is deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// Its resourceVersion, or `FILE:LINE`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Its generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

/// The end of a step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StepEnd {
    /// Seconds since the beginning of the recording.
    pub at: f64,
    /// The last epoch of the control plane in the step.
    pub epoch: u64,
}
