//! The target of a policy: workloads by label, or the objects of its target references.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::gateway_api::{GROUP, WAYPOINT_CLASS};
use crate::label::GATEWAY_NAME;
use crate::{Labels, NETWORKING_GROUP, ObjectKey, ServiceSource, Text, match_labels};

/// A target reference of a policy, in the namespace of the policy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TargetRef {
    /// API group; empty and `core` are the core group.
    pub group: Text,
    /// Kind.
    pub kind: Text,
    /// Name.
    pub name: Text,
    /// Namespace; only the namespace of the policy matches.
    pub namespace: Text,
}

impl TargetRef {
    /// Whether it refers to an object of that kind.
    #[must_use]
    pub fn is_kind(&self, group: &str, kind: &str) -> bool {
        let canonical = |group: &str| if group == "core" { String::new() } else { group.to_owned() };
        canonical(&self.group) == canonical(group) && self.kind == *kind
    }
}

/// A waypoint, and the service whose traffic a policy is looked up for.
#[derive(Clone, Copy, Debug)]
pub struct WaypointTarget<'a> {
    /// Namespace of the waypoint.
    pub namespace: &'a str,
    /// Its labels. That of its Gateway decides which targets are this waypoint.
    pub labels: &'a Labels,
    /// Namespace whose policies for a GatewayClass are for every waypoint.
    pub root_namespace: &'a str,
    /// The object that declares the service; `None` for connections to workloads.
    pub service: Option<(ServiceSource, &'a ObjectKey)>,
}

impl<'a> WaypointTarget<'a> {
    /// The namespaces whose policies may apply, each once: the root namespace first, that of the service last.
    #[must_use]
    pub fn namespaces_root_first(&self) -> Vec<&'a str> {
        self.with_service([self.root_namespace, self.namespace])
    }

    /// As [`Self::namespaces_root_first`], with the namespace of the waypoint first.
    #[must_use]
    pub fn namespaces_own_first(&self) -> Vec<&'a str> {
        self.with_service([self.namespace, self.root_namespace])
    }

    fn with_service(&self, [first, second]: [&'a str; 2]) -> Vec<&'a str> {
        let mut namespaces = vec![first];
        for namespace in [Some(second), self.service.map(|(_, object)| &*object.namespace)].into_iter().flatten() {
            if !namespaces.contains(&namespace) {
                namespaces.push(namespace);
            }
        }
        namespaces
    }

    /// Whether a target of a policy in that namespace is the waypoint, its class, or the service.
    fn is(&self, gateway: &str, policy_namespace: &str, target: &TargetRef) -> bool {
        let declares = |kind: ServiceSource| {
            self.service.is_some_and(|(source, object)| {
                source == kind && target.name == object.name && *policy_namespace == *object.namespace
            })
        };
        let is_service = (target.is_kind("", "Service") && declares(ServiceSource::Kubernetes))
            || (target.is_kind(NETWORKING_GROUP, "ServiceEntry") && declares(ServiceSource::ServiceEntry));
        let is_class = *policy_namespace == *self.root_namespace
            && target.is_kind(GROUP, "GatewayClass")
            && *target.name == *WAYPOINT_CLASS;
        let is_gateway = *policy_namespace == *self.namespace
            && (target.namespace.is_empty() || *target.namespace == *self.namespace)
            && target.is_kind(GROUP, "Gateway")
            && *target.name == *gateway;
        is_service || is_class || is_gateway
    }
}

/// The target of a policy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Attachment {
    /// Selector of workloads; empty is all.
    pub selector: Labels,
    /// Target references; if there are any, the selector is ignored.
    pub targets: Vec<TargetRef>,
    /// A target reference cannot be read: the target is every gateway of the policy's namespace.
    pub any_gateway: bool,
}

impl Attachment {
    /// Whether the policy at `policy` applies to a sidecar or a gateway with these labels in `namespace`. A policy of
    /// the root namespace with a selector applies to every namespace. Waypoints have other rules of attachment.
    #[must_use]
    pub fn is_for(&self, policy: &ObjectKey, namespace: &str, labels: &Labels) -> bool {
        let gateway = labels.get(GATEWAY_NAME);
        if !self.has_targets() {
            return match_labels(&self.selector, labels);
        }
        let here = *policy.namespace == *namespace;
        if self.any_gateway {
            return here && gateway.is_some();
        }
        gateway.is_some_and(|gateway| {
            here && self.targets.iter().any(|target| {
                let near = target.namespace.is_empty() || *target.namespace == *namespace;
                near && target.is_kind(GROUP, "Gateway") && target.name == *gateway
            })
        })
    }

    /// Whether the policy at `policy` applies to the traffic of a waypoint. A policy without targets does not, except at a
    /// waypoint without the label of its Gateway: there selectors apply, as in Istio. With a target that cannot be read
    /// the policy may be meant for any waypoint or service of its namespace; one of the root namespace, for a whole class.
    #[must_use]
    pub fn is_for_waypoint(&self, policy: &ObjectKey, waypoint: &WaypointTarget<'_>) -> bool {
        let Some(gateway) = waypoint.labels.get(GATEWAY_NAME) else {
            return self.is_for(policy, waypoint.namespace, waypoint.labels);
        };
        let near = || {
            let of_service = waypoint.service.is_some_and(|(_, object)| object.namespace == policy.namespace);
            let of_root = *policy.namespace == *waypoint.root_namespace;
            *policy.namespace == *waypoint.namespace || of_root || of_service
        };
        (self.any_gateway && near())
            || self.targets.iter().any(|target| waypoint.is(gateway, &policy.namespace, target))
    }

    /// Whether the policy at `policy` applies to all traffic of a proxy, by the rule of waypoints or by that of the others.
    #[must_use]
    pub fn is_for_proxy(
        &self,
        policy: &ObjectKey,
        is_waypoint: bool,
        namespace: &str,
        labels: &Labels,
        root_namespace: &str,
    ) -> bool {
        match is_waypoint {
            true => self.is_for_waypoint(policy, &WaypointTarget { namespace, labels, root_namespace, service: None }),
            false => self.is_for(policy, namespace, labels),
        }
    }

    /// Whether it names its targets, so that the selector is ignored.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        self.any_gateway || !self.targets.is_empty()
    }

    /// The labels that decide whether it applies: it does not apply to a workload without all of them. Several targets
    /// are several values of one label, hence pairs.
    pub fn labels(&self) -> impl Iterator<Item = (&Text, &Text)> {
        static GATEWAY: LazyLock<Text> = LazyLock::new(|| GATEWAY_NAME.into());
        self.selector.iter().chain(self.targets.iter().map(|target| (&*GATEWAY, &target.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn targets_hold_for_gateways_of_the_same_namespace() {
        let policy = ObjectKey::new("c", "edge", "p");
        let target = |name: &str, namespace: &str| TargetRef {
            group: GROUP.into(),
            kind: "Gateway".into(),
            name: name.into(),
            namespace: namespace.into(),
        };
        let attached = Attachment { targets: vec![target("other", ""), target("door", "")], ..Attachment::default() };
        let door = labels(&[(GATEWAY_NAME, "door")]);
        assert!(attached.is_for(&policy, "edge", &door));
        assert!(!attached.is_for(&policy, "elsewhere", &door));
        assert!(!attached.is_for(&policy, "edge", &labels(&[("app", "door")])));
        let far = Attachment { targets: vec![target("door", "elsewhere")], ..Attachment::default() };
        assert!(!far.is_for(&policy, "edge", &door));
        let labels: Vec<_> = far.labels().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(labels, [(GATEWAY_NAME, "door")]);
    }

    #[test]
    fn unreadable_target_is_every_gateway_of_the_namespace() {
        let policy = ObjectKey::new("c", "edge", "p");
        let attached = Attachment { any_gateway: true, ..Attachment::default() };
        let door = labels(&[(GATEWAY_NAME, "door")]);
        assert!(attached.is_for(&policy, "edge", &door));
        assert!(!attached.is_for(&policy, "elsewhere", &door));
        assert!(!attached.is_for(&policy, "edge", &labels(&[("app", "door")])));
    }

    #[test]
    fn policies_of_waypoints_name_them_or_their_services() {
        let own = ObjectKey::new("c", "reef", "coral");
        let named = labels(&[(GATEWAY_NAME, "wp")]);
        let waypoint =
            |service| WaypointTarget { namespace: "reef", labels: &named, root_namespace: "istio-system", service };
        let served = waypoint(Some((ServiceSource::Kubernetes, &own)));
        let target = |group: &str, kind: &str, name: &str| Attachment {
            targets: vec![TargetRef {
                group: group.into(),
                kind: kind.into(),
                name: name.into(),
                namespace: Text::default(),
            }],
            ..Attachment::default()
        };
        let near = ObjectKey::new("c", "reef", "p");
        let root = ObjectKey::new("c", "istio-system", "p");
        let service = target("", "Service", "coral");
        assert!(service.is_for_waypoint(&near, &served) && !service.is_for_waypoint(&root, &served));
        assert!(!service.is_for_waypoint(&near, &waypoint(None)));
        assert!(!target("", "Service", "crab").is_for_waypoint(&near, &served));
        let entry = target(NETWORKING_GROUP, "ServiceEntry", "coral");
        assert!(!entry.is_for_waypoint(&near, &served));
        assert!(entry.is_for_waypoint(&near, &waypoint(Some((ServiceSource::ServiceEntry, &own)))));
        let class = target(GROUP, "GatewayClass", WAYPOINT_CLASS);
        assert!(class.is_for_waypoint(&root, &served) && !class.is_for_waypoint(&near, &served));
        assert!(!target(GROUP, "GatewayClass", "istio").is_for_waypoint(&root, &served));
        let gateway = target(GROUP, "Gateway", "wp");
        assert!(gateway.is_for_waypoint(&near, &waypoint(None)) && !gateway.is_for_waypoint(&root, &served));
        // Selectors do not hold for waypoints.
        assert!(!Attachment::default().is_for_waypoint(&near, &served));
        let unreadable = Attachment { any_gateway: true, ..Attachment::default() };
        assert!(unreadable.is_for_waypoint(&near, &served) && unreadable.is_for_waypoint(&root, &served));
        // They do without the label of the Gateway.
        let unnamed = labels(&[("app", "wp")]);
        let unnamed = WaypointTarget { labels: &unnamed, ..served };
        assert!(Attachment::default().is_for_waypoint(&near, &unnamed) && !gateway.is_for_waypoint(&near, &unnamed));
        let selects = |app| Attachment { selector: labels(&[("app", app)]), ..Attachment::default() };
        assert!(selects("wp").is_for_waypoint(&root, &unnamed) && !selects("crab").is_for_waypoint(&root, &unnamed));
    }

    #[test]
    fn selectors_hold_for_everything_with_the_labels() {
        let policy = ObjectKey::new("c", "istio-system", "p");
        let all = Attachment::default();
        assert!(all.is_for(&policy, "any", &Labels::new()));
        let some = Attachment { selector: labels(&[("app", "a")]), ..Attachment::default() };
        assert!(some.is_for(&policy, "any", &labels(&[("app", "a"), ("v", "1")])));
        assert!(!some.is_for(&policy, "any", &labels(&[("app", "b")])));
    }

    #[test]
    fn the_core_group_has_two_names() {
        let target = TargetRef { group: "core".into(), kind: "Service".into(), ..TargetRef::default() };
        assert!(target.is_kind("", "Service"));
        assert!(!target.is_kind(GROUP, "Service"));
    }
}
