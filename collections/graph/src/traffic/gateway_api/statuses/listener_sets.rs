//! The statuses of ListenerSets (G05).

use std::collections::BTreeSet;

use sluice_engine::{Collection, Context, Dep, IndexDep};
use sluice_model::gateway_api::{GROUP, Gateway, GatewayClass, ListenerSet};
use sluice_model::{Kind, Namespace, ObjectKey};

use super::super::classes::find_controller;
use super::super::listener_report::ListenerReport;
use super::super::listeners::{ListenerKey, ParentKey, allows_set, services};
use super::super::revisions::RevisionLookup;
use super::instances::{InstanceLookup, address_problem};
use super::listeners::ReportedListeners;
use super::{Reports, StatusInputs};
use crate::options::GraphOptions;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusProblem, StatusUpdate};

/// Statuses of the ListenerSets of our Gateways that have to be written.
/// Key: `StatusKey`. From: `listener_sets`, `kubernetes_gateways`, `gateway_classes`, `namespaces`, `own_revision`,
/// `gateway_api/listener_rows`, `services` (of the Gateway) and the ports of their endpoints,
/// `gateway_api/attached-route-counts`. Changes when: the ListenerSet, its status or one of these does.
/// Size: ListenerSets that are not written yet. Rejects: none.
pub(super) fn derive_listener_set_statuses<'s>(
    inputs: &StatusInputs<'_, 's>,
    reports: &Reports<'s>,
) -> Collection<'s, StatusKey, StatusUpdate> {
    let options = inputs.options.clone();
    let updates = inputs.objects.listener_sets.derive("gateway_api/listener_set_statuses", |deps| {
        let lookups = ListenerSetLookups {
            gateways: deps.on(&inputs.objects.kubernetes_gateways),
            classes: deps.on(&inputs.objects.gateway_classes),
            namespaces: deps.on(&inputs.objects.namespaces),
            reports: deps.by(&reports.by_parent),
            attached_routes: deps.on(&reports.attached_routes),
            instances: InstanceLookup::on(deps, inputs, &reports.instance_ports),
            revisions: inputs.revisions.on(deps),
        };
        move |cx, key, set| {
            let is_ours = options.gateway_api.writes_statuses && lookups.revisions.owns(cx, key, &set.meta.labels);
            is_ours.then(|| lookups.update(cx, key, set, &options)).flatten()
        }
    });
    updates.flat_map("gateway_api/listener_set_status_updates", |key, update| {
        [(StatusKey { kind: Kind::ListenerSet, object: key.clone() }, update.clone())]
    })
}

struct ListenerSetLookups {
    gateways: Dep<ObjectKey, Gateway>,
    classes: Dep<ObjectKey, GatewayClass>,
    namespaces: Dep<ObjectKey, Namespace>,
    reports: IndexDep<ParentKey, ListenerKey, ListenerReport>,
    attached_routes: Dep<ListenerKey, u32>,
    instances: InstanceLookup,
    revisions: RevisionLookup,
}

impl ListenerSetLookups {
    fn update(&self, cx: &Context, key: &ObjectKey, set: &ListenerSet, options: &GraphOptions) -> Option<StatusUpdate> {
        if !set.parent.kind.is(GROUP, "Gateway") {
            return None;
        }
        let namespace = set.parent.namespace_in(&key.namespace);
        let gateway_key = ObjectKey::new(key.cluster.clone(), namespace, set.parent.name.clone());
        let gateway = cx.get(&self.gateways, &gateway_key)?;
        let controller = find_controller(cx, &self.classes, &key.cluster, &gateway.class, &options.gateway_api)?;
        let mut draft = StatusDraft::new(&set.status);
        let not_allowed = if !controller.takes_listener_sets() {
            Some(format!("The \"{}\" GatewayClass does not support ListenerSet", gateway.class))
        } else if !allows_set(cx, &self.namespaces, (&gateway_key, &gateway), key) {
            Some("The parent Gateway does not allow this reference; check the 'spec.allowedRoutes'".to_owned())
        } else {
            None
        };
        if let Some(message) = not_allowed {
            let not_met = |kind: &'static str| StatusCondition::not_met(kind, "NotAllowed", message.as_str());
            draft.set("listeners", None);
            draft.set_conditions(&[not_met("Accepted"), not_met("Programmed")]);
            return draft.finish();
        }
        let hosts = services(&gateway, controller, options);
        let parent = ParentKey { is_set: true, object: key.clone() };
        let reports = cx.by(&self.reports, &parent);
        let ports: BTreeSet<u16> = reports.iter().filter_map(|(_, report)| report.port).collect();
        let instances = self.instances.find(cx, &gateway_key.namespace, &hosts, &ports);
        // Without a Service no listener is examined.
        let is_valid = hosts.is_empty() || reports.iter().any(|(_, report)| report.is_valid);
        let not_valid = (!is_valid)
            .then(|| StatusProblem::new("ListenersNotValid", "None of the ListenerSet's listeners are valid"));
        let of_gateway = address_problem(&gateway, options)
            .map(|problem| StatusProblem::new(problem.reason, format!("Parent not accepted: {}", problem.message)));
        let accepted = StatusCondition::met("Accepted", "Accepted", "Resource accepted");
        let conditions = [
            accepted.unless(of_gateway.as_ref().or(not_valid.as_ref())),
            instances.programmed().unless(not_valid.as_ref()),
        ];
        let listeners = ReportedListeners { parent, declared: &set.listeners, reports };
        listeners.set(cx, &self.attached_routes, &mut draft);
        draft.set_conditions(&conditions);
        draft.finish()
    }
}
