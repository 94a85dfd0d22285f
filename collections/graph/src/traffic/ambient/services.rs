//! Services of node proxies (A03).

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{
    AmbientLoadBalancing, AmbientPort, AmbientService, Host, Kind, KubernetesService, Labels, ObjectKey, Resolution,
    Service, ServiceEntry, ServiceKey, ServiceSource, ServiceType, Text, Timestamp, TrafficDistribution, Visibility,
};

use super::waypoints::{WaypointReads, Waypoints};
use super::{AmbientInputs, ClusterNetworks, namespace_labels, namespace_of};
use crate::options::{AmbientOptions, GraphOptions};
use crate::registry::services::{DeclaredKey, visibility};

/// The precedence of an object that declares a host.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ServiceClaim {
    /// A Service has precedence over a ServiceEntry.
    source: ServiceSource,
    created: Timestamp,
    private: bool,
}

/// The object that declares a service.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ChosenObject {
    declared: DeclaredKey,
    canonical: bool,
}

/// Services by the cluster that they are in.
pub(super) struct ClusterServices<'s> {
    /// Those of the config cluster, one for each namespace and host.
    pub(super) local: Collection<'s, ServiceKey, AmbientService>,
    /// Those of the other clusters that clients in other networks reach; without several networks, none are derived.
    pub(super) remote: Option<Collection<'s, ClusterService, AmbientService>>,
}

/// A service in a cluster.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct ClusterService {
    pub(super) cluster: Text,
    pub(super) service: ServiceKey,
}

/// Services, one for each namespace and host of a cluster.
/// Key: `ServiceKey`. From: `declared_services`, `kubernetes_services`, `service_entries`, `waypoints`, `namespaces`,
/// `mesh_config`, `networks`.
/// Changes when: the object that declares it does, its waypoint, or another object that declares its host.
/// Size: Services and hosts of ServiceEntries. Rejects: none.
pub(super) fn derive_services<'s>(
    inputs: &AmbientInputs<'_, 's>,
    networks: &Collection<'s, (), ClusterNetworks>,
    waypoints: &Waypoints<'s>,
    switches: AmbientOptions,
    options: &GraphOptions,
) -> ClusterServices<'s> {
    let visibilities = inputs.mesh.map("service_entry_visibility", |(), mesh| mesh.service_entry_visibility.clone());
    let global = inputs.mesh.map("global_services", move |(), mesh| {
        if switches.tunnels.multi_network { mesh.global_services.clone() } else { Vec::new() }
    });
    let cluster = options.cluster.clone();
    let candidates = inputs.declared.derive("ambient_services/declared", |deps| {
        let (services, entries) =
            (deps.on(&inputs.objects.kubernetes_services), deps.on(&inputs.objects.service_entries));
        let (networks, visibilities, global) = (deps.on(networks), deps.on(&visibilities), deps.on(&global));
        let (namespaces, waypoints) = (deps.on(&inputs.objects.namespaces), WaypointReads::on(deps, waypoints));
        move |cx, key: &DeclaredKey, service: &Service| {
            let is_local = key.object.cluster == cluster;
            // Node proxies have no hosts of imports, as in the reference.
            let is_read = is_local || (switches.tunnels.multi_network && key.kind == Kind::Service);
            if !is_read || key.kind == Kind::ServiceImport {
                return None;
            }
            let network = || cx.get(&networks, &()).map(|networks| networks.of(&key.object.cluster).clone());
            let of = |labels: &Labels, annotations: &Labels, private| {
                waypoints.of_service(cx, &key.object, labels, annotations, private)
            };
            if key.kind == Kind::Service {
                let object = cx.get(&services, &key.object)?;
                let global = cx.get(&global, &()).is_some_and(|global| {
                    let namespace =
                        if global.is_empty() { None } else { cx.get(&namespaces, &namespace_of(&key.object)) };
                    namespace.is_some_and(|namespace| {
                        global.iter().any(|services| services.contain(&namespace.labels, &object.meta.labels))
                    })
                });
                if !is_local && !global {
                    return None;
                }
                let mut made = of_service(&key.object, service, &object)?;
                made.waypoints = of(&object.meta.labels, &object.meta.annotations, false);
                made.network = network().unwrap_or_default();
                made.global = global;
                return Some(made);
            }
            let entry = cx.get(&entries, &key.object)?;
            let policy = cx.get(&visibilities, &()).and_then(|policy| (*policy).clone());
            let labels = match &policy {
                Some(_) => namespace_labels(cx, &namespaces, &key.object),
                None => Labels::new(),
            };
            let visibility = visibility(policy.as_ref(), &labels);
            let mut made = of_entry(&key.object, service, &entry).filter(|_| visibility != Visibility::None)?;
            made.private = visibility == Visibility::Namespace;
            made.waypoints = of(&entry.meta.labels, &entry.meta.annotations, made.private);
            made.network = network().unwrap_or_default();
            Some(made)
        }
    });
    let cluster = options.cluster.clone();
    let claims = candidates.index("ambient_services/by-host", move |key, service| {
        let claim = ServiceClaim { source: service.source, created: service.created, private: service.private };
        (key.object.cluster == cluster).then(|| (service.host.clone(), claim))
    });
    let chosen = claims.group("ambient_services/chosen-by-host", |_, claims| Some(choose(claims)));
    let chosen = chosen.flat_map("ambient_services/chosen", |_: &Host, chosen| {
        let service = |chosen: &ChosenObject| (chosen.declared.service(), chosen.clone());
        chosen.iter().map(service).collect::<Vec<_>>()
    });
    // With several networks, `ambient_services` also has those of other clusters.
    let name = if switches.tunnels.multi_network { "ambient_services/local" } else { "ambient_services" };
    let local = chosen.derive(name, |deps| {
        let candidates = deps.on(&candidates);
        move |cx, _, chosen: &ChosenObject| {
            let service = cx.get(&candidates, &chosen.declared)?;
            Some(AmbientService { canonical: chosen.canonical, ..(*service).clone() })
        }
    });
    let cluster = options.cluster.clone();
    let remote = switches.tunnels.multi_network.then(|| {
        candidates.flat_map("ambient_services/remote", move |key, service| {
            let at = || ClusterService { cluster: key.object.cluster.clone(), service: service.key() };
            (key.object.cluster != cluster).then(|| (at(), service.clone()))
        })
    });
    ClusterServices { local, remote }
}

/// Of the objects that declare one host: one for each namespace, a Service before the oldest ServiceEntry; and of those
/// the one that other namespaces use, which must be visible to them.
fn choose(claims: &[(&DeclaredKey, &ServiceClaim)]) -> Vec<ChosenObject> {
    let rank = |(key, claim): &(&DeclaredKey, &ServiceClaim)| {
        (claim.source == ServiceSource::ServiceEntry, claim.created, (*key).clone())
    };
    let mut best: BTreeMap<&Text, (&DeclaredKey, &ServiceClaim)> = BTreeMap::new();
    for claim in claims {
        let of_namespace = best.entry(&claim.0.object.namespace).or_insert(*claim);
        if rank(claim) < rank(of_namespace) {
            *of_namespace = *claim;
        }
    }
    let public = best.values().filter(|(_, claim)| !claim.private);
    let canonical = public.min_by_key(|claim| rank(claim)).map(|(key, _)| (*key).clone());
    let chosen = |(key, _): &(&DeclaredKey, &ServiceClaim)| ChosenObject {
        declared: (*key).clone(),
        canonical: canonical.as_ref() == Some(*key),
    };
    best.values().map(chosen).collect()
}

fn of_service(key: &ObjectKey, declared: &Service, object: &KubernetesService) -> Option<AmbientService> {
    if object.service_type == ServiceType::ExternalName {
        // Node proxies resolve the name of an ExternalName Service like any other.
        return None;
    }
    let addresses = object.cluster_ips.iter().map(|address| address.parse::<IpAddr>().map(IpNet::from));
    let ports = object.ports.iter().map(|port| {
        let number = port.target_port.parse::<u32>().ok();
        let named = !port.target_port.is_empty() && number.is_none();
        AmbientPort {
            port: u32::from(port.port),
            name: port.name.clone(),
            protocol: port.protocol,
            target: if named { 0 } else { number.unwrap_or(u32::from(port.port)) },
            target_name: if named { port.target_port.clone() } else { Text::default() },
        }
    });
    Some(AmbientService {
        object: key.clone(),
        source: ServiceSource::Kubernetes,
        created: object.meta.created,
        host: declared.host.clone(),
        addresses: addresses.collect::<Result<_, _>>().ok()?,
        network: Text::default(),
        other_addresses: Vec::new(),
        global: false,
        ports: ports.collect(),
        selector: object.selector.clone(),
        subject_alt_names: Vec::new(),
        waypoints: sluice_model::ServiceWaypoints::default(),
        balancing: match declared.traffic_distribution {
            _ if object.internal_traffic_local => AmbientLoadBalancing::SameNode,
            TrafficDistribution::Any => AmbientLoadBalancing::Any,
            preference => AmbientLoadBalancing::Prefer(preference),
        },
        publish_not_ready: object.publish_not_ready,
        ip_families: object.ip_families,
        canonical: false,
        private: false,
    })
}

fn of_entry(key: &ObjectKey, declared: &Service, entry: &ServiceEntry) -> Option<AmbientService> {
    let declares: Vec<IpNet> = entry.addresses.iter().map(|text| block(text)).collect::<Option<_>>()?;
    let is_resolved = entry.is_resolved(&declared.host);
    let allocated = declared.auto_allocated_addresses.iter().filter(|_| is_resolved).filter_map(|text| block(text));
    let ports = entry.ports.iter().map(|port| AmbientPort {
        port: u32::from(port.number),
        name: port.name.clone(),
        protocol: port.protocol,
        target: u32::from(if port.target_port == 0 { port.number } else { port.target_port }),
        target_name: Text::default(),
    });
    Some(AmbientService {
        object: key.clone(),
        source: ServiceSource::ServiceEntry,
        created: entry.meta.created,
        host: declared.host.clone(),
        addresses: if declares.is_empty() { allocated.collect() } else { declares },
        network: Text::default(),
        other_addresses: Vec::new(),
        global: false,
        ports: ports.collect(),
        selector: entry.workload_selector.clone().unwrap_or_default(),
        subject_alt_names: entry.subject_alt_names.clone(),
        waypoints: sluice_model::ServiceWaypoints::default(),
        balancing: match (entry.resolution, declared.traffic_distribution) {
            (Resolution::Passthrough, _) => AmbientLoadBalancing::Passthrough,
            (_, TrafficDistribution::Any) => AmbientLoadBalancing::Any,
            (_, preference) => AmbientLoadBalancing::Prefer(preference),
        },
        publish_not_ready: false,
        ip_families: None,
        canonical: false,
        private: false,
    })
}

/// An address, or the first address of a block.
fn block(text: &str) -> Option<IpNet> {
    let address = text.parse::<IpAddr>().ok().map(IpNet::from);
    address.or_else(|| text.parse::<IpNet>().ok().map(|block| block.trunc()))
}
