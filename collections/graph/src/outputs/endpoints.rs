//! Endpoint assignments (S07, N16, N17).

mod client_service;
pub(crate) mod ingress_waypoints;
mod large;
mod lookup;
pub(crate) mod self_discovery;
pub(crate) mod waypoints;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sluice_engine::Collection;
use sluice_envoy::cluster::{ClusterSettings, uses_eds};
use sluice_envoy::endpoint::{
    AssignmentInputs, EndpointClient, Tier, build_assignment, build_assignment_by_locality, tier,
};
use sluice_envoy::wire;
use sluice_model::{
    Host, Layer, Proxy, ProxyKey, ProxyType, Resource, ResourceKey, ResourceType, Segment, SegmentKey, Service,
    ServiceKey, Text, View,
};

use super::{Outputs, derive_passing_profiles, derive_profiles};
use crate::content_names::profile_text;
use crate::outputs::layers::LayerFacts;
use crate::proxies::tiers::RareTiers;
use crate::traffic::destinations::{DestinationInputs, Destinations, HostDestinations};
use crate::views::Overlay;
use client_service::ClientService;
use ingress_waypoints::IngressWaypoints;
pub(crate) use lookup::EndpointLookupInputs;
pub(in crate::outputs) use lookup::{EndpointList, EndpointLookup};
use self_discovery::ReplicaGroup;
use waypoints::{WaypointClients, WaypointOutputInputs};

/// The layers of all tiers: each service is in the layers of the tier that it needs.
pub(crate) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    if client.proxy.proxy_type == ProxyType::Waypoint {
        let Some(view) = client.router_view() else { return Vec::new() };
        let of_tier = |tier: &Tier| profile_text(&EndpointClient::of_waypoint(client.proxy, *tier));
        let own = client.tiers.iter().map(|tier| Layer { view: view.clone(), profile: of_tier(tier) });
        return own.chain(outbound_layers(client)).collect();
    }
    let mut layers = ingress_waypoints::layers(client);
    layers.extend(outbound_layers(client));
    layers
}

/// The layers of the assignments of outbound clusters.
fn outbound_layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    let plain = || client.tiers.iter().map(|tier| EndpointClient::of_outbound(client.proxy, *tier));
    let passing = plain().filter(|_| client.auto_passthrough).map(EndpointClient::passing_through);
    let profiles: Vec<Text> = plain().chain(passing).map(|profile| profile_text(&profile)).collect();
    let outbound = client.outbound(&Text::default()).into_iter();
    outbound
        .flat_map(|layer| profiles.iter().map(move |profile| Layer { profile: profile.clone(), ..layer.clone() }))
        .collect()
}

/// Inputs of the derivation of endpoint assignments.
pub(crate) struct EndpointInputs<'a, 's> {
    /// Settings that assignments depend on: one record.
    pub(crate) settings: &'a Collection<'s, (), ClusterSettings>,
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// Which of them are clients of a rare tier.
    pub(crate) rare_tiers: &'a RareTiers<'s>,
    /// Routers and east-west gateways with a server of TLS mode AUTO_PASSTHROUGH.
    pub(crate) auto_passthrough: &'a Collection<'s, ProxyKey, ()>,
    /// Every host that some service has.
    pub(crate) hosts: &'a Collection<'s, Host, ()>,
    /// The service and the DestinationRule of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
    /// Endpoints of services, with what decides whether they accept mutual TLS.
    pub(crate) endpoints: EndpointLookupInputs<'a, 's>,
    /// Services that gateways reach through waypoints, in ambient mode.
    pub(crate) ingress_waypoints: Option<&'a IngressWaypoints<'s>>,
    /// What the assignments of waypoints are derived from, and their clients, in ambient mode.
    pub(crate) waypoints: Option<(WaypointOutputInputs<'a, 's>, WaypointClients<'s>)>,
    /// The group of replicas of each proxy that discovers itself.
    pub(crate) replica_groups: &'a Collection<'s, ProxyKey, ReplicaGroup>,
    /// Namespace whose policies are for the whole mesh: one record.
    pub(crate) root_namespace: &'a Collection<'s, (), Text>,
    /// The ports of hosts that UDPRoutes lead to, if UDPRoutes have effect.
    pub(crate) udp_backends: Option<&'a Collection<'s, Host, BTreeSet<u16>>>,
    /// Whether some proxies may get endpoints as resources of their own.
    pub(crate) by_locality: bool,
}

/// The distinct clients of each tier.
type Clients<'s> = [Collection<'s, EndpointClient, ()>; Tier::ALL.len()];

/// Endpoint assignments of every cluster that gets its endpoints by EDS, for sidecars and for gateways; for routers
/// with a server of TLS mode AUTO_PASSTHROUGH also those of the clusters they select by server name. Those of large
/// services are in segments, which are returned with those at waypoints.
/// Key: layer and name. From: `hosts`, `services`, `endpoints`, `destination_rules`, `peer_authentications`,
/// `network_gateways`, `mesh_config`, `proxies` (the facts that endpoints depend on).
/// Changes when: an endpoint of the service is added, removed or changed, or a rule or policy for it.
/// Size: ports of services × (1 + subsets) × distinct clients of the service's tier. Rejects: none.
pub(crate) fn derive_endpoint_assignments<'s>(
    inputs: &EndpointInputs<'_, 's>,
    outputs: &mut Outputs<'s>,
) -> Vec<Collection<'s, SegmentKey, Segment>> {
    let clients: Clients<'s> = Tier::ALL.map(|tier| {
        let name = format!("endpoint_clients/{tier:?}").to_lowercase();
        let plain = derive_profiles(inputs.rare_tiers.clients(inputs.proxies, tier), &name, move |proxy| {
            EndpointClient::of_outbound(proxy, tier)
        });
        let passing = derive_passing_profiles(
            inputs.proxies,
            inputs.auto_passthrough,
            &format!("{name}/passing"),
            move |proxy| EndpointClient::of_outbound(proxy, tier).passing_through(),
        );
        plain.union(&format!("{name}/all"), &[passing])
    });
    let assignments = inputs.hosts.derive_many("endpoint_assignments", |deps| {
        let destinations = Destinations::on(deps, &inputs.destinations);
        let endpoints = EndpointLookup::on(deps, &inputs.endpoints);
        let settings = deps.on(inputs.settings);
        let clients = clients.each_ref().map(|clients| deps.on(clients));
        let udp_backends = inputs.udp_backends.map(|ports| deps.on(ports));
        move |cx, host, ()| {
            let Some(settings) = cx.get(&settings, &()) else { return Vec::new() };
            let destinations = destinations.get(cx, host);
            let udp_ports = udp_backends.as_ref().and_then(|ports| cx.get(ports, host));
            // Clients are read for services with assignments here only: large services may have very many.
            let counts = |service: &Service| has_eds(service) && endpoints.is_listed(cx, &service.key());
            // Of several services of a host, one may be large: its assignments are hidden where another one is reached.
            let several = destinations.has_several_services();
            let tier = tier_of(&settings, &destinations, counts).or_else(|| several.then(Tier::default));
            let Some(tier) = tier else { return Vec::new() };
            let Some(clients) = clients.get(tier as usize) else { return Vec::new() };
            let gateways = endpoints.gateways(cx, false);
            let mut known: BTreeMap<ServiceKey, Option<EndpointList>> = BTreeMap::new();
            let mut rows = Vec::new();
            for (client, _) in cx.all(clients) {
                let seen = Overlay::rows(destinations.special_views(), |view| {
                    let mut assignments = AssignmentResources::new();
                    let service = ClientService::of(&destinations, view, &client);
                    let Some(service) = service else { return assignments };
                    let service = service.with_udp_ports(udp_ports.as_deref());
                    let found = known
                        .entry(service.key())
                        .or_insert_with_key(|key| endpoints.of_service(cx, key, destinations.root_namespace()));
                    let Some(found) = found else {
                        if several {
                            service.each_assignment(&settings, &[], &gateways, |name, _| {
                                assignments.insert((ResourceType::Endpoint, name.into()), IN_SEGMENTS);
                            });
                        }
                        return assignments;
                    };
                    service.each_assignment(&settings, &found.backends(), &gateways, |name, inputs| {
                        add_assignment(inputs, name, &mut assignments);
                    });
                    assignments
                });
                let whole = seen.into_iter().filter(|(.., resource)| *resource != IN_SEGMENTS);
                rows.extend(assignment_rows(&client, whole));
            }
            rows
        }
    });
    outputs.resources.push(assignments);
    let ingress = inputs.ingress_waypoints.map(|ingress| ingress_waypoints::derive_assignments(inputs, ingress));
    outputs.resources.extend(ingress);
    outputs.resources.push(self_discovery::derive_assignments(inputs));
    large::derive_assignments(inputs, &clients, outputs)
}

/// Assignments, and endpoints that are resources of their own.
type AssignmentResources = BTreeMap<(ResourceType, Text), Resource>;

/// Stands for an assignment of a large service, which is in segments.
const IN_SEGMENTS: Resource = Resource::Encoded(Bytes::new());

/// Adds the assignment of a cluster, with its endpoints or without.
fn add_assignment(inputs: &AssignmentInputs<'_>, cluster: String, resources: &mut AssignmentResources) {
    let assignment = if inputs.client.by_locality {
        let (assignment, endpoints) = build_assignment_by_locality(inputs, &cluster);
        for (name, endpoint) in endpoints {
            resources.entry((ResourceType::LbEndpoint, name)).or_insert(Resource::Encoded(endpoint.into()));
        }
        assignment
    } else {
        build_assignment(inputs, &cluster)
    };
    resources.insert((ResourceType::Endpoint, cluster.into()), Resource::Encoded(wire::encode(&assignment)));
}

/// The rows of the assignments of a client, by view and name.
fn assignment_rows(
    client: &EndpointClient,
    seen: impl IntoIterator<Item = (View, (ResourceType, Text), Resource)>,
) -> impl Iterator<Item = (ResourceKey, Resource)> {
    let profile = profile_text(client);
    seen.into_iter().map(move |(view, (resource_type, name), resource)| {
        let layer = Layer { view, profile: profile.clone() };
        (ResourceKey { resource_type, layer, name }, resource)
    })
}

/// Whether some proxies get the endpoints of a service by EDS.
fn has_eds(service: &Service) -> bool {
    uses_eds(service, ProxyType::Router, None)
}

/// The tier of clients that a host's services need in any view; `None` if no service `counts`.
///
/// All views have the same tier, so that the resources of a view can be compared with those of the view below.
pub(super) fn tier_of(
    settings: &ClusterSettings,
    destinations: &HostDestinations,
    counts: impl Fn(&Service) -> bool,
) -> Option<Tier> {
    let views = destinations.special_views().chain([View::Base]);
    views
        .filter_map(|view| destinations.seen_from(&view))
        .filter(|(service, _)| counts(service))
        .flat_map(|(service, rule)| {
            let subsets: Vec<Text> = rule.iter().flat_map(|rule| &rule.subsets).map(|s| s.name.clone()).collect();
            let service = service.clone();
            let all: Vec<Tier> = service
                .ports
                .iter()
                .flat_map(|port| {
                    let subsets = std::iter::once("").chain(subsets.iter().map(|name| name.as_str()));
                    subsets.map(|subset| tier(settings, &service, port.port, subset, rule.as_ref())).collect::<Vec<_>>()
                })
                .collect();
            all
        })
        .max()
}
