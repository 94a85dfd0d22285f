//! Ancestors: what a policy concerns, in its status.

use serde_json::{Value, json};
use sluice_engine::{Context, Dep, Index};
use sluice_model::gateway_api::{
    BackendRef, EXPERIMENTAL_GROUP, GROUP, GroupKind, HttpRoute, L4Route, ParentRef, PolicyTarget,
};
use sluice_model::{Kind, ObjectKey, Text};

use super::super::classes::MESH_CONTROLLER;
use super::super::policies::{IGNORED, TargetKind, TargetObject, target_of};
use crate::inputs::ObjectCollections;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusProblem, merge};

/// Most ancestors that the status of a policy may have.
pub(super) const MAX_POLICY_ANCESTORS: usize = 16;

/// A Service or an XBackend.
pub(super) type BackendKey = (TargetKind, ObjectKey);

/// The Gateways of the routes that refer to a backend.
pub(super) type GatewaysOfBackends<'s> = Index<'s, BackendKey, StatusKey, ObjectKey>;

/// The Gateways of the routes that refer to each Service and XBackend, whether they are attached or not.
pub(super) fn index_gateways_of_backends<'s>(objects: &ObjectCollections<'s>) -> GatewaysOfBackends<'s> {
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
    all.index("gateway_api/gateways-of-backends", |_, pairs: &Vec<(BackendKey, ObjectKey)>| pairs.clone())
}

/// The backends and the Gateways that a route refers to.
fn pairs<'a>(
    route: &ObjectKey,
    parents: &[ParentRef],
    backends: impl Iterator<Item = &'a BackendRef> + Clone,
) -> Vec<(BackendKey, ObjectKey)> {
    let object = |namespace: Text, name: &Text| ObjectKey::new(route.cluster.clone(), namespace, name.clone());
    let gateways = parents.iter().filter(|parent| parent.kind.is(GROUP, "Gateway"));
    let mut pairs = Vec::new();
    for gateway in gateways.map(|parent| object(parent.namespace.clone(), &parent.name)) {
        pairs.extend(backends.clone().filter_map(|backend| {
            let target = &backend.target;
            let kind = match () {
                () if target.kind.is("", "Service") => TargetKind::Service,
                () if target.kind.is(EXPERIMENTAL_GROUP, "XBackend") => TargetKind::Backend,
                () => return None,
            };
            Some(((kind, object(target.namespace_in(&route.namespace), &target.name)), gateway.clone()))
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

/// The conditions of a policy that belongs to another controller.
pub(super) fn ignored_conditions() -> Vec<StatusCondition> {
    let message = format!("Ignored by Istio due to annotation {IGNORED}=true");
    vec![StatusCondition::not_met("Accepted", "IgnoredByIstio", message)]
}

/// Why a policy cannot be applied to a target.
pub(super) fn target_problem(
    cx: &Context,
    targets: &Dep<(TargetKind, ObjectKey), TargetObject>,
    policy: &ObjectKey,
    target: &PolicyTarget,
) -> Option<StatusProblem> {
    let PolicyTarget { kind: GroupKind { kind, .. }, name, section } = target;
    let namespace = &policy.namespace;
    let object = target_of(policy, target).map(|of| cx.get(targets, &of));
    let message = match object {
        None => format!("unsupported kind {kind}"),
        Some(None) => format!("reference {namespace}/{name} (of kind {kind}) not found"),
        Some(Some(object)) if section.is_empty() || object.ports.contains_key(section) => return None,
        Some(Some(_)) => format!("sectionName \"{section}\" does not exist in {kind} {namespace}/{name}"),
    };
    Some(unusable_target(&message))
}

/// The problem of a target that cannot be used.
pub(super) fn unusable_target(reason: &str) -> StatusProblem {
    StatusProblem::new("TargetNotFound", format!("targetRefs invalid: {reason}"))
}

/// Sets `ancestors` of a status, at most a number of them. Those of other controllers stay, and the order stays.
pub(super) fn set_ancestors(
    draft: &mut StatusDraft<'_>,
    ancestors: Vec<Ancestor<'_>>,
    gateway_controller: &str,
    most: usize,
) {
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
    entries.truncate(most);
    draft.set("ancestors", Some(Value::Array(entries)));
}
