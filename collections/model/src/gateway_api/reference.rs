//! References to other objects.

use serde::{Deserialize, Serialize};

use crate::{NETWORKING_GROUP, Text};

/// A kind of any version.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GroupKind {
    /// API group, empty for the core group.
    pub group: Text,
    /// Kind.
    pub kind: Text,
}

impl GroupKind {
    /// Whether it is that kind of that group.
    #[must_use]
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == *group && self.kind == *kind
    }

    /// Whether it is Istio's pseudo-kind of backends that are named by their host.
    #[must_use]
    pub fn is_hostname(&self) -> bool {
        self.is(NETWORKING_GROUP, "Hostname")
    }
}

/// A reference to an object.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Its kind; the default of the field if unset.
    pub kind: GroupKind,
    /// Its namespace; `None` is that of the object with the reference.
    pub namespace: Option<Text>,
    /// Its name.
    pub name: Text,
}

impl ObjectRef {
    /// The namespace of the reference in an object of namespace `local`.
    #[must_use]
    pub fn namespace_in(&self, local: &Text) -> Text {
        self.namespace.clone().unwrap_or_else(|| local.clone())
    }
}
