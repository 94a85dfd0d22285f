//! ReferenceGrants: who may refer to objects of a namespace from outside.

use serde::Serialize;

use super::GroupKind;
use crate::Text;

/// A ReferenceGrant: every one of `from` may refer to every one of `to` in the grant's own namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ReferenceGrant {
    /// Who may refer.
    pub from: Vec<GrantFrom>,
    /// To what.
    pub to: Vec<GrantTo>,
}

impl ReferenceGrant {
    /// Whether an object of kind `from` in namespace `namespace` may refer to what is called `name` and is of kind `to`.
    #[must_use]
    pub fn allows(&self, from: &GroupKind, namespace: &str, to: &GroupKind, name: &str) -> bool {
        self.from.iter().any(|source| source.kind == *from && source.namespace == *namespace)
            && self
                .to
                .iter()
                .any(|target| target.kind == *to && target.name.as_ref().is_none_or(|allowed| *allowed == *name))
    }
}

/// Who may refer to something.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct GrantFrom {
    /// Kind of the object with the reference.
    pub kind: GroupKind,
    /// Its namespace.
    pub namespace: Text,
}

/// What may be referred to.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
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
    fn a_grant_is_for_one_kind_of_one_namespace_and_perhaps_one_name() {
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
