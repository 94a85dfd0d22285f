//! The statuses of XBackendTrafficPolicies (G05, G06).

use sluice_engine::{Collection, Context, Dep};
use sluice_model::gateway_api::{BackendTrafficPolicy, PolicyTarget};
use sluice_model::{Kind, ObjectKey, Text};

use super::super::classes::MESH_CONTROLLER;
use super::super::policies::{TargetKind, TargetObject, is_ignored, target_of};
use super::StatusInputs;
use super::ancestors::{
    Ancestor, MAX_POLICY_ANCESTORS, ignored_conditions, set_ancestors, target_problem, target_reference,
    unusable_target,
};
use super::validation::VALID;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusProblem, StatusUpdate};

/// Statuses of XBackendTrafficPolicies that have to be written.
/// Key: `StatusKey`. From: `backend_traffic_policies`, `gateway_api/targets`, `namespaces`, `own_revision`. Changes when: the
/// policy, its status or one of these does. Size: policies that are not written yet. Rejects: none.
pub(super) fn derive_policy_statuses<'s>(inputs: &StatusInputs<'_, 's>) -> Collection<'s, StatusKey, StatusUpdate> {
    let options = inputs.options.gateway_api.clone();
    let updates =
        inputs.objects.backend_traffic_policies.derive("gateway_api/backend_traffic_policy_statuses", |deps| {
            let targets = deps.on(inputs.targets);
            let revisions = inputs.revisions.on(deps);
            move |cx, key, policy: &BackendTrafficPolicy| {
                let is_ours = options.writes_statuses && revisions.owns(cx, key, &policy.meta.labels);
                is_ours.then(|| update(cx, &targets, key, policy, &options.controller)).flatten()
            }
        });
    updates.flat_map("gateway_api/backend_traffic_policy_status_updates", |key, update| {
        [(StatusKey { kind: Kind::XBackendTrafficPolicy, object: key.clone() }, update.clone())]
    })
}

fn update(
    cx: &Context,
    targets: &Dep<(TargetKind, ObjectKey), TargetObject>,
    key: &ObjectKey,
    policy: &BackendTrafficPolicy,
    controller: &Text,
) -> Option<StatusUpdate> {
    let mut draft = StatusDraft::new(&policy.status);
    let message = match policy.has_session_persistence {
        false => VALID.to_owned(),
        true => format!("{VALID}, but Istio does not support the following fields: sessionPersistence"),
    };
    let mut problem = None;
    let mut conditions = |target: &PolicyTarget| {
        if is_ignored(&policy.meta) {
            return ignored_conditions();
        }
        // As in the reference, a problem with a target is also reported for those that follow.
        problem = service_problem(cx, targets, key, target).or(problem.take());
        vec![StatusCondition::met("Accepted", "Accepted", message.as_str()).unless(problem.as_ref())]
    };
    let ancestors = policy.targets.iter().map(|target| Ancestor {
        reference: target_reference(target),
        controller: MESH_CONTROLLER,
        conditions: conditions(target),
    });
    let ancestors = ancestors.collect();
    set_ancestors(&mut draft, ancestors, &[controller.as_str()], MAX_POLICY_ANCESTORS);
    draft.finish()
}

/// Why a policy cannot be applied to a target. Only Services are supported.
fn service_problem(
    cx: &Context,
    targets: &Dep<(TargetKind, ObjectKey), TargetObject>,
    key: &ObjectKey,
    target: &PolicyTarget,
) -> Option<StatusProblem> {
    let is_service = target_of(key, target).is_none_or(|(kind, _)| kind == TargetKind::Service);
    target_problem(cx, targets, key, target).or_else(|| {
        (!is_service).then(|| unusable_target(&format!("unsupported reference kind: {}", target.kind.kind)))
    })
}
