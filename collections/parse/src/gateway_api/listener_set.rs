//! ListenerSets: additional listeners for a Gateway (G06).

use sluice_model::Object;
use sluice_model::gateway_api::{GROUP, ListenerSet};

use super::listener::listeners;
use super::reference::object_ref;
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let parent = fields.read("parentRef", |parent| object_ref(parent, GROUP, "Gateway"));
    if parent.is_none() {
        fields.reject("parentRef", "`parentRef` is required");
    }
    let set = ListenerSet {
        meta: item.meta(findings),
        parent: parent.unwrap_or_default(),
        listeners: listeners(&fields),
        status: item.status(),
    };
    drop(fields);
    (!findings.has_errors()).then(|| Object::ListenerSet(Box::new(set)))
}
