//! ReferenceGrants: references to objects of another namespace that are allowed.

use serde::{Deserialize, Serialize};

use super::GroupKind;
use crate::Text;

/// A ReferenceGrant: every one of `from` may refer to every one of `to` in the grant's own namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ReferenceGrant {
    /// Allowed sources of references.
    pub from: Vec<GrantFrom>,
    /// Allowed targets of references.
    pub to: Vec<GrantTo>,
}

impl ReferenceGrant {
    /// Whether an object of kind `from` in `namespace` may refer to the object of kind `to` named `name`.
    #[must_use]
    pub fn allows(&self, from: &GroupKind, namespace: &str, to: &GroupKind, name: &str) -> bool {
        self.from.iter().any(|source| source.kind == *from && source.namespace == *namespace)
            && self
                .to
                .iter()
                .any(|target| target.kind == *to && target.name.as_ref().is_none_or(|allowed| *allowed == *name))
    }
}

/// An allowed source of references.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GrantFrom {
    /// Kind of the object with the reference.
    pub kind: GroupKind,
    /// Its namespace.
    pub namespace: Text,
}

/// An allowed target of references.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GrantTo {
    /// Kind of the object.
    pub kind: GroupKind,
    /// Its name; `None` is every object of the kind.
    pub name: Option<Text>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_limits_kind_namespace_and_name() {
        let kind = |group: &str, kind: &str| GroupKind { group: group.into(), kind: kind.into() };
        let (route, secret) = (kind(super::super::GROUP, "HTTPRoute"), kind("", "Secret"));
        let mut grant = ReferenceGrant {
            from: vec![GrantFrom { kind: route.clone(), namespace: "web".into() }],
            to: vec![GrantTo { kind: secret.clone(), name: Some("cert".into()) }],
        };
        assert!(grant.allows(&route, "web", &secret, "cert"));
        assert!(!grant.allows(&route, "other", &secret, "cert"));
        assert!(!grant.allows(&secret, "web", &secret, "cert"));
        assert!(!grant.allows(&route, "web", &route, "cert"));
        assert!(!grant.allows(&route, "web", &secret, "key"));
        grant.to[0].name = None;
        assert!(grant.allows(&route, "web", &secret, "key"));
    }
}
