//! The statuses of BackendTLSPolicies (G05, G06).

use std::collections::BTreeSet;

use serde_json::json;
use sluice_engine::{Collection, Context, Dep, IndexDep};
use sluice_model::gateway_api::{BackendTlsPolicy, GROUP, PolicyTarget};
use sluice_model::{Kind, ObjectKey, Text, Timestamp};

use super::super::backend_gateways::{BackendKey, GatewaysOfBackends};
use super::super::classes::{AGENTGATEWAY_CONTROLLER, MESH_CONTROLLER};
use super::super::credentials::CredentialLookup;
use super::super::policies::{TargetKind, TargetObject, is_ignored, preceding_policy};
use super::super::revisions::RevisionLookup;
use super::StatusInputs;
use super::ancestors::{
    Ancestor, MAX_POLICY_ANCESTORS, ignored_conditions, set_ancestors, target_problem, target_reference,
};
use super::validation::ValidationReport;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusProblem, StatusUpdate};

/// Statuses of BackendTLSPolicies that have to be written.
/// Key: `StatusKey`. From: `backend_tls_policies`, `gateway_api/targets`, `root_bundles` (their presence), the routes that refer to
/// the targets, `namespaces`, `own_revision`. Changes when: the policy, its status or one of these does. Size: policies that are
/// not written yet. Rejects: none.
pub(super) fn derive_policy_statuses<'s>(
    inputs: &StatusInputs<'_, 's>,
    gateways: &GatewaysOfBackends<'s>,
) -> Collection<'s, StatusKey, StatusUpdate> {
    let options = inputs.options.clone();
    let updates = inputs.objects.backend_tls_policies.derive("gateway_api/backend_tls_policy_statuses", |deps| {
        let lookups = PolicyLookups {
            targets: deps.on(inputs.targets),
            by_target: deps.by(inputs.tls_by_target),
            gateways: deps.by(gateways),
            credentials: CredentialLookup::on(deps, inputs.credentials),
            revisions: inputs.revisions.on(deps),
            of_agentgateways: inputs.agentgateway.map(|of| deps.on(&of.accounts)),
        };
        move |cx, key, policy| {
            let is_ours = options.gateway_api.writes_statuses && lookups.revisions.owns(cx, key, &policy.meta.labels);
            is_ours.then(|| lookups.update(cx, key, policy, &options.gateway_api.controller)).flatten()
        }
    });
    updates.flat_map("gateway_api/backend_tls_policy_status_updates", |key, update| {
        [(StatusKey { kind: Kind::BackendTLSPolicy, object: key.clone() }, update.clone())]
    })
}

struct PolicyLookups {
    targets: Dep<(TargetKind, ObjectKey), TargetObject>,
    by_target: IndexDep<(Text, PolicyTarget), ObjectKey, Timestamp>,
    gateways: IndexDep<BackendKey, StatusKey, ObjectKey>,
    credentials: CredentialLookup,
    revisions: RevisionLookup,
    /// The Gateways of agentgateways, if these are served.
    of_agentgateways: Option<Dep<ObjectKey, Text>>,
}

impl PolicyLookups {
    fn update(
        &self,
        cx: &Context,
        key: &ObjectKey,
        policy: &BackendTlsPolicy,
        controller: &Text,
    ) -> Option<StatusUpdate> {
        let mut draft = StatusDraft::new(&policy.status);
        let other = self.of_agentgateways.map(|_| AGENTGATEWAY_CONTROLLER);
        let controllers: Vec<&str> = [controller.as_str()].into_iter().chain(other).collect();
        let ancestor = |target: &PolicyTarget, conditions: Vec<StatusCondition>| Ancestor {
            reference: target_reference(target),
            controller: MESH_CONTROLLER,
            conditions,
        };
        if is_ignored(&policy.meta) {
            let ancestors = policy.targets.iter().map(|target| ancestor(target, ignored_conditions())).collect();
            set_ancestors(&mut draft, ancestors, &controllers, MAX_POLICY_ANCESTORS);
            return draft.finish();
        }
        let report = ValidationReport::of(cx, &self.credentials, key, &policy.validation);
        let mut problem = report.problem.clone();
        let (mut ancestors, mut gateways) = (Vec::new(), BTreeSet::new());
        for target in &policy.targets {
            match target_problem(cx, &self.targets, key, target) {
                // As in the reference, a problem with a target is also reported for those that follow.
                Some(found) => problem = Some(found),
                None => {
                    if let Some(other) = preceding_policy(cx, &self.by_target, (key, policy), target) {
                        let message = format!("Conflicts with BackendTLSPolicy \"{other}\" targeting the same backend");
                        problem = Some(StatusProblem::new("Conflicted", message));
                    }
                    let service = ObjectKey { name: target.name.clone(), ..key.clone() };
                    if target.kind.is("", "Service") {
                        gateways.extend(
                            cx.by(&self.gateways, &(TargetKind::Service, service))
                                .into_iter()
                                .map(|(_, gateway)| gateway),
                        );
                    }
                }
            }
            ancestors.push(ancestor(target, report.conditions(problem.as_ref())));
        }
        ancestors.extend(gateways.iter().map(|gateway| Ancestor {
            reference: json!({"group": GROUP, "kind": "Gateway", "name": gateway.name.as_str()}),
            controller: match self.of_agentgateways.and_then(|gateways| cx.get(&gateways, gateway)) {
                Some(_) => AGENTGATEWAY_CONTROLLER,
                None => controller,
            },
            conditions: report.conditions(problem.as_ref()),
        }));
        set_ancestors(&mut draft, ancestors, &controllers, MAX_POLICY_ANCESTORS);
        draft.finish()
    }
}
