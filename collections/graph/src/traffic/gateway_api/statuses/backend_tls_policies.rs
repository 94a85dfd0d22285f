//! The statuses of BackendTLSPolicies (G05, G06).

use std::collections::BTreeSet;

use serde_json::json;
use sluice_engine::{Collection, Context, Dep, IndexDep};
use sluice_model::gateway_api::{BackendTlsPolicy, BackendValidation, GROUP, GroupKind, PolicyTarget};
use sluice_model::{Kind, ObjectKey, Text, Timestamp};

use super::super::classes::MESH_CONTROLLER;
use super::super::credentials::CredentialLookup;
use super::super::policies::{IGNORED, TargetKind, TargetObject, is_ignored, preceding_policy, target_of};
use super::StatusInputs;
use super::ancestors::{Ancestor, index_gateways_of_services, set_ancestors, target_reference};
use crate::statuses::{RevisionLookup, StatusCondition, StatusDraft, StatusKey, StatusProblem, StatusUpdate};

/// Statuses of BackendTLSPolicies that have to be written.
/// Key: `StatusKey`. From: `backend_tls_policies`, `gateway_api/targets`, `root_bundles` (their presence), the routes that refer to
/// the targets, `namespaces`. Changes when: the policy, its status or one of these does. Size: policies that are not written yet.
/// Rejects: none.
pub(super) fn derive_policy_statuses<'s>(inputs: &StatusInputs<'_, 's>) -> Collection<'s, StatusKey, StatusUpdate> {
    let options = inputs.options.clone();
    let gateways = index_gateways_of_services(inputs.objects);
    let updates = inputs.objects.backend_tls_policies.derive("gateway_api/backend_tls_policy_statuses", |deps| {
        let lookups = PolicyLookups {
            targets: deps.on(inputs.targets),
            by_target: deps.by(inputs.tls_by_target),
            gateways: deps.by(&gateways),
            credentials: CredentialLookup::on(deps, inputs.credentials),
            revisions: RevisionLookup::on(deps, &inputs.objects.namespaces, inputs.options),
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
    gateways: IndexDep<ObjectKey, StatusKey, ObjectKey>,
    credentials: CredentialLookup,
    revisions: RevisionLookup,
}

const VALID: &str = "Configuration is valid";

impl PolicyLookups {
    fn update(
        &self,
        cx: &Context,
        key: &ObjectKey,
        policy: &BackendTlsPolicy,
        controller: &Text,
    ) -> Option<StatusUpdate> {
        let mut draft = StatusDraft::new(&policy.status);
        let ancestor = |target: &PolicyTarget, conditions: Vec<StatusCondition>| Ancestor {
            reference: target_reference(target),
            controller: MESH_CONTROLLER,
            conditions,
        };
        if is_ignored(&policy.meta) {
            let message = format!("Ignored by Istio due to annotation {IGNORED}=true");
            let conditions = || vec![StatusCondition::not_met("Accepted", "IgnoredByIstio", message.as_str())];
            let ancestors = policy.targets.iter().map(|target| ancestor(target, conditions())).collect();
            set_ancestors(&mut draft, ancestors, controller);
            return draft.finish();
        }
        let (mut problem, unresolved) = self.roots_problem(cx, key, &policy.validation);
        let message = match policy.validation.roots.len() {
            0 | 1 => VALID.to_owned(),
            _ => format!("{VALID}; warning: only the first caCertificateRefs will be used"),
        };
        let conditions = |problem: Option<&StatusProblem>| {
            vec![
                StatusCondition::met("Accepted", "Accepted", message.as_str()).unless(problem),
                StatusCondition::met("ResolvedRefs", "ResolvedRefs", VALID).unless(unresolved.as_ref()),
            ]
        };
        let (mut ancestors, mut gateways) = (Vec::new(), BTreeSet::new());
        for target in &policy.targets {
            match self.target_problem(cx, key, target) {
                // As in the reference, a problem with a target is also reported for those that follow.
                Some(found) => problem = Some(found),
                None => {
                    if let Some(other) = preceding_policy(cx, &self.by_target, (key, policy), target) {
                        let message = format!("Conflicts with BackendTLSPolicy \"{other}\" targeting the same backend");
                        problem = Some(StatusProblem::new("Conflicted", message));
                    }
                    let service = ObjectKey { name: target.name.clone(), ..key.clone() };
                    if target.kind.is("", "Service") {
                        gateways.extend(cx.by(&self.gateways, &service).into_iter().map(|(_, gateway)| gateway));
                    }
                }
            }
            ancestors.push(ancestor(target, conditions(problem.as_ref())));
        }
        ancestors.extend(gateways.iter().map(|gateway| Ancestor {
            reference: json!({"group": GROUP, "kind": "Gateway", "name": gateway.name.as_str()}),
            controller,
            conditions: conditions(problem.as_ref()),
        }));
        set_ancestors(&mut draft, ancestors, controller);
        draft.finish()
    }

    /// Why the root certificates of a policy cannot be used: for the conditions `Accepted` and `ResolvedRefs`.
    fn roots_problem(
        &self,
        cx: &Context,
        key: &ObjectKey,
        validation: &BackendValidation,
    ) -> (Option<StatusProblem>, Option<StatusProblem>) {
        if let Some(well_known) = &validation.well_known_roots {
            let unknown = (*well_known != *"System")
                .then(|| StatusProblem::new("Invalid", format!("Unknown wellKnownCACertificates: {well_known}")));
            return (unknown, None);
        }
        let Some(root) = validation.roots.first() else { return (None, None) };
        let GroupKind { group, kind } = &root.kind;
        let (reason, begin, problem) = match (group.as_str(), kind.as_str()) {
            ("", "ConfigMap") => {
                if self.credentials.has_bundle(cx, &ObjectKey { name: root.name.clone(), ..key.clone() }) {
                    return (None, None);
                }
                let problem = format!("reference {}/{} (of kind ConfigMap) not found", key.namespace, root.name);
                ("InvalidCACertificateRef", "Certificate reference not found", problem)
            }
            ("", "Secret") => {
                let problem = "unsupported reference kind: Secret".to_owned();
                ("InvalidKind", "Certificate reference invalid", problem)
            }
            _ => ("InvalidKind", "Certificate reference not supported", format!("unsupported kind {kind}")),
        };
        let accepted = format!("Certificate reference invalid: {problem}");
        let resolved = StatusProblem::new(reason, format!("{begin}: {problem}"));
        (Some(StatusProblem::new("NoValidCACertificate", accepted)), Some(resolved))
    }

    /// Why a target cannot be used.
    fn target_problem(&self, cx: &Context, key: &ObjectKey, target: &PolicyTarget) -> Option<StatusProblem> {
        let PolicyTarget { kind: GroupKind { kind, .. }, name, section } = target;
        let namespace = &key.namespace;
        let object = target_of(key, target).map(|of| cx.get(&self.targets, &of));
        let message = match object {
            None => format!("unsupported kind {kind}"),
            Some(None) => format!("reference {namespace}/{name} (of kind {kind}) not found"),
            Some(Some(object)) if section.is_empty() || object.ports.contains_key(section) => return None,
            Some(Some(_)) => format!("sectionName \"{section}\" does not exist in {kind} {namespace}/{name}"),
        };
        Some(StatusProblem::new("TargetNotFound", format!("targetRefs invalid: {message}")))
    }
}
