//! The condition `Reconciled`: whether proxies have acknowledged an object that asks for it (K15).

use serde::Serialize;
use serde_json::{Value, json};
use sluice_engine::Collection;
use sluice_model::{ConditionRequest, RECONCILED, Reconciliation, ReconciliationState, Text};

use crate::inputs::discovery::{Discovery, is_read};
use crate::options::GraphOptions;
use crate::statuses::{ConditionUpdate, StatusKey, condition_list, put};

/// A part of the wanted conditions of an object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum ConditionPart {
    /// All but `Reconciled`.
    Others(ConditionUpdate),
    /// `Reconciled`; none if it is removed.
    Reconciled { present: Text, wanted: Option<Reconciliation> },
}

/// Objects of the cluster, in the namespaces that are read, that ask for the condition, or have it.
/// Key: `StatusKey`. From: `raw_condition_requests`, `discovery`. Changes when: the generation or a condition of such an
/// object does.
/// Size: these objects. Rejects: none.
pub(crate) fn derive_condition_requests<'s>(
    requests: &Collection<'s, StatusKey, ConditionRequest>,
    discovery: &Discovery<'s>,
    options: &GraphOptions,
) -> Collection<'s, StatusKey, ConditionRequest> {
    let cluster = options.cluster.clone();
    requests.derive("condition_requests", |deps| {
        let discovery = deps.on(discovery);
        move |cx, key, request| {
            let is_own = key.object.cluster == cluster && is_read(cx, &discovery, &key.object);
            is_own.then(|| request.clone())
        }
    })
}

/// Conditions of objects that have to be written: those of `others`, and `Reconciled`, in one list for each object.
/// Key: `StatusKey`. From: `condition_requests`, `reconciliations`, `others`. Changes when: one of the conditions does, or those
/// that are stored. Size: objects that are not written yet. Rejects: none.
pub(crate) fn derive_condition_updates<'s>(
    requests: &Collection<'s, StatusKey, ConditionRequest>,
    reconciliations: &Collection<'s, StatusKey, Reconciliation>,
    others: [&Collection<'s, StatusKey, ConditionUpdate>; 2],
) -> Collection<'s, StatusKey, ConditionUpdate> {
    let reconciled = requests.derive("condition_updates/reconciled", |deps| {
        let reconciliations = deps.on(reconciliations);
        move |cx, key, request| {
            let present = request.conditions.clone();
            if !request.is_requested {
                return Some(ConditionPart::Reconciled { present, wanted: None });
            }
            // Without a result, the condition stays: another replica or an earlier run has written it.
            let wanted = cx.get(&reconciliations, key)?;
            Some(ConditionPart::Reconciled { present, wanted: Some((*wanted).clone()) })
        }
    });
    let part = |_: &StatusKey, update: &ConditionUpdate| ConditionPart::Others(update.clone());
    let [first, second] = others;
    let others = [first.map("condition_updates/ambient", part), second.map("condition_updates/policies", part)];
    reconciled.union_merge("condition_updates", &others, |_, parts| merged(parts))
}

/// The update that contains all parts.
fn merged(parts: &[&ConditionPart]) -> Option<ConditionUpdate> {
    let (mut present, mut list) = (None, None);
    for part in parts {
        if let ConditionPart::Others(update) = part {
            (present, list) = (Some(&update.is), Some(condition_list(&update.wanted)));
        }
    }
    for part in parts {
        if let ConditionPart::Reconciled { present: stored, wanted } = part {
            let list = list.get_or_insert_with(|| condition_list(stored));
            present = present.or(Some(stored));
            match wanted {
                // Another replica may have seen the same with its own proxies.
                Some(wanted) if list.iter().any(|condition| is_acknowledged(condition, wanted)) => {}
                Some(wanted) => put(list, condition(wanted), &["reason", "message", "observedGeneration"]),
                None => list.retain(|condition| !is_own(condition)),
            }
        }
    }
    ConditionUpdate::new(present?, list?)
}

fn is_own(condition: &Value) -> bool {
    let text = |field: &str| condition[field].as_str().unwrap_or_default();
    ReconciliationState::is_own(text("type"), text("reason"))
}

/// Whether a condition says as well that the proxies have acknowledged this generation.
fn is_acknowledged(condition: &Value, wanted: &Reconciliation) -> bool {
    let is_true = wanted.state == ReconciliationState::Acknowledged && condition["status"] == "True";
    is_true && is_own(condition) && condition["observedGeneration"] == wanted.generation
}

/// Its JSON form. The generation is a number, which the schema of Istio's kinds allows beside text: `kubectl wait` ignores a
/// condition of an earlier generation only if it is a number.
fn condition(wanted: &Reconciliation) -> Value {
    let status = if wanted.state == ReconciliationState::Acknowledged { "True" } else { "False" };
    json!({
        "type": RECONCILED, "status": status, "reason": wanted.state.reason(), "message": wanted.message.as_str(),
        "observedGeneration": wanted.generation,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reconciliation(generation: i64, state: ReconciliationState, message: &str) -> Reconciliation {
        Reconciliation { generation, state, message: message.into() }
    }

    fn reconciled(present: &Value, wanted: Option<Reconciliation>) -> ConditionPart {
        ConditionPart::Reconciled { present: present.to_string().into(), wanted }
    }

    fn wanted(parts: &[&ConditionPart]) -> Option<Value> {
        merged(parts).map(|update| serde_json::from_str(&update.wanted).expect("JSON"))
    }

    #[test]
    fn condition_is_beside_those_of_others_and_keeps_its_time_with_its_status() {
        let other = json!({"type": "Other", "status": "True", "lastTransitionTime": "T"});
        let present = json!([other]);
        let waiting = reconciliation(2, ReconciliationState::NotAcknowledged, "1 of 2");
        let first = wanted(&[&reconciled(&present, Some(waiting.clone()))]).expect("an update");
        let expected = json!({
            "type": "Reconciled", "status": "False", "reason": "NotAcknowledgedByProxies", "message": "1 of 2",
            "observedGeneration": 2,
        });
        assert_eq!(first, json!([other, expected]));

        let mut stored = first.clone();
        stored[1]["lastTransitionTime"] = "U".into();
        assert_eq!(wanted(&[&reconciled(&stored, Some(waiting))]), None, "it is written");
        let rejected = reconciliation(2, ReconciliationState::Rejected, "1 of 2; rejected by a.shop: no");
        let next = wanted(&[&reconciled(&stored, Some(rejected))]).expect("an update");
        assert_eq!((&next[1]["lastTransitionTime"], &next[1]["reason"]), (&json!("U"), &json!("RejectedByProxies")));
        let done = reconciliation(2, ReconciliationState::Acknowledged, "2 of 2");
        let next = wanted(&[&reconciled(&stored, Some(done))]).expect("an update");
        assert_eq!((&next[1]["status"], next[1].get("lastTransitionTime")), (&json!("True"), None));
        let elsewhere = reconciliation(2, ReconciliationState::Acknowledged, "7 of 7");
        assert_eq!(wanted(&[&reconciled(&next, Some(elsewhere))]), None, "another replica has seen it, too");
        let later = reconciliation(3, ReconciliationState::Acknowledged, "2 of 2");
        let written = wanted(&[&reconciled(&next, Some(later))]).expect("an update");
        assert_eq!(written[1]["observedGeneration"], 3);
        assert_eq!(wanted(&[&reconciled(&stored, None)]), Some(present));
    }

    #[test]
    fn condition_of_another_writer_is_not_removed() {
        let present = json!([{"type": "Reconciled", "status": "True", "message": "2/2 proxies up to date."}]);
        assert_eq!(wanted(&[&reconciled(&present, None)]), None);
    }

    #[test]
    fn all_conditions_of_an_object_are_one_update() {
        let done = reconciliation(2, ReconciliationState::Acknowledged, "2 of 2");
        let (present, own) = (json!([{"type": "Old", "status": "True"}]), condition(&done));
        let others = ConditionPart::Others(ConditionUpdate {
            is: present.to_string().into(),
            wanted: json!([{"type": "WaypointAccepted", "status": "True"}]).to_string().into(),
        });
        let of_done = reconciled(&present, Some(done));
        let expected = json!([{"type": "WaypointAccepted", "status": "True"}, own]);
        assert_eq!(wanted(&[&of_done, &others]), Some(expected.clone()));
        assert_eq!(wanted(&[&others]), Some(json!([{"type": "WaypointAccepted", "status": "True"}])));
        let stored = ConditionPart::Others(ConditionUpdate {
            is: expected.to_string().into(),
            wanted: json!([own]).to_string().into(),
        });
        assert_eq!(wanted(&[&reconciled(&expected, None), &stored]), Some(json!([])), "both are removed");
    }
}
