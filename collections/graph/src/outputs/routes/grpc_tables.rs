//! Route tables of gRPC clients without an Envoy (X28): one for each service port, with the name of its cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_engine::Collection;
use sluice_envoy::name::outbound_cluster;
use sluice_envoy::route::grpc_table;
use sluice_model::{Host, Layer, Resource, ResourceKey, ResourceType, SidecarScope, Text, View};

use super::sidecar_routes::{RouteCollections, RouteReads};
use super::virtual_hosts::{RouteContext, RouteScope, VirtualHosts, special_namespaces, uses_labels, virtual_hosts};
use crate::host_patterns::covering_hosts;
use crate::traffic::sidecars::{EgressScope, SidecarLookup};
use crate::views::Overlay;

/// Route tables of gRPC clients. A table has the virtual host of its service, and those of services with a wildcard host
/// that covers it. The table of a port that is not HTTP has none.
/// Key: layer and name. From: `hosts`, `services`, `virtual_services`, `destination_rules`, `mesh_config`, the profiles of
/// gRPC clients.
/// Changes when: a service of the host does, or a VirtualService or rule for it.
/// Size: ports of services × (1 + special namespaces) × profiles of gRPC clients; nothing without them. Rejects: none.
pub(super) fn derive_grpc_tables<'s>(inputs: &RouteCollections<'s>) -> Collection<'s, ResourceKey, Resource> {
    inputs.hosts.derive_many("routes/grpc", |d| {
        let reads = RouteReads::on(d, inputs);
        let sidecars = SidecarLookup::on(d, &inputs.sidecars);
        let (profiles, selections) = (d.on(&inputs.grpc_profiles), d.on(&inputs.selections));
        move |cx, host, ()| {
            let profiles = cx.all(&profiles);
            if profiles.is_empty() {
                return Vec::new();
            }
            let mesh = reads.at(cx);
            let is_service = |host: &Host| mesh.services(host).iter().next().is_some();
            let wildcards = covering_hosts(host).skip(1).filter(is_service);
            let hosts: Vec<Host> = std::iter::once(host.clone()).chain(wildcards).collect();
            let namespaces: BTreeSet<Text> = hosts.iter().flat_map(|host| special_namespaces(&mesh, host)).collect();
            let labelled = hosts.iter().any(|host| uses_labels(&mesh, host));
            let scopes = sidecars.scopes(cx, host, |interest| interest.listed || interest.routed);
            let scopes: BTreeMap<SidecarScope, Arc<EgressScope>> =
                scopes.into_iter().map(|scope| (scope.scope.clone(), scope)).collect();
            let mut views: Vec<View> = namespaces.into_iter().map(View::Namespace).collect();
            views.extend(scopes.values().map(|scope| scope.view()));
            if labelled {
                let selections = cx.all(&selections).into_iter();
                views.extend(selections.map(|((namespace, labels), _)| View::Selected { namespace, labels }));
                views.extend(scopes.keys().flat_map(|scope| sidecars.labelled(cx, scope)));
            }
            let services = mesh.services(host);
            let of_sidecars = sidecars.host(cx, host);
            let mut rows = Vec::new();
            for (text, profile) in &profiles {
                let seen = Overlay::rows(views.iter().cloned(), |view| {
                    let service = match view.sidecar() {
                        Some(scope) => of_sidecars.service(scope, services.iter()),
                        None => services.visible_to(view.namespace()).cloned(),
                    };
                    let Some(service) = service else { return BTreeMap::new() };
                    let client = RouteScope {
                        namespace: view.namespace().into(),
                        labels: view.labels().cloned().unwrap_or_default(),
                        scope: view.sidecar().and_then(|scope| scopes.get(scope).cloned()),
                    };
                    let found: VirtualHosts =
                        hosts.iter().flat_map(|host| virtual_hosts(&mesh, host, &client, profile)).collect();
                    let table = |port: u16| {
                        let (name, of_port) = (outbound_cluster(u32::from(port), "", host.as_str()), port.to_string());
                        let of_table = found.iter().filter(|((table, _), _)| table.as_str() == of_port);
                        let encoded = grpc_table(&name, of_table.map(|(_, bytes)| bytes.as_ref()));
                        (name, Resource::Encoded(encoded))
                    };
                    service.ports.iter().map(|port| table(port.port)).collect()
                });
                rows.extend(seen.into_iter().map(|(view, name, resource)| {
                    let layer = Layer { view, profile: text.clone() };
                    (ResourceKey { resource_type: ResourceType::Route, layer, name: name.into() }, resource)
                }));
            }
            rows
        }
    })
}
