//! The target of a policy: workloads by label, or the objects of its target references.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::gateway_api::GROUP;
use crate::label::GATEWAY_NAME;
use crate::{Labels, ObjectKey, Text, match_labels};

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
