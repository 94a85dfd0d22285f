//! Endpoint assignments of gateways that send through the waypoints of services (`istio.io/ingress-use-waypoint`, N26).
//!
//! They are in layers above those of the assignments of all proxies. These layers have all assignments of a host if one of its
//! services has the label, so that the other services of the host are not hidden.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Index, IndexDep};
use sluice_envoy::cluster::ClusterSettings;
use sluice_envoy::endpoint::{EndpointClient, Tier, WaypointInstances, build_assignment_through_waypoints};
use sluice_envoy::wire;
use sluice_model::{
    Endpoint, HBONE_PORT, HboneAddress, HboneDestination, Host, Layer, ProxyType, Resource, ResourceKey, ResourceType,
    Service, ServiceKey, ServiceWaypoints, Text,
};

use super::client_service::ClientService;
use super::lookup::WholeServices;
use super::{AssignmentResources, EndpointInputs, EndpointList, add_assignment, assignment_rows, has_eds, tier_of};
use crate::content_names::profile_text;
use crate::outputs::derive_profiles;
use crate::outputs::layers::LayerFacts;
use crate::traffic::ambient::Ambient;
use crate::traffic::destinations::{DestinationInputs, Destinations};
use crate::views::Overlay;

/// Services that gateways reach through waypoints.
#[derive(Clone)]
pub(crate) struct IngressWaypoints<'s> {
    /// The waypoints of each.
    services: Collection<'s, ServiceKey, ServiceWaypoints>,
    /// Their hosts, with the tier of clients that each needs.
    hosts: Collection<'s, Host, Tier>,
    /// These tiers.
    pub(crate) tiers: Collection<'s, Tier, ()>,
    /// Services with a port for HBONE, by network and address.
    by_address: Index<'s, (Text, IpAddr), ServiceKey, ()>,
}

impl<'s> IngressWaypoints<'s> {
    /// Key: service, host or tier. From: `ambient_services`; the tiers also from `services`, `destination_rules` and `mesh_config`.
    /// Changes when: a service gets or loses a waypoint or the label. Size: services with the label. Rejects: none.
    pub(crate) fn new(
        ambient: &Ambient<'s>,
        settings: &Collection<'s, (), ClusterSettings>,
        destinations: &DestinationInputs<'_, 's>,
    ) -> Self {
        let services = ambient.services.filter_map("ingress_waypoints", |_, service| {
            let waypoints = &service.waypoints;
            (waypoints.for_ingress && waypoints.has_any()).then(|| waypoints.clone())
        });
        let by_host = services.index("ingress_waypoints/by-host", |service, _| [(service.host.clone(), ())]);
        let hosts = by_host.distinct("ingress_waypoints/each-host").derive("ingress_waypoints/hosts", |deps| {
            let (destinations, settings) = (Destinations::on(deps, destinations), deps.on(settings));
            move |cx, host, ()| {
                let settings = cx.get(&settings, &())?;
                let tier = tier_of(&settings, &destinations.get(cx, host), has_eds)?;
                // Whether a service has an address depends on the cluster.
                Some(tier.max(Tier::Cluster))
            }
        });
        let tiers =
            hosts.index("ingress_waypoints/by-tier", |_, tier| [(*tier, ())]).distinct("ingress_waypoints/tiers");
        let by_address = ambient.services.index("ingress_waypoints/by-address", |_, service| {
            let accepts = service.ports.iter().any(|port| port.port == u32::from(HBONE_PORT));
            let addresses = service.addresses.iter().filter(|_| accepts);
            addresses.map(|net| ((service.network.clone(), net.addr()), ())).collect::<Vec<_>>()
        });
        Self { services, hosts, tiers, by_address }
    }
}

/// The layers of a gateway that has some, above those of all assignments.
pub(super) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    if client.proxy.proxy_type != ProxyType::Router {
        return Vec::new();
    }
    let profile = |tier: &Tier| profile_text(&EndpointClient::of(client.proxy, *tier).through_waypoints());
    let profiles: Vec<Text> = client.ingress_tiers.iter().map(profile).collect();
    let outbound = client.outbound(&Text::default()).into_iter();
    outbound
        .flat_map(|layer| profiles.iter().map(move |profile| Layer { profile: profile.clone(), ..layer.clone() }))
        .collect()
}

/// Looks up the instances of waypoints, inside a `derive`.
struct InstanceLookup {
    services: Dep<ServiceKey, Service>,
    endpoints: WholeServices,
    by_address: IndexDep<(Text, IpAddr), ServiceKey, ()>,
}

/// Where a gateway sends the requests to a service.
enum FoundPath {
    /// To its endpoints.
    Direct(EndpointList),
    /// To the instances of its waypoints.
    ThroughWaypoints(Vec<FoundInstances>),
}

/// The instances of a waypoint.
struct FoundInstances {
    endpoints: Arc<Vec<Endpoint>>,
    port_name: Text,
    share: Option<u32>,
}

impl FoundInstances {
    fn of(&self) -> WaypointInstances<'_> {
        WaypointInstances { endpoints: &self.endpoints, port_name: &self.port_name, share: self.share }
    }
}

impl InstanceLookup {
    /// The instances of the waypoints of a service. A waypoint whose own service is not known has none.
    fn of(&self, cx: &Context, waypoints: &ServiceWaypoints) -> Vec<FoundInstances> {
        let shares = waypoints.weighted.iter().map(|(address, share)| (address, Some(*share)));
        let only = waypoints.address.iter().filter(|_| waypoints.weighted.is_empty()).map(|address| (address, None));
        shares.chain(only).filter_map(|(address, share)| self.instances(cx, address, share)).collect()
    }

    fn instances(&self, cx: &Context, address: &HboneAddress, share: Option<u32>) -> Option<FoundInstances> {
        let key = match &address.destination {
            HboneDestination::Service(key) => key.clone(),
            HboneDestination::Address { network, address } => {
                let found = cx.by(&self.by_address, &(network.clone(), *address));
                found.into_iter().map(|(key, _)| key).min()?
            }
        };
        let service = cx.get(&self.services, &key)?;
        let port = service.ports.iter().find(|port| u32::from(port.port) == address.port)?;
        Some(FoundInstances { endpoints: self.endpoints.endpoints(cx, &key), port_name: port.name.clone(), share })
    }
}

/// The assignments of gateways for hosts with services that they reach through waypoints.
/// Key: layer and name. From: `ingress_waypoints`, `services`, `endpoints`, `endpoint_chunks`, `destination_rules`,
/// `peer_authentications`, `network_gateways`, `mesh_config`, `proxies` (the facts that endpoints depend on).
/// Changes when: an instance of a waypoint does, the service or its waypoints. Size: ports of such services × (1 + subsets) ×
/// distinct gateways of the service's tier. Rejects: none.
pub(super) fn derive_assignments<'s>(
    inputs: &EndpointInputs<'_, 's>,
    ingress: &IngressWaypoints<'s>,
) -> Collection<'s, ResourceKey, Resource> {
    let clients = Tier::ALL.map(|tier| {
        let name = format!("ingress_waypoints/clients/{tier:?}").to_lowercase();
        let clients = inputs.rare_tiers.clients(inputs.proxies, tier);
        let routers = clients.filter(&format!("{name}/routers"), |_, proxy| proxy.proxy_type == ProxyType::Router);
        derive_profiles(&routers, &name, move |proxy| EndpointClient::of(proxy, tier).through_waypoints())
    });
    ingress.hosts.derive_many("ingress_waypoints/assignments", |deps| {
        let destinations = Destinations::on(deps, &inputs.destinations);
        let endpoints = WholeServices::on(deps, &inputs.endpoints);
        let (settings, waypoints) = (deps.on(inputs.settings), deps.on(&ingress.services));
        let clients = clients.each_ref().map(|clients| deps.on(clients));
        let (services, by_address) = (deps.on(inputs.destinations.services), deps.by(&ingress.by_address));
        let instances = InstanceLookup { services, endpoints, by_address };
        move |cx, host, tier| {
            let (Some(settings), Some(clients)) = (cx.get(&settings, &()), clients.get(*tier as usize)) else {
                return Vec::new();
            };
            let destinations = destinations.get(cx, host);
            let gateways = endpoints.lookup.gateways(cx, false);
            let mut known: BTreeMap<(ServiceKey, bool), FoundPath> = BTreeMap::new();
            let mut rows = Vec::new();
            for (client, _) in cx.all(clients) {
                let seen = Overlay::rows(destinations.special_views(), |view| {
                    let mut assignments = AssignmentResources::new();
                    let Some(service) = ClientService::of(&destinations, view, &client) else { return assignments };
                    let found =
                        known.entry((service.key(), service.has_address())).or_insert_with_key(|(key, addressed)| {
                            match cx.get(&waypoints, key).filter(|_| *addressed) {
                                Some(waypoints) => FoundPath::ThroughWaypoints(instances.of(cx, &waypoints)),
                                None => FoundPath::Direct(endpoints.list(cx, key, destinations.root_namespace())),
                            }
                        });
                    match found {
                        FoundPath::Direct(list) => {
                            service.each_assignment(&settings, &list.backends(), &gateways, |name, inputs| {
                                add_assignment(inputs, name, &mut assignments);
                            });
                        }
                        FoundPath::ThroughWaypoints(found) => {
                            let waypoints: Vec<WaypointInstances<'_>> = found.iter().map(FoundInstances::of).collect();
                            service.each_assignment(&settings, &[], &gateways, |name, inputs| {
                                let built = build_assignment_through_waypoints(inputs, &waypoints, &name);
                                let key = (ResourceType::Endpoint, name.into());
                                assignments.insert(key, Resource::Encoded(wire::encode(&built)));
                            });
                        }
                    }
                    assignments
                });
                rows.extend(assignment_rows(&client, seen));
            }
            rows
        }
    })
}
