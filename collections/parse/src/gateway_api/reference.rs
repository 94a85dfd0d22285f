//! References to other objects.

use sluice_model::gateway_api::{GroupKind, ObjectRef};

use crate::Fields;
use crate::names::is_dns_label;

/// Reads `group` and `kind`, with defaults.
pub(super) fn group_kind(fields: &Fields<'_>, group: &str, kind: &str) -> GroupKind {
    GroupKind {
        group: fields.opt_text("group").unwrap_or_else(|| group.into()),
        kind: fields.opt_text("kind").unwrap_or_else(|| kind.into()),
    }
}

/// Reads a reference: `group`, `kind`, `namespace` and `name`, with defaults for the first two.
pub(super) fn object_ref(fields: &Fields<'_>, group: &str, kind: &str) -> ObjectRef {
    let reference = ObjectRef {
        kind: group_kind(fields, group, kind),
        namespace: fields.opt_text("namespace"),
        name: fields.text("name"),
    };
    if reference.name.is_empty() {
        fields.reject("name", "the name of the object is required");
    }
    if reference.kind.kind.is_empty() {
        fields.reject("kind", "the kind of the object is required");
    }
    if let Some(namespace) = reference.namespace.as_ref().filter(|namespace| !is_dns_label(namespace)) {
        fields.refuse("namespace", format!("`{namespace}` is not a namespace: expected a DNS label"));
    }
    reference
}

/// Reads a port, 1 to 65535.
pub(super) fn opt_port(fields: &Fields<'_>, name: &str) -> Option<u16> {
    let port = fields.opt_integer(name);
    if port == Some(0) {
        fields.reject(name, "expected a port from 1 to 65535, found 0");
    }
    port
}
