//! The policies that apply to services: marks of the graph.

use std::collections::BTreeSet;

use sluice_engine::{Engine, Value};
use sluice_model::{
    Attachment, AuthorizationPolicy, DestinationRule, Host, Kind, Labels, ObjectKey, PeerAuthentication,
    RequestAuthentication, Service, Sidecar, Telemetry, Text, match_labels,
};

use super::objects::ObjectLink;
use super::topology::{NodeId, NodeKind};

/// The kinds of policies, with their mark in the graph.
pub(super) const MARKS: &[(Kind, &str)] = &[
    (Kind::VirtualService, "VS"),
    (Kind::DestinationRule, "DR"),
    (Kind::AuthorizationPolicy, "AP"),
    (Kind::PeerAuthentication, "PA"),
    (Kind::RequestAuthentication, "RA"),
    (Kind::Sidecar, "SC"),
    (Kind::Telemetry, "TE"),
];

/// A policy.
pub(super) struct MeshPolicy {
    pub(super) kind: Kind,
    pub(super) key: ObjectKey,
    target: PolicyTarget,
}

/// What a policy applies to.
enum PolicyTarget {
    Host(Host),
    Workloads(Attachment),
}

/// All policies of the mesh.
pub(super) fn policies(engine: &Engine) -> Vec<MeshPolicy> {
    let workloads =
        |selector: &Labels| PolicyTarget::Workloads(Attachment { selector: selector.clone(), ..Attachment::default() });
    let mut found = Vec::new();
    read(engine, "destination_rules", Kind::DestinationRule, &mut found, |rule: &DestinationRule| {
        PolicyTarget::Host(rule.host.clone())
    });
    read(engine, "authorization_policies", Kind::AuthorizationPolicy, &mut found, |policy: &AuthorizationPolicy| {
        PolicyTarget::Workloads(policy.attachment.clone())
    });
    read(engine, "peer_authentications", Kind::PeerAuthentication, &mut found, |policy: &PeerAuthentication| {
        workloads(&policy.selector)
    });
    read(
        engine,
        "request_authentications",
        Kind::RequestAuthentication,
        &mut found,
        |policy: &RequestAuthentication| PolicyTarget::Workloads(policy.attachment.clone()),
    );
    read(engine, "sidecars", Kind::Sidecar, &mut found, |sidecar: &Sidecar| {
        workloads(&sidecar.workload_selector.clone().unwrap_or_default())
    });
    read(engine, "telemetries", Kind::Telemetry, &mut found, |telemetry: &Telemetry| {
        PolicyTarget::Workloads(telemetry.attachment.clone())
    });
    found
}

/// Reads the policies of a collection.
fn read<V: Value>(
    engine: &Engine,
    collection: &str,
    kind: Kind,
    found: &mut Vec<MeshPolicy>,
    target: impl Fn(&V) -> PolicyTarget,
) {
    if let Some(dump) = engine.dump(collection) {
        let policy = |(key, value): (&ObjectKey, &V)| MeshPolicy { kind, key: key.clone(), target: target(value) };
        found.extend(dump.typed::<ObjectKey, V>().map(policy));
    }
}

impl MeshPolicy {
    pub(super) fn link(&self) -> ObjectLink {
        ObjectLink::new(self.kind, &self.key)
    }

    /// Whether it applies to all workloads of its namespace, or of the mesh in the root namespace.
    pub(super) fn is_wide(&self) -> bool {
        match &self.target {
            PolicyTarget::Host(_) => false,
            PolicyTarget::Workloads(attachment) => attachment.selector.is_empty() && !attachment.has_targets(),
        }
    }

    /// Whether it selects some of the workloads of a service with these labels, or names the service.
    pub(super) fn selects_service(
        &self,
        service: &Service,
        workloads: &BTreeSet<Labels>,
        root_namespace: &Text,
    ) -> bool {
        match &self.target {
            PolicyTarget::Host(host) => host.contains(&service.host),
            PolicyTarget::Workloads(_) if self.is_wide() => false,
            PolicyTarget::Workloads(attachment) => {
                let is_own = self.key.namespace == service.namespace;
                let is_root = self.key.namespace == *root_namespace && self.kind != Kind::Sidecar;
                let names_it = is_own
                    && attachment
                        .targets
                        .iter()
                        .any(|target| target.is_kind("", "Service") && target.name == service.name);
                let selects = !attachment.has_targets()
                    && (is_own || is_root)
                    && workloads.iter().any(|labels| match_labels(&attachment.selector, labels));
                names_it || selects
            }
        }
    }

    /// Whether it names the gateway of a node.
    pub(super) fn targets_gateway(&self, node: &NodeId) -> bool {
        let PolicyTarget::Workloads(attachment) = &self.target else { return false };
        let is_named = |target: &sluice_model::TargetRef| target.kind == "Gateway" && target.name == node.name;
        node.kind == NodeKind::Gateway
            && self.key.namespace == node.namespace
            && (attachment.any_gateway || attachment.targets.iter().any(is_named))
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::TargetRef;

    use super::*;

    fn policy(namespace: &str, selector: &[(&str, &str)], targets: &[(&str, &str)]) -> MeshPolicy {
        let target = |(kind, name): &(&str, &str)| TargetRef {
            kind: (*kind).into(),
            name: (*name).into(),
            ..TargetRef::default()
        };
        let attachment = Attachment {
            selector: labels(selector),
            targets: targets.iter().map(target).collect(),
            any_gateway: false,
        };
        MeshPolicy {
            kind: Kind::AuthorizationPolicy,
            key: ObjectKey::new("Kubernetes", namespace, "p"),
            target: PolicyTarget::Workloads(attachment),
        }
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(name, value)| (Text::from(*name), Text::from(*value))).collect()
    }

    #[test]
    fn policy_is_a_mark_of_the_services_whose_workloads_it_selects() {
        let service =
            Service { namespace: "shop".into(), name: "cart".into(), host: "cart".into(), ..Service::default() };
        let workloads =
            [labels(&[("app", "cart"), ("version", "v1")]), labels(&[("app", "cart"), ("version", "v2")])].into();
        let selects = |policy: &MeshPolicy| policy.selects_service(&service, &workloads, &"istio-system".into());
        assert!(selects(&policy("shop", &[("version", "v2")], &[])));
        assert!(selects(&policy("istio-system", &[("app", "cart")], &[])));
        assert!(!selects(&policy("bank", &[("app", "cart")], &[])), "another namespace");
        assert!(!selects(&policy("shop", &[("version", "v3")], &[])));
        assert!(selects(&policy("shop", &[], &[("Service", "cart")])));
        let wide = policy("shop", &[], &[]);
        assert!(wide.is_wide() && !selects(&wide));
        let gateway =
            NodeId { kind: NodeKind::Gateway, namespace: "shop".into(), name: "edge".into(), subset: "".into() };
        assert!(policy("shop", &[], &[("Gateway", "edge")]).targets_gateway(&gateway));
        assert!(!policy("bank", &[], &[("Gateway", "edge")]).targets_gateway(&gateway));
        let rule = MeshPolicy { target: PolicyTarget::Host("*".into()), ..policy("bank", &[], &[]) };
        assert!(selects(&rule));
    }
}
