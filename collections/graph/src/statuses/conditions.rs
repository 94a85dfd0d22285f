//! Conditions: the list of an object, with those of other writers.

use serde::Serialize;
use serde_json::{Value, json};
use sluice_model::Text;

use super::StatusProblem;

/// The list of conditions of an object that differs from what it should be.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ConditionUpdate {
    /// All present conditions as JSON text; empty if there are none.
    pub is: Text,
    /// All wanted conditions as JSON text. Those that change have no `lastTransitionTime`.
    pub wanted: Text,
}

impl ConditionUpdate {
    /// The update of a list; `None` if the present conditions are the wanted ones.
    pub(crate) fn new(present: &Text, wanted: Vec<Value>) -> Option<Self> {
        (condition_list(present) != wanted)
            .then(|| Self { is: present.clone(), wanted: Value::Array(wanted).to_string().into() })
    }
}

/// The conditions of a JSON text; none if it is no list.
pub(crate) fn condition_list(json: &str) -> Vec<Value> {
    let parsed: Value = serde_json::from_str(json).unwrap_or_default();
    if let Value::Array(list) = parsed { list } else { Vec::new() }
}

/// A wanted condition.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct StatusCondition {
    /// Its type.
    pub(crate) kind: &'static str,
    /// It is met.
    pub(crate) is_met: bool,
    /// Why it has the status, as one word.
    pub(crate) reason: Text,
    /// Why it has the status, as a sentence.
    pub(crate) message: Text,
}

impl StatusCondition {
    /// A condition that is met.
    pub(crate) fn met(kind: &'static str, reason: impl Into<Text>, message: impl Into<Text>) -> Self {
        Self { kind, is_met: true, reason: reason.into(), message: message.into() }
    }

    /// A condition that is not met.
    pub(crate) fn not_met(kind: &'static str, reason: impl Into<Text>, message: impl Into<Text>) -> Self {
        Self { is_met: false, ..Self::met(kind, reason, message) }
    }

    /// Its JSON form, without a time and a generation.
    pub(crate) fn to_json(&self) -> Value {
        let status = if self.is_met { "True" } else { "False" };
        let mut condition = json!({"type": self.kind, "status": status, "reason": self.reason.as_str()});
        if !self.message.is_empty() {
            condition["message"] = self.message.as_str().into();
        }
        condition
    }

    /// This condition, unless there is a problem.
    pub(crate) fn unless(self, problem: Option<&StatusProblem>) -> Self {
        match problem {
            Some(problem) => Self::not_met(self.kind, problem.reason, problem.message.clone()),
            None => self,
        }
    }
}

/// The present list of conditions with wanted ones: each replaces the one of its type, or is added in order of the types. As in
/// the reference, a condition whose status, message and generation stay is kept, whatever its reason. The time of transition
/// stays with the status.
pub(crate) fn merge(present: Option<&Value>, generation: impl Into<Value>, wanted: &[StatusCondition]) -> Value {
    let generation = generation.into();
    let mut list: Vec<Value> = present.and_then(Value::as_array).cloned().unwrap_or_default();
    let mut wanted: Vec<&StatusCondition> = wanted.iter().collect();
    wanted.sort_by_key(|condition| condition.kind);
    for wanted in wanted {
        let mut condition = wanted.to_json();
        condition["observedGeneration"] = generation.clone();
        put(&mut list, condition, &["message", "observedGeneration"]);
    }
    Value::Array(list)
}

/// Puts a condition in the place of the present one of its type, or at the end. The present one is kept if its status and the
/// `compared` fields are the same. The time of transition stays with the status.
pub(crate) fn put(list: &mut Vec<Value>, mut condition: Value, compared: &[&str]) {
    let Some(old) = list.iter_mut().find(|old| old["type"] == condition["type"]) else {
        list.push(condition);
        return;
    };
    if old["status"] == condition["status"] {
        if compared.iter().all(|field| old.get(*field) == condition.get(*field)) {
            return;
        }
        condition["lastTransitionTime"] = old["lastTransitionTime"].take();
    }
    *old = condition;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_replaces_the_one_of_its_type_and_keeps_its_time_with_its_status() {
        let stored = |kind: &str, status: &str, generation: i64| {
            json!({"type": kind, "status": status, "reason": "R", "message": "m", "observedGeneration": generation,
                   "lastTransitionTime": "T"})
        };
        let present = json!([stored("Other", "True", 1), stored("A", "True", 1), stored("B", "False", 1)]);
        let wanted = [
            StatusCondition::met("C", "R", "m"),
            StatusCondition::met("B", "R", "m"),
            StatusCondition::met("A", "Else", "m"),
        ];
        let same = merge(Some(&present), 1, &wanted);
        assert_eq!(same[0], present[0], "of another writer");
        assert_eq!(same[1], present[1], "a reason alone is no change");
        assert_eq!((&same[2]["status"], same[2].get("lastTransitionTime")), (&json!("True"), None));
        assert_eq!(same[3]["type"], "C");
        let later = merge(Some(&present), 2, &wanted);
        assert_eq!((&later[1]["observedGeneration"], &later[1]["lastTransitionTime"]), (&json!(2), &json!("T")));
        assert_eq!(merge(Some(&same), 1, &wanted), same);
        assert_eq!(merge(None, 1, &wanted[..1])[0]["type"], "C");
    }
}
