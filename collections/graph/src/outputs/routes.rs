//! Route tables (N18 to N20, N22), assembled from virtual-host segments.

pub(crate) mod gateway_hosts;
mod grpc_tables;
mod router_routes;
mod sidecar_routes;
pub(crate) mod virtual_hosts;

use sluice_engine::{Collection, Index};
use sluice_model::{Host, Layer, MeshConfig, ObjectKey, Proxy, ProxyKey, ProxyType, VirtualService};

use super::Outputs;
use crate::content_names::profile_text;
use crate::options::GraphOptions;
use crate::outputs::layers::LayerFacts;
use crate::traffic::destination_rules::RuleIndex;
use crate::traffic::destinations::DestinationInputs;
use crate::traffic::gateways::routers::Routers;
use grpc_tables::derive_grpc_tables;
use router_routes::{RouterProfile, derive_router_segments};
use sidecar_routes::{RouteCollections, derive_sidecar_segments};
use virtual_hosts::RouteProfile;

/// A sidecar gets the tables of the services it reaches; a router gets its own tables.
pub(crate) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    let profile = profile_text(&RouteProfile::of(client.proxy));
    match client.proxy.proxy_type {
        ProxyType::Sidecar => client.outbound(&profile),
        ProxyType::Router => client.router_view().map(|view| Layer { view, profile }).into_iter().collect(),
        ProxyType::Waypoint | ProxyType::Ztunnel | ProxyType::Agentgateway => Vec::new(),
    }
}

/// Inputs of the derivation of route tables.
pub(crate) struct RouteInputs<'a, 's> {
    /// Settings fixed at start-up.
    pub(crate) options: &'a GraphOptions,
    /// The mesh config: one record.
    pub(crate) mesh: &'a Collection<'s, (), MeshConfig>,
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// Connected routers, and their merged Gateways.
    pub(crate) routers: &'a Routers<'s>,
    /// Every host that some service has.
    pub(crate) hosts: &'a Collection<'s, Host, ()>,
    /// The service of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
    /// DestinationRules by host, with consistent hashing.
    pub(crate) hashing_rules: &'a RuleIndex<'s>,
    /// VirtualServices with their delegates and with `export_to` resolved.
    pub(crate) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
    /// VirtualServices of sidecars by host as declared, wildcards included.
    pub(crate) virtual_services_by_host: &'a Index<'s, Host, ObjectKey, ()>,
}

/// Route tables of sidecars and of routers.
pub(crate) fn derive_routes<'s>(inputs: &RouteInputs<'_, 's>, outputs: &mut Outputs<'s>) {
    let collections = RouteCollections::new(inputs);
    outputs.segments.extend(derive_sidecar_segments(&collections));
    outputs.resources.push(derive_grpc_tables(&collections));
    let profiles = inputs.routers.proxies.derive("routers/with-proxies", |deps| {
        let proxies = deps.on(inputs.proxies);
        move |cx, key, router| {
            let profile = RouteProfile::of(&*cx.get(&proxies, key)?);
            Some(RouterProfile { router: router.clone(), profile })
        }
    });
    let profiles = profiles.index("router_profiles/by-content", |_, profile| [(profile.clone(), ())]);
    let profiles = profiles.distinct("router_profiles");
    outputs.segments.extend(derive_router_segments(&collections, &profiles, &inputs.routers.merged));
}
