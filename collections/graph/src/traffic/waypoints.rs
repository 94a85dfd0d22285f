//! Connected waypoint proxies, and the services and workloads that each serves (N23).
//!
//! A waypoint is found by the address through which clients reach it, as ztunnel gets it: the host or an address of a
//! Service of the proxy. So it serves exactly the services and workloads for which ztunnel sends traffic to it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_model::{
    AmbientService, HboneDestination, Proxy, ProxyKey, ProxyType, Service, ServiceKey, ServiceSource, Text, Timestamp,
    View, WaypointTarget,
};

use super::ambient::Ambient;
use super::gateways::routers::Router;
use crate::proxies::workloads::{Workload, WorkloadName};

/// A service that a waypoint serves.
pub(crate) type ServedKey = (Router, ServiceKey);

/// Connected waypoints, and what they serve.
#[derive(Clone)]
pub(crate) struct WaypointProxies<'s> {
    /// The waypoint that each proxy is a replica of.
    pub(crate) proxies: Collection<'s, ProxyKey, Router>,
    /// What each distinct waypoint serves.
    pub(crate) scopes: Collection<'s, Router, WaypointScope>,
    /// The namespace of each distinct waypoint. Services read this, so that other services of the waypoint do not
    /// matter.
    pub(crate) namespaces: Collection<'s, Router, Text>,
    /// The services of each distinct waypoint.
    pub(crate) served: Collection<'s, ServedKey, ()>,
    /// Services as declared: policies refer to the declaring objects.
    pub(crate) services: Collection<'s, ServiceKey, AmbientService>,
}

/// What a waypoint serves.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct WaypointScope {
    /// Namespace of the waypoint.
    pub(crate) namespace: Text,
    /// Its services, older ones first.
    pub(crate) services: Vec<ServiceKey>,
    /// Addresses of its workloads.
    pub(crate) workloads: Vec<IpAddr>,
    /// Whether it has workloads, even without an address.
    pub(crate) has_workloads: bool,
}

/// The view in which a waypoint of a namespace looks up rules.
pub(crate) fn sees_as(waypoint: &Router, namespace: &Text) -> View {
    View::Selected { namespace: namespace.clone(), labels: waypoint.labels.clone() }
}

/// The waypoint as a target of policies, with one of its services.
pub(crate) fn policy_target<'a>(
    waypoint: &'a Router,
    namespace: &'a Text,
    root_namespace: &'a Text,
    service: Option<&'a AmbientService>,
) -> WaypointTarget<'a> {
    WaypointTarget {
        namespace,
        labels: &waypoint.labels,
        root_namespace,
        service: service.map(|service| (service.source, &service.object)),
    }
}

/// The order of services in a waypoint's listener.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ServiceOrder {
    created: Timestamp,
    name: Text,
}

impl ServiceOrder {
    fn of(service: &AmbientService) -> Self {
        let name = match service.source {
            ServiceSource::Kubernetes => service.object.name.clone(),
            ServiceSource::ServiceEntry => service.host.0.clone(),
        };
        Self { created: service.created, name }
    }
}

/// Inputs of the derivation of waypoints.
pub(crate) struct WaypointProxyInputs<'a, 's> {
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// The router or waypoint that each proxy is a replica of.
    pub(crate) replicas: &'a Collection<'s, ProxyKey, Router>,
    /// Workloads.
    pub(crate) workloads: &'a Collection<'s, WorkloadName, Workload>,
    /// Services, merged over clusters.
    pub(crate) services: &'a Collection<'s, ServiceKey, Service>,
    /// Services and workloads with their waypoints.
    pub(crate) ambient: &'a Ambient<'s>,
}

/// Derives connected waypoints and what they serve.
pub(crate) fn derive_waypoint_proxies<'s>(inputs: &WaypointProxyInputs<'_, 's>) -> WaypointProxies<'s> {
    let proxies = derive_proxies(inputs);
    let scopes = derive_scopes(inputs, &proxies);
    let served = scopes.flat_map("waypoints/served", |waypoint: &Router, scope: &WaypointScope| {
        let row = |service: &ServiceKey| ((waypoint.clone(), service.clone()), ());
        scope.services.iter().map(row).collect::<Vec<_>>()
    });
    let namespaces = scopes.map("waypoints/namespaces", |_, scope| scope.namespace.clone());
    WaypointProxies { proxies, scopes, namespaces, served, services: inputs.ambient.services.clone() }
}

/// Connected waypoints.
/// Key: `ProxyKey`. From: `proxies`, `routers/replicas`.
/// Changes when: a waypoint connects or leaves, its labels or its Services change.
/// Size: connected waypoints. Rejects: none.
fn derive_proxies<'s>(inputs: &WaypointProxyInputs<'_, 's>) -> Collection<'s, ProxyKey, Router> {
    let waypoints = inputs.proxies.filter("waypoints/proxies", |_, proxy| proxy.proxy_type == ProxyType::Waypoint);
    waypoints.derive("waypoints/replicas", |deps| {
        let replicas = deps.on(inputs.replicas);
        move |cx, key, _| cx.get(&replicas, key).map(|waypoint| (*waypoint).clone())
    })
}

/// What each distinct waypoint serves.
/// Key: `Router`. From: `waypoints/replicas`, `workloads`, `services` (addresses of the waypoint's own),
/// `ambient_services`, `ambient_workloads`.
/// Changes when: a service or workload begins or stops to use the waypoint, or such a workload gets another address. That of an
/// east-west gateway: a service becomes global or no longer is, or gets another waypoint.
/// Size: distinct connected waypoints. Rejects: none.
fn derive_scopes<'s>(
    inputs: &WaypointProxyInputs<'_, 's>,
    proxies: &Collection<'s, ProxyKey, Router>,
) -> Collection<'s, Router, WaypointScope> {
    let services: Index<'s, HboneDestination, ServiceKey, ServiceOrder> =
        inputs.ambient.services.index("waypoints/services-by-waypoint", |_, service| {
            let waypoints: BTreeSet<&HboneDestination> = service.waypoints.destinations().collect();
            let row = |waypoint: &HboneDestination| (waypoint.clone(), ServiceOrder::of(service));
            waypoints.into_iter().map(row).collect::<Vec<_>>()
        });
    let workloads: Vec<Index<'s, HboneDestination, Text, Vec<IpAddr>>> = inputs
        .ambient
        .workloads
        .iter()
        .map(|workloads| {
            let name = workloads.name().trim_start_matches("ambient_workloads/");
            workloads.index(&format!("waypoints/workloads-by-waypoint/{name}"), |_, workload| workload.waypoint.clone())
        })
        .collect();
    let global: Index<'s, (), ServiceKey, ServiceOrder> = inputs
        .ambient
        .services
        .index("waypoints/global-services", |_, service| service.global.then(|| ((), ServiceOrder::of(service))));
    // A waypoint of a global service is reached from other networks like the service.
    let hops = inputs.ambient.services.index("waypoints/global-waypoints", |_, service| {
        let waypoints: BTreeSet<&ServiceKey> = match service.global {
            true => service.waypoints.destinations().filter_map(HboneDestination::service).collect(),
            false => BTreeSet::new(),
        };
        waypoints.into_iter().map(|waypoint| (((), waypoint.clone()), ())).collect::<Vec<_>>()
    });
    let hops: Index<'s, (), ServiceKey, ()> = hops
        .distinct("waypoints/global-waypoint")
        .flat_map("waypoints/global-waypoint-keys", |(_, waypoint): &((), ServiceKey), ()| [(waypoint.clone(), ())])
        .index("waypoints/global-waypoint-list", |_, ()| [((), ())]);
    let distinct = proxies.index("waypoints/by-content", |_, waypoint| [(waypoint.clone(), ())]);
    distinct.distinct("waypoints/distinct").derive("waypoint_scopes", |deps| {
        let (own, all) = (deps.on(inputs.workloads), deps.on(inputs.services));
        let (network, services) = (deps.on(&inputs.ambient.network), deps.by(&services));
        let workloads: Vec<_> = workloads.iter().map(|workloads| deps.by(workloads)).collect();
        let (global, hops, declared) = (deps.by(&global), deps.by(&hops), deps.on(&inputs.ambient.services));
        move |cx, waypoint: &Router, ()| {
            let workload = cx.get(&own, &waypoint.workload)?;
            if waypoint.is_east_west() {
                let mut found: Vec<_> =
                    cx.by(&global, &()).into_iter().map(|(key, order)| ((*order).clone(), key)).collect();
                let hops = cx
                    .by(&hops, &())
                    .into_iter()
                    .filter_map(|(key, _)| Some((ServiceOrder::of(&*cx.get(&declared, &key)?), key)));
                found.extend(hops);
                found.sort();
                found.dedup();
                return Some(WaypointScope {
                    namespace: workload.namespace.clone(),
                    services: found.into_iter().map(|(_, service)| service).collect(),
                    ..WaypointScope::default()
                });
            }
            let network = cx.get(&network, &()).map(|network| (*network).clone()).unwrap_or_default();
            let mut destinations: BTreeSet<HboneDestination> = BTreeSet::new();
            for target in &workload.targets {
                let host = target.service.host.clone();
                destinations
                    .insert(HboneDestination::Service(ServiceKey { namespace: workload.namespace.clone(), host }));
                let service = cx.get(&all, &target.service);
                let addresses = service
                    .iter()
                    .flat_map(|service| service.addresses.values().flatten().chain(&service.auto_allocated_addresses));
                let addresses = addresses.filter_map(|address| address.parse::<IpAddr>().ok());
                destinations
                    .extend(addresses.map(|address| HboneDestination::Address { network: network.clone(), address }));
            }
            let mut scope = WaypointScope { namespace: workload.namespace.clone(), ..WaypointScope::default() };
            let mut found: Vec<_> = destinations.iter().flat_map(|at| cx.by(&services, at)).collect();
            found.sort_by(|(a, order), (b, other)| (order, &a.namespace, &a.host).cmp(&(other, &b.namespace, &b.host)));
            found.dedup_by(|(a, _), (b, _)| a == b);
            scope.services = found.into_iter().map(|(service, _)| service).collect();
            let mut rows: Vec<(Text, Arc<Vec<IpAddr>>)> = Vec::new();
            for destination in &destinations {
                for index in &workloads {
                    rows.extend(cx.by(index, destination));
                }
            }
            rows.sort();
            scope.has_workloads = !rows.is_empty();
            scope.workloads = rows.into_iter().flat_map(|(_, addresses)| (*addresses).clone()).collect();
            Some(scope)
        }
    })
}
