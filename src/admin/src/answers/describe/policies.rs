//! Security policies and extensions of a workload.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use sluice_graph::{ExplainedWorkload, MtlsMode};
use sluice_model::{
    Attachment, AuthorizationPolicy, EnvoyFilter, Kind, Labels, ObjectKey, PeerAuthentication, PolicyAction,
    RequestAuthentication, Telemetry, Text, TrafficExtension,
};

use super::MeshFacts;
use crate::answers::objects::ObjectVersion;

/// Mutual TLS that a workload requires.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PeerDescription {
    pub(crate) mode: &'static str,
    /// Modes by port of the workload.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) ports: BTreeMap<u32, &'static str>,
    /// The PeerAuthentication that decides; none if the mode is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<ObjectVersion>,
    /// Those that were considered, the most specific first.
    pub(crate) applied: Vec<ObjectVersion>,
}

/// An AuthorizationPolicy.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuthorizationDescription {
    #[serde(flatten)]
    object: ObjectVersion,
    action: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    provider: Text,
    rules: usize,
    dry_run: bool,
}

/// A RequestAuthentication.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TokenDescription {
    #[serde(flatten)]
    object: ObjectVersion,
    issuers: Vec<Text>,
}

/// The workload as the rules of policies see it.
fn workload<'a>(facts: &'a MeshFacts<'_>, namespace: &'a Text, labels: &'a Labels) -> ExplainedWorkload<'a> {
    ExplainedWorkload { namespace, labels, mesh: &facts.mesh, options: &facts.state.graph }
}

/// The AuthorizationPolicies that apply to a workload, in order.
pub(crate) fn applied_authorization(
    facts: &MeshFacts<'_>,
    namespace: &Text,
    labels: &Labels,
) -> Vec<(ObjectKey, AuthorizationPolicy)> {
    let policies = facts.collection::<AuthorizationPolicy>("authorization_policies");
    workload(facts, namespace, labels).applied(policies)
}

pub(super) fn authorization(facts: &MeshFacts<'_>, namespace: &Text, labels: &Labels) -> Vec<AuthorizationDescription> {
    let describe = |(key, policy): (ObjectKey, AuthorizationPolicy)| AuthorizationDescription {
        object: facts.object(Kind::AuthorizationPolicy, &key),
        action: action_text(policy.action),
        provider: policy.provider,
        rules: policy.rules.len(),
        dry_run: policy.dry_run,
    };
    applied_authorization(facts, namespace, labels).into_iter().map(describe).collect()
}

pub(super) fn tokens(facts: &MeshFacts<'_>, namespace: &Text, labels: &Labels) -> Vec<TokenDescription> {
    let policies = facts.collection::<RequestAuthentication>("request_authentications");
    let describe = |(key, policy): (ObjectKey, RequestAuthentication)| TokenDescription {
        object: facts.object(Kind::RequestAuthentication, &key),
        issuers: policy.rules.into_iter().map(|rule| rule.issuer).collect(),
    };
    workload(facts, namespace, labels).applied(policies).into_iter().map(describe).collect()
}

/// Mutual TLS that a workload requires, and the PeerAuthentications that decide about it.
pub(crate) fn peer_description(facts: &MeshFacts<'_>, namespace: &Text, labels: &Labels) -> PeerDescription {
    let all = facts.collection::<PeerAuthentication>("peer_authentications");
    let explained = workload(facts, namespace, labels).peer_policy(all.into_iter().map(|(_, policy)| policy));
    let object = |policy: &Arc<PeerAuthentication>| {
        let cluster = facts.state.options.cluster.clone();
        let key = ObjectKey::new(cluster, policy.namespace.clone(), policy.name.clone());
        facts.object(Kind::PeerAuthentication, &key)
    };
    let source = explained.read.iter().find(|policy| policy.mtls != sluice_model::PeerMtls::Unset);
    PeerDescription {
        mode: mode_text(explained.effective.mode),
        ports: explained.effective.ports.iter().map(|(port, mode)| (*port, mode_text(*mode))).collect(),
        source: source.map(object),
        applied: explained.read.iter().map(object).collect(),
    }
}

/// EnvoyFilters, Telemetries and Wasm extensions of a workload.
pub(super) fn extensions(facts: &MeshFacts<'_>, namespace: &Text, labels: &Labels) -> Vec<ObjectVersion> {
    let mut found = Vec::new();
    let mut add = |kind: Kind, key: &ObjectKey, attachment: &Attachment| {
        let is_near = key.namespace == *namespace || key.namespace == facts.mesh.root_namespace;
        if is_near && attachment.is_for(key, namespace, labels) {
            found.push(facts.object(kind, key));
        }
    };
    for (key, filter) in facts.collection::<EnvoyFilter>("envoy_filters") {
        add(Kind::EnvoyFilter, &key, &filter.attachment);
    }
    for (key, telemetry) in facts.collection::<Telemetry>("telemetries") {
        add(Kind::Telemetry, &key, &telemetry.attachment);
    }
    for (kind, name) in [(Kind::WasmPlugin, "wasm_plugins"), (Kind::TrafficExtension, "traffic_extensions")] {
        for (key, extension) in facts.collection::<TrafficExtension>(name) {
            add(kind, &key, &extension.attachment);
        }
    }
    found
}

/// An action as in AuthorizationPolicies.
pub(crate) fn action_text(action: PolicyAction) -> &'static str {
    match action {
        PolicyAction::Allow => "ALLOW",
        PolicyAction::Deny => "DENY",
        PolicyAction::Audit => "AUDIT",
        PolicyAction::Custom => "CUSTOM",
        PolicyAction::Unreadable => "UNREADABLE",
    }
}

/// The mode of plaintext only.
pub(crate) const DISABLE: &str = "DISABLE";
/// The mode of mutual TLS only.
pub(crate) const STRICT: &str = "STRICT";

/// A mode as in PeerAuthentications.
fn mode_text(mode: MtlsMode) -> &'static str {
    match mode {
        MtlsMode::Disable => DISABLE,
        MtlsMode::Permissive => "PERMISSIVE",
        MtlsMode::Strict => STRICT,
    }
}
