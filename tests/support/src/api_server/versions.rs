//! What becomes of an object that a client creates or replaces.

use serde_json::Value;

use super::store::{KindTraits, ObjectStore};

/// The part of an object that a request writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    Whole,
    Status,
    Approval,
}

impl Part {
    /// The end of the name of the resource.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Whole => "",
            Self::Status => "/status",
            Self::Approval => "/approval",
        }
    }
}

/// The stored form of an object that a client creates.
pub(super) fn created(mut object: Value, uid: &str, traits: KindTraits) -> Value {
    object["metadata"]["uid"] = uid.into();
    object["metadata"]["creationTimestamp"] = format!("{:.0}", jiff::Timestamp::now()).into();
    if traits.has_status {
        set(&mut object, "status", None);
    }
    if traits.has_generation {
        object["metadata"]["generation"] = 1.into();
    }
    object
}

/// Replaces a part of an object. Without a change, it keeps its version. `None` if the change is invalid.
pub(super) fn replace(
    store: &mut ObjectStore,
    old: Value,
    sent: Value,
    part: Part,
    traits: KindTraits,
) -> Option<Value> {
    let new = match part {
        Part::Whole => replaced(&old, sent, traits),
        Part::Status if traits.has_approval && approvals(&sent) != approvals(&old) => return None,
        Part::Status => {
            let mut new = old.clone();
            set(&mut new, "status", sent.get("status"));
            new
        }
        Part::Approval => {
            let mut new = old.clone();
            new["status"]["conditions"] = sent["status"]["conditions"].clone();
            new
        }
    };
    Some(if new == old { old } else { store.apply_and_get(new) })
}

fn replaced(old: &Value, sent: Value, traits: KindTraits) -> Value {
    let mut new = sent;
    for field in ["uid", "creationTimestamp", "generation", "resourceVersion"] {
        set(&mut new["metadata"], field, old["metadata"].get(field));
    }
    if traits.has_status {
        set(&mut new, "status", old.get("status"));
    }
    if traits.has_generation && new.get("spec") != old.get("spec") {
        let generation = old["metadata"]["generation"].as_u64().unwrap_or_default();
        new["metadata"]["generation"] = (generation + 1).into();
    }
    new
}

/// The conditions of the approval of an object.
fn approvals(object: &Value) -> Vec<&str> {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.filter_map(|it| it["type"].as_str()).filter(|kind| matches!(*kind, "Approved" | "Denied")).collect()
}

/// Sets or removes a field of an object.
fn set(object: &mut Value, field: &str, value: Option<&Value>) {
    let Some(fields) = object.as_object_mut() else { return };
    match value {
        Some(value) => fields.insert(field.to_owned(), value.clone()),
        None => fields.remove(field),
    };
}
