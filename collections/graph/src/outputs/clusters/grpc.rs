//! Clusters of gRPC clients without an Envoy (X28).

use std::collections::BTreeMap;

use sluice_engine::Collection;
use sluice_envoy::cluster::{GrpcClusterInputs, build_grpc_clusters};
use sluice_model::{Layer, Resource, ResourceKey, ResourceType, Text};

use super::{ClusterInputs, ServiceIdentities, encoded};
use crate::outputs::layers::LayerFacts;
use crate::traffic::destinations::Destinations;
use crate::views::Overlay;

/// The profile of all gRPC clients: their clusters depend on no property of them.
const PROFILE: &str = "grpc";

/// A gRPC client gets the clusters of services, and no others.
pub(super) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    client.outbound(&PROFILE.into())
}

/// Clusters of gRPC clients.
/// Key: layer and name. From: `hosts`, `services`, `destination_rules`, `identities`, `mesh_config` (trust domain
/// aliases), `proxies` (whether a gRPC client is connected).
/// Changes when: a service does, or a rule for it, or its identities; the first gRPC client connects or the last leaves.
/// Size: ports of services × (1 + subsets), plus the differences of special views; nothing without gRPC clients.
/// Rejects: none.
pub(super) fn derive_grpc<'s>(
    inputs: &ClusterInputs<'_, 's>,
    aliases: &Collection<'s, (), Vec<Text>>,
) -> Collection<'s, ResourceKey, Resource> {
    let clients = inputs.proxies.index("grpc_clients/by-content", |_, proxy| proxy.grpc.then_some(((), ())));
    let clients = clients.distinct("grpc_clients");
    let sessions = inputs.options.sessions.clone();
    inputs.hosts.derive_many("clusters/grpc", |deps| {
        let destinations = Destinations::on(deps, &inputs.destinations);
        let identities = ServiceIdentities { of: deps.on(inputs.identities), aliases: deps.on(aliases) };
        let clients = deps.on(&clients);
        move |cx, host, ()| {
            if cx.get(&clients, &()).is_none() {
                return Vec::new();
            }
            let destinations = destinations.get(cx, host);
            let seen = Overlay::rows(destinations.special_views(), |view| {
                let Some((service, rule)) = destinations.seen_from(view) else { return BTreeMap::new() };
                let identities = identities.get(cx, &service.key());
                let keeps_sessions = sessions.enabled_for(&service.labels);
                let (service, rule) = (&*service, rule.as_ref());
                let of_port = |port| {
                    build_grpc_clusters(&GrpcClusterInputs {
                        service,
                        port,
                        rule,
                        identities: &identities,
                        keeps_sessions,
                    })
                };
                let clusters = service.ports.iter().flat_map(of_port);
                clusters.map(|cluster| (cluster.name.clone(), encoded(&cluster))).collect()
            });
            let row = |(view, name, resource): (_, String, Resource)| {
                let layer = Layer { view, profile: PROFILE.into() };
                (ResourceKey { resource_type: ResourceType::Cluster, layer, name: name.into() }, resource)
            };
            seen.into_iter().map(row).collect()
        }
    })
}
