//! Endpoint assignments of waypoints: those of the services that each serves.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index};
use sluice_envoy::cluster::{ClusterSettings, ClusterSwitches, east_west_cluster_name, uses_eds, vip_cluster_names};
use sluice_envoy::endpoint::{AssignmentInputs, EndpointClient, Tier, build_assignment, tier};
use sluice_envoy::wire;
use sluice_model::{
    DestinationRule, Layer, MeshConfig, Proxy, ProxyKey, ProxyType, Resource, ResourceKey, ResourceType, Service,
    ServiceKey, Text, View,
};

use super::EndpointLookupInputs;
use super::lookup::WholeServices;
use crate::content_names::profile_text;
use crate::options::GraphOptions;
use crate::traffic::destinations::{DestinationInputs, Destinations};
use crate::traffic::gateways::routers::Router;
use crate::traffic::waypoints::{ServedKey, WaypointProxies, sees_as};

/// The distinct clients of each waypoint and tier: replicas differ in locality, node and labels.
pub(crate) type WaypointClients<'s> = Index<'s, (Router, Tier), (Router, EndpointClient), ()>;

/// The clients of waypoints.
pub(crate) fn derive_clients<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    waypoints: &WaypointProxies<'s>,
) -> WaypointClients<'s> {
    let clients = waypoints.proxies.derive("waypoints/clients-of-proxies", |deps| {
        let proxies = deps.on(proxies);
        move |cx, key, waypoint: &Router| {
            let proxy = cx.get(&proxies, key)?;
            let clients = Tier::ALL.map(|tier| EndpointClient::of_waypoint(&proxy, tier));
            Some((waypoint.clone(), clients.to_vec()))
        }
    });
    let distinct = clients.index("waypoints/clients-by-content", |_, (waypoint, clients)| {
        clients.iter().map(|client| ((waypoint.clone(), client.clone()), ())).collect::<Vec<_>>()
    });
    distinct
        .distinct("waypoints/clients")
        .index("waypoints/clients-by-tier", |(waypoint, client): &(Router, EndpointClient), ()| {
            [((waypoint.clone(), client.tier), ())]
        })
}

/// Settings of the mesh for waypoints: they always send HBONE.
/// Key: none, one record. From: `mesh_config`. Changes when: a setting of clusters does. Size: 1. Rejects: none.
pub(crate) fn derive_settings<'s>(
    mesh: &Collection<'s, (), MeshConfig>,
    options: &GraphOptions,
) -> Collection<'s, (), ClusterSettings> {
    let options = options.clone();
    mesh.map("waypoints/settings", move |(), mesh| {
        ClusterSettings::new(mesh, options.dual_stack)
            .with_hbone(true, true)
            .with_sessions(&options.sessions)
            .with_compliance(options.security.compliance)
            .with_switches(options.clusters)
    })
}

/// Inputs of the derivation of clusters and endpoint assignments of waypoints.
#[derive(Clone)]
pub(crate) struct WaypointOutputInputs<'a, 's> {
    /// Options of the server that change clusters.
    pub(crate) switches: ClusterSwitches,
    /// Settings of the mesh for waypoints: one record.
    pub(crate) settings: Collection<'s, (), ClusterSettings>,
    /// The mesh config: one record.
    pub(crate) mesh: &'a Collection<'s, (), MeshConfig>,
    /// Namespace whose policies are for the whole mesh: one record.
    pub(crate) root_namespace: &'a Collection<'s, (), Text>,
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// Connected waypoints, and what they serve.
    pub(crate) waypoints: &'a WaypointProxies<'s>,
    /// The service and the DestinationRule of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
    /// Endpoints of services, with what decides whether they accept mutual TLS.
    pub(crate) endpoints: EndpointLookupInputs<'a, 's>,
}

/// Looks up a service as its waypoint sees it, inside a `derive`.
#[derive(Clone, Copy)]
pub(in crate::outputs) struct ServedServices {
    services: Dep<ServiceKey, Service>,
    namespaces: Dep<Router, Text>,
    destinations: Destinations,
}

/// A service, and the rule that its waypoint follows.
pub(in crate::outputs) struct ServedService {
    pub(in crate::outputs) service: Arc<Service>,
    pub(in crate::outputs) rule: Option<DestinationRule>,
    /// Namespace of the waypoint.
    pub(in crate::outputs) namespace: Text,
    /// The view in which the waypoint looks up rules.
    pub(in crate::outputs) view: View,
}

impl ServedService {
    /// The tier of clients that a port or subset of it needs.
    pub(in crate::outputs) fn tier(&self, settings: &ClusterSettings) -> Tier {
        let rule = self.rule.as_ref();
        let subsets = rule.into_iter().flat_map(|rule| &rule.subsets).map(|subset| subset.name.as_str());
        let subsets: Vec<&str> = std::iter::once("").chain(subsets).collect();
        let ports = self.service.ports.iter();
        let all = ports.flat_map(|port| subsets.iter().map(move |subset| (port.port, *subset)));
        all.map(|(port, subset)| tier(settings, &self.service, port, subset, rule)).max().unwrap_or_default()
    }
}

impl ServedServices {
    pub(in crate::outputs) fn on<'s>(
        deps: &mut Deps<'s>,
        waypoints: &WaypointProxies<'s>,
        destinations: &DestinationInputs<'_, 's>,
    ) -> Self {
        Self {
            services: deps.on(destinations.services),
            namespaces: deps.on(&waypoints.namespaces),
            destinations: Destinations::on(deps, destinations),
        }
    }

    /// The service; `None` if it is not read, or if it is a host in the mesh that is resolved per request.
    pub(in crate::outputs) fn get(&self, cx: &Context, (waypoint, service): &ServedKey) -> Option<ServedService> {
        let namespace = cx.get(&self.namespaces, waypoint)?;
        let service = cx.get(&self.services, service)?;
        if service.is_dynamic_dns() && !service.mesh_external {
            return None;
        }
        let view = sees_as(waypoint, &namespace);
        // An east-west gateway follows no DestinationRule.
        let rule = if waypoint.is_east_west() { None } else { self.destinations.rule(cx, &service, &view) };
        Some(ServedService { service, rule, namespace: (*namespace).clone(), view })
    }

    /// The services and rules of other hosts.
    pub(in crate::outputs) fn destinations(&self) -> &Destinations {
        &self.destinations
    }
}

/// Endpoint assignments of the services of waypoints.
/// Key: layer and name. From: `waypoints/served`, `waypoints/namespaces`, `services`, `endpoints`, `endpoint_chunks`,
/// `destination_rules`, `network_gateways`, `mesh_config`, `waypoints/clients`.
/// Changes when: an endpoint of the service does, or the rule for it. Size: ports of services of connected waypoints ×
/// distinct clients of the service's tier. Rejects: none.
pub(crate) fn derive_waypoint_assignments<'s>(
    inputs: &WaypointOutputInputs<'_, 's>,
    clients: &WaypointClients<'s>,
) -> Collection<'s, ResourceKey, Resource> {
    inputs.waypoints.served.derive_many("waypoints/endpoint-assignments", |deps| {
        let served = ServedServices::on(deps, inputs.waypoints, &inputs.destinations);
        let (settings, root) = (deps.on(&inputs.settings), deps.on(inputs.root_namespace));
        let clients = deps.by(clients);
        let endpoints = WholeServices::on(deps, &inputs.endpoints);
        move |cx, key: &ServedKey, ()| {
            let (Some(settings), Some(root)) = (cx.get(&settings, &()), cx.get(&root, &())) else { return Vec::new() };
            let Some(found) = served.get(cx, key) else { return Vec::new() };
            let service = &*found.service;
            let tier = found.tier(&settings);
            let of_tier = cx.by(&clients, &(key.0.clone(), tier));
            let distinct: BTreeSet<EndpointClient> = of_tier.into_iter().map(|((_, client), _)| client).collect();
            let list = endpoints.list(cx, &service.key(), &root);
            let backends = list.backends();
            let gateways = endpoints.lookup.gateways(cx, false);
            let mut rows = Vec::new();
            for client in &distinct {
                let layer = Layer { view: key.0.view(), profile: profile_text(client) };
                for port in &service.ports {
                    let names: Vec<(String, &str)> = match key.0.is_east_west() {
                        true => east_west_cluster_name(service, port).map(|name| (name, "")).into_iter().collect(),
                        false => vip_cluster_names(service, port, found.rule.as_ref()).collect(),
                    };
                    for (name, subset) in names {
                        let policy = found.rule.as_ref().and_then(|rule| rule.policy(subset, port.port));
                        if !uses_eds(service, ProxyType::Waypoint, policy.as_ref()) {
                            continue;
                        }
                        let built = build_assignment(
                            &AssignmentInputs {
                                settings: &settings,
                                client,
                                service,
                                port,
                                subset,
                                rule: found.rule.as_ref(),
                                backends: &backends,
                                gateways: &gateways,
                                by_name: false,
                            },
                            &name,
                        );
                        let row = ResourceKey {
                            resource_type: ResourceType::Endpoint,
                            layer: layer.clone(),
                            name: name.into(),
                        };
                        rows.push((row, Resource::Encoded(wire::encode(&built))));
                    }
                }
            }
            rows
        }
    })
}
