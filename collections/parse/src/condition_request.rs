//! The annotation that asks for the condition `Reconciled` (K15).

use serde_json::Value;
use sluice_model::{ConditionRequest, RECONCILED, ReconciliationState, label};

use crate::item::stored_conditions;
use crate::{Findings, Item, KindInfo};

/// What a stored object asks about its condition [`RECONCILED`]; `None` if it neither asks for it nor has one of this control
/// plane.
#[must_use]
pub fn condition_request(info: &KindInfo, object: &Value) -> Option<ConditionRequest> {
    if !info.is_istio() {
        return None;
    }
    let is_requested = annotation(object).and_then(Value::as_str) == Some("true");
    let has_own = || object["status"]["conditions"].as_array().is_some_and(|list| list.iter().any(is_own));
    (is_requested || has_own()).then(|| ConditionRequest {
        is_requested,
        generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
        conditions: stored_conditions(object),
    })
}

fn is_own(condition: &Value) -> bool {
    let text = |field: &str| condition[field].as_str().unwrap_or_default();
    ReconciliationState::is_own(text("type"), text("reason"))
}

/// Checks the annotation of an object of any kind.
pub(crate) fn check(info: &KindInfo, item: &Item<'_>, findings: &Findings) {
    let Some(value) = annotation(item.object) else { return };
    let path = format!("metadata.annotations[{}]", label::RECONCILED_CONDITION);
    if !info.is_istio() {
        let reason = format!("has no effect: only objects of Istio's own kinds have the condition {RECONCILED}");
        findings.warning(&path, reason);
    } else if !matches!(value.as_str(), Some("true" | "false")) {
        findings.warning(&path, format!("has no effect: expected \"true\" or \"false\", found {value}"));
    }
}

fn annotation(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("annotations")?.get(label::RECONCILED_CONDITION)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_model::{Kind, Severity};

    use super::*;
    use crate::{KINDS, kind_info, validate_object};

    fn object(info: &KindInfo, annotation: &str, conditions: &Value) -> Value {
        json!({
            "apiVersion": info.api_version(), "kind": info.name,
            "metadata": {
                "namespace": "shop", "name": "cart", "generation": 3,
                "annotations": {label::RECONCILED_CONDITION: annotation},
            },
            "status": {"conditions": conditions},
        })
    }

    #[test]
    fn objects_ask_for_the_condition_or_have_one_to_remove() {
        let info = kind_info(Kind::VirtualService).expect("a kind");
        let own = json!([{"type": RECONCILED, "status": "True", "reason": "AcknowledgedByProxies"}]);
        let others =
            json!([{"type": RECONCILED, "status": "True"}, {"type": "Own", "reason": "AcknowledgedByProxies"}]);
        let request = |annotation: &str, conditions: &Value| {
            condition_request(info, &object(info, annotation, conditions)).map(|request| request.is_requested)
        };
        assert_eq!([request("true", &json!(null)), request("true", &own)], [Some(true); 2]);
        assert_eq!([request("false", &own), request("yes", &own)], [Some(false); 2]);
        assert_eq!(
            [request("false", &others), request("false", &json!(7))],
            [None; 2],
            "it is not of this control plane"
        );
        let read = condition_request(info, &object(info, "true", &own)).expect("a request");
        assert_eq!(read.generation, 3);
        assert_eq!(serde_json::from_str::<Value>(&read.conditions).expect("JSON"), own);
        let read = condition_request(info, &json!({"metadata": {"annotations": [7], "generation": "x"}, "status": 7}));
        assert_eq!(read, None);
    }

    #[test]
    fn annotation_without_effect_is_a_warning() {
        for info in KINDS {
            let found = |annotation: &str| {
                let found = validate_object(&object(info, annotation, &json!(null))).expect("a known kind");
                let path = format!("metadata.annotations[{}]", label::RECONCILED_CONDITION);
                let found = found.into_iter().filter(|reject| *reject.field_path == *path);
                found.map(|reject| (reject.severity, reject.reason.to_string())).collect::<Vec<_>>()
            };
            let requested = condition_request(info, &object(info, "true", &json!(null)));
            if info.is_istio() {
                assert!(requested.is_some_and(|request| request.is_requested), "{}", info.name);
                assert_eq!(found("true"), [], "{}", info.name);
                let invalid = found("yes");
                let reason = "has no effect: expected \"true\" or \"false\", found \"yes\"".to_owned();
                assert_eq!(invalid, [(Severity::Warning, reason)], "{}", info.name);
            } else {
                assert_eq!(requested, None, "{}", info.name);
                let found = found("true");
                assert!(found.len() == 1 && found[0].1.contains("has no effect"), "{}: {found:?}", info.name);
            }
        }
    }
}
