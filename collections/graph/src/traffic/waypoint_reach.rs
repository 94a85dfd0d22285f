//! The hosts that waypoints send to besides the services that they serve: destinations of the routes of these services,
//! JWKS servers that proxies fetch from, and services of the mesh's extension providers; for east-west gateways also
//! destinations of TLS that they pass through. A waypoint gets the outbound clusters of no other hosts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::{
    AmbientService, Attachment, Host, MeshConfig, ObjectKey, Service, ServiceKey, Text, VirtualService,
};

use super::gateways::MergedGateway;
use super::gateways::reach::{KeyServers, Reach, ReachClient, index_key_servers, named_service, provider_services};
use super::gateways::routers::{Router, Routers};
use super::virtual_services::{destination_hosts, index_by_gateway};
use super::waypoints::{ServedKey, WaypointProxies, policy_target};
use crate::host_patterns::covering_hosts;
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;

/// Why a waypoint sends to hosts.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum ReachReason {
    /// Routes and policies of a service that it serves.
    Service(ServiceKey),
    /// Extension providers, and its own policies.
    Mesh,
    /// Routes of its Gateway.
    Gateway,
}

/// A waypoint, and why it sends to hosts.
type ReachSource = (Router, ReachReason);

/// Hosts, each with the namespaces of its services; an empty set is any namespace.
type Reached = Vec<(Host, BTreeSet<Text>)>;

/// Inputs of this derivation.
pub(crate) struct WaypointReachInputs<'a, 's> {
    pub(crate) objects: &'a ObjectCollections<'s>,
    pub(crate) mesh: &'a Collection<'s, (), MeshConfig>,
    pub(crate) root_namespace: &'a Collection<'s, (), Text>,
    pub(crate) waypoints: &'a WaypointProxies<'s>,
    /// East-west gateways are among them.
    pub(crate) routers: &'a Routers<'s>,
    pub(crate) services: &'a Collection<'s, ServiceKey, Service>,
    pub(crate) services_by_host: &'a Index<'s, Host, ServiceKey, ()>,
    pub(crate) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
    /// VirtualServices of sidecars by host as declared.
    pub(crate) virtual_services_by_host: &'a Index<'s, Host, ObjectKey, ()>,
}

/// Derives the hosts that waypoints send to.
pub(crate) fn derive_waypoint_reach<'s>(inputs: &WaypointReachInputs<'_, 's>, options: &GraphOptions) -> Reach<'s> {
    let servers = index_key_servers("waypoints/key-servers", inputs.objects, options);
    let views = inputs.waypoints.proxies.derive("waypoints/reach-views", |deps| {
        let namespaces = deps.on(&inputs.waypoints.namespaces);
        move |cx, _, waypoint: &Router| {
            let namespace = cx.get(&namespaces, waypoint)?;
            Some(ReachClient::waypoint(waypoint, &namespace).view())
        }
    });
    let others = [derive_provided(inputs, &servers), derive_passed(inputs)];
    let reached = derive_routed(inputs, &servers).union("waypoints/reach-sources", &others);
    let by_client: Index<'s, (Router, Host), ReachSource, BTreeSet<Text>> =
        reached.index("waypoints/reach-by-client", |(waypoint, _): &ReachSource, reached: &Reached| {
            let row =
                |(host, namespaces): &(Host, BTreeSet<Text>)| ((waypoint.clone(), host.clone()), namespaces.clone());
            reached.iter().map(row).collect::<Vec<_>>()
        });
    let merged = by_client.group("waypoints/reach-merged", |_, rows| {
        let any = rows.iter().any(|(_, namespaces)| namespaces.is_empty());
        let all = rows.iter().flat_map(|(_, namespaces)| namespaces.iter().cloned());
        Some(if any { BTreeSet::new() } else { all.collect::<BTreeSet<Text>>() })
    });
    let hosts = merged.derive_many("waypoints/reach-hosts", |deps| {
        let namespaces = deps.on(&inputs.waypoints.namespaces);
        move |cx, (waypoint, host): &(Router, Host), reached: &BTreeSet<Text>| {
            let client = cx.get(&namespaces, waypoint).map(|namespace| ReachClient::waypoint(waypoint, &namespace));
            client.into_iter().map(|client| ((client, host.clone()), reached.clone())).collect()
        }
    });
    let by_host = hosts.index("waypoints/reach-by-host", |(_, host): &(ReachClient, Host), namespaces| {
        [(host.clone(), BTreeSet::clone(namespaces))]
    });
    Reach { views, by_host }
}

/// Looks up the JWKS servers of the policies of a waypoint or of one of its services, inside a `derive`.
struct KeyServerLookup {
    servers: IndexDep<Text, ObjectKey, (Attachment, BTreeSet<Host>)>,
    root: Dep<(), Text>,
    namespaces: Dep<Router, Text>,
    declared: Dep<ServiceKey, AmbientService>,
}

impl KeyServerLookup {
    fn on<'s>(deps: &mut Deps<'s>, inputs: &WaypointReachInputs<'_, 's>, servers: &KeyServers<'s>) -> Self {
        Self {
            servers: deps.by(servers),
            root: deps.on(inputs.root_namespace),
            namespaces: deps.on(&inputs.waypoints.namespaces),
            declared: deps.on(&inputs.waypoints.services),
        }
    }

    fn get(&self, cx: &Context, waypoint: &Router, service: Option<&ServiceKey>) -> BTreeSet<Host> {
        let (Some(root), Some(namespace)) = (cx.get(&self.root, &()), cx.get(&self.namespaces, waypoint)) else {
            return BTreeSet::new();
        };
        let declared = service.and_then(|service| cx.get(&self.declared, service));
        let target = policy_target(waypoint, &namespace, &root, declared.as_deref());
        let namespaces = target.namespaces_root_first();
        let rows = namespaces.into_iter().flat_map(|namespace| cx.by(&self.servers, &Text::from(namespace)));
        let rows = rows.filter(|(policy, found)| found.0.is_for_waypoint(policy, &target));
        rows.flat_map(|(_, found)| found.1.clone()).collect()
    }
}

/// The destinations of the routes of each service that the waypoint does not serve, or that are outside of the mesh, and
/// the JWKS servers of its policies.
/// Key: waypoint and service. From: `waypoints/served`, `virtual_services`, `services`, `request_authentications`.
/// Changes when: a VirtualService for the host of the service does, or a policy for it. Size: services with such routes.
/// Rejects: none.
fn derive_routed<'s>(
    inputs: &WaypointReachInputs<'_, 's>,
    servers: &KeyServers<'s>,
) -> Collection<'s, ReachSource, Reached> {
    inputs.waypoints.served.derive_many("waypoints/routed-hosts", |deps| {
        let servers = KeyServerLookup::on(deps, inputs, servers);
        let (by_host, virtual_services) = (deps.by(inputs.virtual_services_by_host), deps.on(inputs.virtual_services));
        let (services_by_host, services) = (deps.by(inputs.services_by_host), deps.on(inputs.services));
        let served = deps.on(&inputs.waypoints.served);
        move |cx, (waypoint, service): &ServedKey, ()| {
            // VirtualServices with wildcard hosts too: without a cluster, their routes would answer 503.
            let routes = covering_hosts(&service.host).flat_map(|host| cx.by(&by_host, &host));
            let routes: Vec<_> = routes.filter_map(|(key, _)| cx.get(&virtual_services, &key)).collect();
            let hosts: BTreeSet<Host> = routes.iter().flat_map(|route| destination_hosts(route, "")).cloned().collect();
            let is_own = |host: &Host| {
                cx.by(&services_by_host, host).iter().any(|(key, _)| {
                    cx.get(&served, &(waypoint.clone(), key.clone())).is_some()
                        && cx.get(&services, key).is_some_and(|service| !service.mesh_external)
                })
            };
            let mut reached: BTreeSet<Host> = hosts.into_iter().filter(|host| !is_own(host)).collect();
            reached.extend(servers.get(cx, waypoint, Some(service)));
            let reached: Reached = reached.into_iter().map(|host| (host, BTreeSet::new())).collect();
            if reached.is_empty() {
                return Vec::new();
            }
            vec![((waypoint.clone(), ReachReason::Service(service.clone())), reached)]
        }
    })
}

/// The services of the mesh's extension providers, for each waypoint, and the JWKS servers of its own policies.
/// Key: waypoint. From: `waypoints/namespaces`, `mesh_config`, `request_authentications`. Changes when: a provider does, or
/// a policy for the waypoint. Size: distinct waypoints. Rejects: none.
fn derive_provided<'s>(
    inputs: &WaypointReachInputs<'_, 's>,
    servers: &KeyServers<'s>,
) -> Collection<'s, ReachSource, Reached> {
    let providers = inputs.mesh.map("waypoints/providers", |(), mesh| provider_services(mesh));
    inputs.waypoints.namespaces.derive_many("waypoints/provider-hosts", |deps| {
        let servers = KeyServerLookup::on(deps, inputs, servers);
        let providers = deps.on(&providers);
        move |cx, waypoint: &Router, _| {
            let providers = cx.get(&providers, &()).map(|providers| (*providers).clone()).unwrap_or_default();
            let mut reached: BTreeMap<Host, BTreeSet<Text>> = BTreeMap::new();
            for (host, namespace) in providers.iter().map(|name| named_service(name)) {
                reached.entry(host).or_default().extend(namespace);
            }
            // A service of any namespace.
            let any = providers.iter().map(|name| named_service(name)).filter(|(_, namespace)| namespace.is_none());
            reached.extend(any.map(|(host, _)| (host, BTreeSet::new())));
            reached.extend(servers.get(cx, waypoint, None).into_iter().map(|host| (host, BTreeSet::new())));
            let reached: Reached = reached.into_iter().collect();
            if reached.is_empty() { Vec::new() } else { vec![((waypoint.clone(), ReachReason::Mesh), reached)] }
        }
    })
}

/// The destinations of TLS that east-west gateways pass through.
/// Key: waypoint. From: `merged_gateways`, `virtual_services`. Changes when: a VirtualService that is bound to its Gateway
/// does. Size: distinct east-west gateways. Rejects: none.
fn derive_passed<'s>(inputs: &WaypointReachInputs<'_, 's>) -> Collection<'s, ReachSource, Reached> {
    let by_gateway = index_by_gateway("waypoints/virtual-services-by-gateway", inputs.virtual_services);
    inputs.routers.merged.derive_many("waypoints/passed-hosts", |deps| {
        let (by_gateway, virtual_services) = (deps.by(&by_gateway), deps.on(inputs.virtual_services));
        move |cx, router: &Router, merged: &MergedGateway| {
            if !router.is_east_west() {
                return Vec::new();
            }
            let gateways = merged.gateways();
            let bound = gateways.iter().flat_map(|gateway| cx.by(&by_gateway, gateway));
            let bound = bound.filter_map(|(key, _)| cx.get(&virtual_services, &key));
            let mut hosts: BTreeSet<Host> = BTreeSet::new();
            for virtual_service in bound {
                let routes = virtual_service.tls.iter().flat_map(|route| &route.route);
                hosts.extend(routes.map(|route| route.destination.host.clone()));
            }
            let reached: Reached = hosts.into_iter().map(|host| (host, BTreeSet::new())).collect();
            if reached.is_empty() { Vec::new() } else { vec![((router.clone(), ReachReason::Gateway), reached)] }
        }
    })
}
