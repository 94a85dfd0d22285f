//! Listeners in the statuses of Gateways and ListenerSets.

use std::sync::Arc;

use serde_json::{Value, json};
use sluice_engine::{Context, Dep};
use sluice_model::gateway_api::{GroupKind, Listener};

use super::super::listener_report::ListenerReport;
use super::super::listeners::{ListenerKey, ParentKey};
use crate::statuses::{StatusDraft, merge};

/// The listeners of an object, with the states that are known.
pub(super) struct ReportedListeners<'a> {
    /// The object.
    pub(super) parent: ParentKey,
    /// Its listeners in declared order.
    pub(super) declared: &'a [Listener],
    /// Their states.
    pub(super) reports: Vec<(ListenerKey, Arc<ListenerReport>)>,
}

impl ReportedListeners<'_> {
    /// Sets `listeners` of a status. A listener without a known state keeps its entry.
    pub(super) fn set(&self, cx: &Context, attached_routes: &Dep<ListenerKey, u32>, draft: &mut StatusDraft<'_>) {
        let present: Vec<Value> = draft.get("listeners").and_then(Value::as_array).cloned().unwrap_or_default();
        let entry = |listener: &Listener| {
            let old = present.iter().find(|entry| entry["name"] == listener.name.as_str());
            let key = ListenerKey { parent: self.parent.clone(), section: listener.name.clone() };
            let Some((_, report)) = self.reports.iter().find(|(of, _)| *of == key) else { return old.cloned() };
            let kind = |GroupKind { group, kind }: &GroupKind| json!({"group": group.as_str(), "kind": kind.as_str()});
            let routes = cx.get(attached_routes, &key).map_or(0, |count| *count);
            Some(json!({
                "name": listener.name.as_str(),
                "attachedRoutes": routes,
                "supportedKinds": report.kinds.iter().map(kind).collect::<Vec<_>>(),
                "conditions": merge(old.and_then(|old| old.get("conditions")), draft.generation(), &report.conditions),
            }))
        };
        let listeners: Vec<Value> = self.declared.iter().filter_map(entry).collect();
        draft.set("listeners", (!listeners.is_empty()).then_some(Value::Array(listeners)));
    }
}
