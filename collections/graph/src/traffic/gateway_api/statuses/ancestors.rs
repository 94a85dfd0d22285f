//! Ancestors: what a policy concerns, in its status.

use serde_json::{Value, json};
use sluice_engine::Index;
use sluice_model::gateway_api::{BackendRef, GROUP, HttpRoute, L4Route, ParentRef, PolicyTarget};
use sluice_model::{Kind, ObjectKey, Text};

use super::super::classes::MESH_CONTROLLER;
use crate::inputs::ObjectCollections;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, merge};

/// Most ancestors that a status may have.
const MAX_ANCESTORS: usize = 16;

/// The Gateways of the routes that refer to a Service.
pub(super) type GatewaysOfServices<'s> = Index<'s, ObjectKey, StatusKey, ObjectKey>;

/// The Gateways of the routes that refer to each Service, whether they are attached or not.
pub(super) fn index_gateways_of_services<'s>(objects: &ObjectCollections<'s>) -> GatewaysOfServices<'s> {
    let http = |kind: Kind| {
        move |key: &ObjectKey, route: &HttpRoute| {
            let backends = route.rules.iter().flat_map(|rule| &rule.backends).map(|backend| &backend.backend);
            [(StatusKey { kind, object: key.clone() }, pairs(key, &route.parents, backends))]
        }
    };
    let l4 = |kind: Kind| {
        move |key: &ObjectKey, route: &L4Route| {
            let backends = route.rules.iter().flatten();
            [(StatusKey { kind, object: key.clone() }, pairs(key, &route.parents, backends))]
        }
    };
    let of_http = objects.http_routes.flat_map("gateway_api/HTTPRoute/backends", http(Kind::HTTPRoute));
    let others = [
        objects.grpc_routes.flat_map("gateway_api/GRPCRoute/backends", http(Kind::GRPCRoute)),
        objects.tls_routes.flat_map("gateway_api/TLSRoute/backends", l4(Kind::TLSRoute)),
        objects.tcp_routes.flat_map("gateway_api/TCPRoute/backends", l4(Kind::TCPRoute)),
    ];
    let all = of_http.union("gateway_api/route_backends", &others);
    all.index("gateway_api/gateways-of-services", |_, pairs: &Vec<(ObjectKey, ObjectKey)>| pairs.clone())
}

/// The Services and the Gateways that a route refers to.
fn pairs<'a>(
    route: &ObjectKey,
    parents: &[ParentRef],
    backends: impl Iterator<Item = &'a BackendRef> + Clone,
) -> Vec<(ObjectKey, ObjectKey)> {
    let object = |namespace: Text, name: &Text| ObjectKey::new(route.cluster.clone(), namespace, name.clone());
    let gateways = parents.iter().filter(|parent| parent.kind.is(GROUP, "Gateway"));
    let mut pairs = Vec::new();
    for gateway in gateways.map(|parent| object(parent.namespace.clone(), &parent.name)) {
        let services = backends.clone().filter(|backend| backend.target.kind.is("", "Service"));
        pairs.extend(services.map(|backend| {
            let target = &backend.target;
            (object(target.namespace_in(&route.namespace), &target.name), gateway.clone())
        }));
    }
    pairs.sort();
    pairs.dedup();
    pairs
}

/// An ancestor in a status, with the controller that reports it.
pub(super) struct Ancestor<'a> {
    /// The reference to it.
    pub(super) reference: Value,
    /// Name of the controller.
    pub(super) controller: &'a str,
    /// Its conditions.
    pub(super) conditions: Vec<StatusCondition>,
}

/// The reference to a target of a policy.
pub(super) fn target_reference(target: &PolicyTarget) -> Value {
    let PolicyTarget { kind, name, section } = target;
    let mut reference = json!({"group": kind.group.as_str(), "kind": kind.kind.as_str(), "name": name.as_str()});
    if !section.is_empty() {
        reference["sectionName"] = section.as_str().into();
    }
    reference
}

/// Sets `ancestors` of a status. Those of other controllers stay, and the order stays.
pub(super) fn set_ancestors(draft: &mut StatusDraft<'_>, ancestors: Vec<Ancestor<'_>>, gateway_controller: &str) {
    let present: Vec<Value> = draft.get("ancestors").and_then(Value::as_array).cloned().unwrap_or_default();
    let entry = |Ancestor { reference, controller, conditions }: Ancestor<'_>| {
        let old = present.iter().find(|old| old["ancestorRef"] == reference);
        let conditions = merge(old.and_then(|old| old.get("conditions")), draft.generation(), &conditions);
        json!({"ancestorRef": reference, "controllerName": controller, "conditions": conditions})
    };
    let mut wanted: Vec<Value> = ancestors.into_iter().map(entry).collect();
    let mut entries = Vec::new();
    for old in present {
        let is_ours =
            [MESH_CONTROLLER, gateway_controller].iter().any(|controller| old["controllerName"] == *controller);
        if !is_ours {
            entries.push(old);
        } else if let Some(place) = wanted.iter().position(|entry| entry["ancestorRef"] == old["ancestorRef"]) {
            entries.push(wanted.remove(place));
        }
    }
    entries.extend(wanted);
    entries.truncate(MAX_ANCESTORS);
    draft.set("ancestors", Some(Value::Array(entries)));
}
