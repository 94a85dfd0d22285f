//! The Gateways with a route to a backend, which policies for the backend concern.

use sluice_engine::Index;
use sluice_model::gateway_api::{BackendRef, EXPERIMENTAL_GROUP, GROUP, HttpRoute, L4Route, ParentRef};
use sluice_model::{Kind, ObjectKey, Text};

use super::policies::TargetKind;
use crate::inputs::ObjectCollections;
use crate::statuses::StatusKey;

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
        objects.udp_routes.flat_map("gateway_api/UDPRoute/backends", l4(Kind::UDPRoute)),
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
