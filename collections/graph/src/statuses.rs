//! Statuses of objects that the control plane has to write (G05).
//!
//! A status is derived as it has to be, and compared with the stored one. Times of transition are not known here: those of
//! conditions that keep their state are copied from the stored status, and the writer sets the others.

mod conditions;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sluice_model::{Kind, ObjectKey, StoredStatus, Text};

pub use conditions::ConditionUpdate;
pub(crate) use conditions::{StatusCondition, condition_list, merge, put};

/// An object with a status, by its kind.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
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

/// Why a condition is not met.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct StatusProblem {
    /// As one word.
    pub(crate) reason: &'static str,
    /// As a sentence.
    pub(crate) message: Text,
}

impl StatusProblem {
    /// A problem.
    pub(crate) fn new(reason: &'static str, message: impl Into<Text>) -> Self {
        Self { reason, message: message.into() }
    }

    /// The first of two problems, with the messages of both.
    pub(crate) fn joined(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        match (first, second) {
            (Some(first), Some(second)) => {
                Some(Self { message: format!("{}; {}", first.message, second.message).into(), ..first })
            }
            (first, second) => first.or(second),
        }
    }
}

/// A stored status as JSON, which a derivation changes to the wanted one.
pub(crate) struct StatusDraft<'a> {
    stored: &'a StoredStatus,
    present: Value,
    wanted: Map<String, Value>,
}

impl<'a> StatusDraft<'a> {
    /// The stored status.
    pub(crate) fn new(stored: &'a StoredStatus) -> Self {
        let present: Value = serde_json::from_str(&stored.json).unwrap_or_default();
        let wanted = present.as_object().cloned().unwrap_or_default();
        Self { stored, present, wanted }
    }

    /// The generation of the object, which conditions report.
    pub(crate) fn generation(&self) -> i64 {
        self.stored.generation
    }

    /// A field of the wanted status.
    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.wanted.get(field)
    }

    /// Sets a field, or removes it.
    pub(crate) fn set(&mut self, field: &str, value: Option<Value>) {
        match value {
            Some(value) => drop(self.wanted.insert(field.to_owned(), value)),
            None => drop(self.wanted.remove(field)),
        }
    }

    /// Sets conditions of the object.
    pub(crate) fn set_conditions(&mut self, conditions: &[StatusCondition]) {
        let merged = merge(self.wanted.get("conditions"), self.stored.generation, conditions);
        self.wanted.insert("conditions".to_owned(), merged);
    }

    /// As [`Self::set_conditions`], for a kind of Istio: its conditions have the generation as text, which is the JSON form of
    /// such numbers in protobuf.
    pub(crate) fn set_istio_conditions(&mut self, conditions: &[StatusCondition]) {
        let merged = merge(self.wanted.get("conditions"), self.stored.generation.to_string(), conditions);
        self.wanted.insert("conditions".to_owned(), merged);
    }

    /// Removes a condition of the object.
    pub(crate) fn remove_condition(&mut self, kind: &str) {
        if let Some(conditions) = self.wanted.get_mut("conditions").and_then(Value::as_array_mut) {
            conditions.retain(|condition| condition["type"] != kind);
        }
    }

    /// The update of the conditions of the object; `None` if the stored ones are the wanted ones.
    pub(crate) fn finish_conditions(self) -> Option<ConditionUpdate> {
        let present = self.present["conditions"].to_string();
        let wanted = self.wanted.get("conditions").and_then(Value::as_array).cloned();
        ConditionUpdate::new(&present.into(), wanted.unwrap_or_default())
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
