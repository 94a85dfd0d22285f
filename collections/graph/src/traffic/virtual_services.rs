//! VirtualServices with their delegates and with resolved visibility, indexed by host and by gateway.

pub(crate) mod delegate;

use std::collections::BTreeSet;

use sluice_engine::{Collection, Index};
use sluice_model::{
    Destination, ExportTo, Host, HttpRoute, MESH_GATEWAY, MeshConfig, ObjectKey, RouteSemantics, Text, VirtualService,
};

/// VirtualServices with the routes of their delegates, and with `export_to` always set (C23, C25).
/// Key: `ObjectKey`. From: `virtual_services` as declared, `mesh_config`.
/// Changes when: a VirtualService or one of its delegates changes, or the mesh's default visibility.
/// Size: VirtualServices that have hosts. Rejects: none; a route whose delegate is absent is omitted.
pub(crate) fn derive_merged_virtual_services<'s>(
    declared: &Collection<'s, ObjectKey, VirtualService>,
    mesh_config: &Collection<'s, (), MeshConfig>,
) -> Collection<'s, ObjectKey, VirtualService> {
    declared.derive("virtual_services/merged", |d| {
        let declared = d.on(declared);
        let mesh_config = d.on(mesh_config);
        move |cx, key, root| {
            if root.is_delegate() {
                return None;
            }
            let visibility = |vs: &VirtualService| match &vs.export_to {
                Some(export_to) => export_to.clone(),
                None => cx
                    .get(&mesh_config, &())
                    .map_or(ExportTo::All, |mesh| mesh.virtual_service_export_to(&vs.namespace)),
            };
            let mut merged = root.clone();
            merged.export_to = Some(visibility(root));
            if root.http.iter().any(|route| route.delegate.is_some()) {
                merged.http.clear();
                for route in &root.http {
                    let Some((namespace, name)) = &route.delegate else {
                        merged.http.push(route.clone());
                        continue;
                    };
                    let delegate = ObjectKey::new(key.cluster.clone(), namespace.clone(), name.clone());
                    let found = cx.get(&declared, &delegate).filter(|vs| vs.is_delegate());
                    // A delegate that is absent or not exported to the namespace omits only this route.
                    if let Some(delegate) = found.filter(|vs| visibility(vs).allows(&root.namespace)) {
                        merged.http.extend(delegate::merge_routes(route, &delegate.http));
                    }
                }
            }
            Some(merged)
        }
    })
}

/// VirtualServices of sidecars by host as declared, wildcards included.
pub(crate) fn index_by_host<'s>(merged: &Collection<'s, ObjectKey, VirtualService>) -> Index<'s, Host, ObjectKey, ()> {
    merged.index("virtual_services/by-host", |_, vs| {
        let hosts = if vs.is_mesh() { vs.hosts.as_slice() } else { &[] };
        hosts.iter().map(|host| (host.clone(), ())).collect::<Vec<_>>()
    })
}

/// VirtualServices of routers by gateway, as `namespace/name`.
pub(crate) fn index_by_gateway<'s>(
    name: &str,
    merged: &Collection<'s, ObjectKey, VirtualService>,
) -> Index<'s, Text, ObjectKey, ()> {
    merged.index(name, |_, vs| {
        let gateways = vs.gateways.iter().filter(|gateway| gateway.as_str() != MESH_GATEWAY);
        gateways.map(|gateway| (gateway.clone(), ())).collect::<Vec<_>>()
    })
}

fn http_destinations(route: &HttpRoute) -> impl Iterator<Item = &Destination> {
    let routed = route.route.iter().map(|to| &to.destination);
    routed.chain(&route.mirror).chain(route.mirrors.iter().map(|mirror| &mirror.destination))
}

fn other_destinations(vs: &VirtualService) -> impl Iterator<Item = &Destination> {
    let tcp = vs.tcp.iter().flat_map(|route| &route.route);
    tcp.chain(vs.tls.iter().flat_map(|route| &route.route)).map(|to| &to.destination)
}

/// Every destination of a VirtualService.
pub(crate) fn destinations(vs: &VirtualService) -> impl Iterator<Item = &Destination> {
    vs.http.iter().flat_map(http_destinations).chain(other_destinations(vs))
}

/// Whether a route applies to clients in a namespace.
fn applies_to(route: &HttpRoute, namespace: &str) -> bool {
    let named = |matched: &&sluice_model::HttpMatch| !matched.source_namespace.is_empty();
    let mut namespaces = route.matches.iter().filter(named).map(|matched| &matched.source_namespace).peekable();
    namespaces.peek().is_none() || namespaces.any(|source| *source == *namespace)
}

/// The hosts that requests of clients in `namespace` may be sent to; for an empty namespace, those of all clients.
pub(crate) fn destination_hosts<'a>(vs: &'a VirtualService, namespace: &str) -> BTreeSet<&'a Host> {
    let http = vs.http.iter().filter(|route| namespace.is_empty() || applies_to(route, namespace));
    let pickers = http.clone().filter_map(|route| route.endpoint_picker.as_ref()).map(|picker| &picker.host);
    let destinations = http.flat_map(http_destinations).chain(other_destinations(vs));
    destinations.map(|destination| &destination.host).chain(pickers).collect()
}

/// The ports of a host that requests of clients in `namespace` may be sent to, with 0 for any; `None` if there are
/// none.
#[must_use]
pub(crate) fn destination_ports(vs: &VirtualService, host: &Host, namespace: &str) -> Option<BTreeSet<u32>> {
    let http = vs.http.iter().filter(|route| applies_to(route, namespace)).flat_map(http_destinations);
    let found = http.chain(other_destinations(vs)).filter(|destination| destination.host == *host);
    let ports: BTreeSet<u32> = found.map(|destination| destination.port.unwrap_or_default()).collect();
    (!ports.is_empty()).then_some(ports)
}

/// Whether it is visible to clients in `namespace`; for an empty namespace, whether it is visible to all clients.
#[must_use]
pub(crate) fn is_visible(vs: &VirtualService, namespace: &str) -> bool {
    vs.export_to.as_ref().is_none_or(|export_to| export_to.allows(namespace))
}

/// Order of precedence for a client: private to its namespace, exported to it by name, then public; of the public ones,
/// routes of the Gateway API in the client's namespace come first. Within each class, older ones come first, then by
/// name.
#[must_use]
pub(crate) fn precedence<'a>(vs: &'a VirtualService, namespace: &str) -> (u8, i64, &'a str, &'a str) {
    let is_own = vs.namespace.as_str() == namespace;
    let class = match &vs.export_to {
        Some(ExportTo::Namespaces(_)) if is_own => 0,
        Some(ExportTo::Namespaces(_)) => 1,
        _ if is_own && vs.semantics == RouteSemantics::GatewayApi => 2,
        _ => 3,
    };
    (class, vs.created, &vs.name, &vs.namespace)
}

#[cfg(test)]
mod tests;
