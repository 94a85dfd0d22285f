//! Statuses of objects that the control plane has to write (G05).
//!
//! A status is derived as it has to be, and compared with the stored one. Times of transition are not known here: those of
//! conditions that keep their state are copied from the stored status, and the writer sets the others.

mod conditions;
mod revision;

use serde::Serialize;
use serde_json::{Map, Value};
use sluice_model::{Kind, ObjectKey, StoredStatus, Text};

pub(crate) use conditions::Condition;
use conditions::merge;
pub(crate) use revision::is_of_revision;

/// An object whose status has to be written.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct StatusKey {
    /// Its kind.
    pub kind: Kind,
    /// The object.
    pub object: ObjectKey,
}

/// A status that differs from what it should be.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct StatusUpdate {
    /// The `apiVersion` in which the object was read.
    pub api_version: Text,
    /// The present status as JSON text; empty if there is none.
    pub is: Text,
    /// The wanted status as JSON text. Conditions that change have no `lastTransitionTime`.
    pub wanted: Text,
}

/// A stored status as JSON, which a derivation changes to the wanted one.
pub(crate) struct Draft<'a> {
    stored: &'a StoredStatus,
    present: Value,
    wanted: Map<String, Value>,
}

impl<'a> Draft<'a> {
    /// The stored status.
    pub(crate) fn new(stored: &'a StoredStatus) -> Self {
        let present: Value = serde_json::from_str(&stored.json).unwrap_or_default();
        let wanted = present.as_object().cloned().unwrap_or_default();
        Self { stored, present, wanted }
    }

    /// Sets conditions of the object.
    pub(crate) fn set_conditions(&mut self, conditions: &[Condition]) {
        let merged = merge(self.wanted.get("conditions"), self.stored.generation, conditions);
        self.wanted.insert("conditions".to_owned(), merged);
    }

    /// The update; `None` if the stored status is the wanted one.
    pub(crate) fn finish(self) -> Option<StatusUpdate> {
        let wanted = Value::Object(self.wanted);
        (wanted != self.present).then(|| StatusUpdate {
            api_version: self.stored.api_version.clone(),
            is: self.stored.json.clone(),
            wanted: wanted.to_string().into(),
        })
    }
}
