//! Endpoint assignments of waypoints: those of the services that each serves.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::cluster::{ClusterSettings, ClusterSwitches, east_west_cluster_name, uses_eds, vip_cluster_names};
use sluice_envoy::endpoint::{AssignmentInputs, EndpointClient, Tier, build_assignment, tier};
use sluice_envoy::wire;
use sluice_model::{
    DestinationRule, Layer, MeshConfig, Proxy, ProxyKey, ProxyType, Resource, ResourceKey, ResourceType, Service,
    ServiceKey, Text, View,
};

use super::EndpointLookupInputs;
use super::lookup::{EndpointList, EndpointLookup, WholeServices};
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

/// Looks up the assignments of services at their waypoints, inside a `derive`.
pub(super) struct WaypointAssignments {
    served: ServedServices,
    settings: Dep<(), ClusterSettings>,
    root_namespace: Dep<(), Text>,
    clients: IndexDep<(Router, Tier), (Router, EndpointClient), ()>,
    endpoints: EndpointLookup,
}

impl WaypointAssignments {
    pub(super) fn on<'s>(
        deps: &mut Deps<'s>,
        inputs: &WaypointOutputInputs<'_, 's>,
        clients: &WaypointClients<'s>,
    ) -> Self {
        Self {
            served: ServedServices::on(deps, inputs.waypoints, &inputs.destinations),
            settings: deps.on(&inputs.settings),
            root_namespace: deps.on(inputs.root_namespace),
            clients: deps.by(clients),
            endpoints: EndpointLookup::on(deps, &inputs.endpoints),
        }
    }

    /// Calls `add` with the inputs of each assignment of a service at its waypoint, its layer and its name. `list` returns its
    /// endpoints, or those of a part, from the service and the root namespace; if it returns none, there are no assignments.
    pub(super) fn each(
        &self,
        cx: &Context,
        key: &ServedKey,
        list: impl FnOnce(&Service, &Text) -> Option<EndpointList>,
        mut add: impl FnMut(&Layer, String, &AssignmentInputs<'_>),
    ) {
        let (settings, root) = (cx.get(&self.settings, &()), cx.get(&self.root_namespace, &()));
        let (Some(settings), Some(root)) = (settings, root) else { return };
        let Some(found) = self.served.get(cx, key) else { return };
        let service = &*found.service;
        let Some(list) = list(service, &root) else { return };
        let of_tier = cx.by(&self.clients, &(key.0.clone(), found.tier(&settings)));
        let distinct: BTreeSet<EndpointClient> = of_tier.into_iter().map(|((_, client), _)| client).collect();
        let backends = list.backends();
        let gateways = self.endpoints.gateways(cx, false);
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
                    let inputs = AssignmentInputs {
                        settings: &settings,
                        client,
                        service,
                        port,
                        subset,
                        rule: found.rule.as_ref(),
                        backends: &backends,
                        gateways: &gateways,
                        by_name: false,
                    };
                    add(&layer, name, &inputs);
                }
            }
        }
    }
}

/// Endpoint assignments of the services of waypoints. Those of large services are in segments, except with node-local traffic.
/// Key: layer and name. From: `waypoints/served`, `waypoints/namespaces`, `services`, `endpoints`, `endpoint_chunks`,
/// `destination_rules`, `network_gateways`, `mesh_config`, `waypoints/clients`.
/// Changes when: an endpoint of the service does, or the rule for it. Size: ports of services of connected waypoints ×
/// distinct clients of the service's tier. Rejects: none.
pub(crate) fn derive_waypoint_assignments<'s>(
    inputs: &WaypointOutputInputs<'_, 's>,
    clients: &WaypointClients<'s>,
) -> Collection<'s, ResourceKey, Resource> {
    inputs.waypoints.served.derive_many("waypoints/endpoint-assignments", |deps| {
        let assignments = WaypointAssignments::on(deps, inputs, clients);
        let endpoints = WholeServices::on(deps, &inputs.endpoints);
        move |cx, key: &ServedKey, ()| {
            let mut rows = Vec::new();
            let list = |service: &Service, root: &Text| {
                let whole = service.node_local || endpoints.lookup.is_listed(cx, &service.key());
                whole.then(|| endpoints.list(cx, &service.key(), root))
            };
            assignments.each(cx, key, list, |layer, name, inputs| {
                let built = build_assignment(inputs, &name);
                let resource_type = ResourceType::Endpoint;
                let row = ResourceKey { resource_type, layer: layer.clone(), name: name.into() };
                rows.push((row, Resource::Encoded(wire::encode(&built))));
            });
            rows
        }
    })
}
