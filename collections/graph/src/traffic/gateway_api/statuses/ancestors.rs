//! Ancestors: what a policy concerns, in its status.

use serde_json::{Value, json};
use sluice_engine::{Context, Dep};
use sluice_model::ObjectKey;
use sluice_model::gateway_api::{GroupKind, PolicyTarget};

use super::super::classes::MESH_CONTROLLER;
use super::super::policies::{IGNORED, TargetKind, TargetObject, target_of};
use crate::statuses::{StatusCondition, StatusDraft, StatusProblem, merge};

/// Most ancestors that the status of a policy may have.
pub(super) const MAX_POLICY_ANCESTORS: usize = 16;

/// An ancestor in a status, with the controller that reports it.
pub(super) struct Ancestor<'a> {
    /// The reference to it.
    pub(super) reference: Value,
    /// Name of the controller.
    pub(super) controller: &'a str,
    /// Its conditions.
    pub(super) conditions: Vec<StatusCondition>,
}

/// The reference to a target of a policy.
pub(super) fn target_reference(target: &PolicyTarget) -> Value {
    let PolicyTarget { kind, name, section } = target;
    let mut reference = json!({"group": kind.group.as_str(), "kind": kind.kind.as_str(), "name": name.as_str()});
    if !section.is_empty() {
        reference["sectionName"] = section.as_str().into();
    }
    reference
}

/// The conditions of a policy that belongs to another controller.
pub(super) fn ignored_conditions() -> Vec<StatusCondition> {
    let message = format!("Ignored by Istio due to annotation {IGNORED}=true");
    vec![StatusCondition::not_met("Accepted", "IgnoredByIstio", message)]
}

/// Why a policy cannot be applied to a target.
pub(super) fn target_problem(
    cx: &Context,
    targets: &Dep<(TargetKind, ObjectKey), TargetObject>,
    policy: &ObjectKey,
    target: &PolicyTarget,
) -> Option<StatusProblem> {
    let PolicyTarget { kind: GroupKind { group, kind }, name, section } = target;
    let namespace = &policy.namespace;
    let object = target_of(policy, target).map(|of| cx.get(targets, &of));
    let message = match object {
        // The reference reads objects of these kinds, for other references.
        None if group.is_empty() && matches!(kind.as_str(), "ConfigMap" | "Secret") => {
            format!("unsupported reference kind: {kind}")
        }
        None => format!("unsupported kind {kind}"),
        Some(None) => format!("reference {namespace}/{name} (of kind {kind}) not found"),
        Some(Some(object)) if section.is_empty() || object.ports.contains_key(section) => return None,
        Some(Some(_)) => format!("sectionName \"{section}\" does not exist in {kind} {namespace}/{name}"),
    };
    Some(unusable_target(&message))
}

/// The problem of a target that cannot be used.
pub(super) fn unusable_target(reason: &str) -> StatusProblem {
    StatusProblem::new("TargetNotFound", format!("targetRefs invalid: {reason}"))
}

/// Sets `ancestors` of a status, at most a number of them. Those of other controllers stay, and the order stays.
pub(super) fn set_ancestors(
    draft: &mut StatusDraft<'_>,
    ancestors: Vec<Ancestor<'_>>,
    gateway_controllers: &[&str],
    most: usize,
) {
    let present: Vec<Value> = draft.get("ancestors").and_then(Value::as_array).cloned().unwrap_or_default();
    let entry = |Ancestor { reference, controller, conditions }: Ancestor<'_>| {
        let old = present.iter().find(|old| old["ancestorRef"] == reference);
        let conditions = merge(old.and_then(|old| old.get("conditions")), draft.generation(), &conditions);
        json!({"ancestorRef": reference, "controllerName": controller, "conditions": conditions})
    };
    let mut wanted: Vec<Value> = ancestors.into_iter().map(entry).collect();
    let mut entries = Vec::new();
    for old in present {
        let is_ours =
            [MESH_CONTROLLER].iter().chain(gateway_controllers).any(|controller| old["controllerName"] == *controller);
        if !is_ours {
            entries.push(old);
        } else if let Some(place) = wanted.iter().position(|entry| entry["ancestorRef"] == old["ancestorRef"]) {
            entries.push(wanted.remove(place));
        }
    }
    entries.extend(wanted);
    entries.truncate(most);
    draft.set("ancestors", Some(Value::Array(entries)));
}
