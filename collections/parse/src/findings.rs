//! What is wrong with the object being parsed.

use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_model::{Kind, ObjectKey, Reject, Severity, Text};

/// Collects the rejects of one object.
#[derive(Debug)]
pub struct Findings {
    kind: Kind,
    object: ObjectKey,
    rejects: Vec<Reject>,
}

impl Findings {
    /// None yet, for this object.
    #[must_use]
    pub fn new(kind: Kind, object: ObjectKey) -> Self {
        Self { kind, object, rejects: Vec::new() }
    }

    /// The part at `path` does not apply.
    pub fn error(&mut self, path: impl Into<Text>, reason: impl Into<Text>) {
        self.push(path.into(), reason.into(), Severity::Error);
    }

    /// The part at `path` is ignored; all else applies.
    pub fn warning(&mut self, path: impl Into<Text>, reason: impl Into<Text>) {
        self.push(path.into(), reason.into(), Severity::Warning);
    }

    /// All of them, sorted.
    #[must_use]
    pub fn into_rejects(mut self) -> Vec<Reject> {
        self.rejects.sort();
        self.rejects.dedup();
        self.rejects
    }

    /// Reads a value, or records where and why it cannot be read. Fields the type does not name are skipped: for kinds of
    /// Kubernetes, of which few fields are used.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, value: &Value) -> Option<T> {
        match serde_path_to_error::deserialize(value) {
            Ok(read) => Some(read),
            Err(error) => {
                let path = error.path().to_string();
                self.error(if path == "." { "" } else { path.as_str() }, error.inner().to_string());
                None
            }
        }
    }

    fn push(&mut self, field_path: Text, reason: Text, severity: Severity) {
        self.rejects.push(Reject { kind: self.kind, object: self.object.clone(), field_path, reason, severity });
    }
}
