//! ReferenceGrants (G03). An invalid one grants nothing.

use sluice_model::Object;
use sluice_model::gateway_api::{GrantFrom, GrantTo, ReferenceGrant};

use super::reference::group_kind;
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let grant = ReferenceGrant {
        from: fields.list("from", |from| {
            needed(from, "kind");
            needed(from, "namespace");
            GrantFrom { kind: group_kind(from, "", ""), namespace: from.text("namespace") }
        }),
        to: fields.list("to", |to| {
            needed(to, "kind");
            GrantTo { kind: group_kind(to, "", ""), name: to.opt_text("name") }
        }),
    };
    for (name, missing) in [("from", grant.from.is_empty()), ("to", grant.to.is_empty())] {
        if missing {
            fields.refuse(name, "at least one entry is required");
        }
    }
    drop(fields);
    (!findings.has_errors()).then_some(Object::ReferenceGrant(grant))
}

fn needed(fields: &Fields<'_>, name: &str) {
    if fields.text(name).is_empty() {
        fields.reject(name, "this field is required");
    }
}
