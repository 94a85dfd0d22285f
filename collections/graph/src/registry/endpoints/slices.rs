//! Endpoints of slices (S04 to S06).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_engine::{Collection, Index};
use sluice_model::{
    Endpoint, EndpointSlice, Health, MeshConfig, ObjectKey, Pod, ServiceKey, SliceEndpoint, Text, TlsMode,
};

use super::ExportLookup;
use super::large::{EndpointFacts, LargeEndpointKey, SliceHosts, derive_large_endpoints_of_slices};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::networks::NetworkRules;
use crate::registry::workloads::{pod_endpoint, trust_domain, with_topology};

/// The fields of a Service that change how its slices are read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, serde::Serialize)]
struct SliceServiceFacts {
    drains: bool,
    dual_stack: bool,
    unselected: bool,
}

/// The endpoints of a slice, and what they are indexed by.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, serde::Serialize)]
struct SliceEndpoints {
    service: Text,
    unselected: bool,
    /// The Service and its import, except large ones.
    listed: Vec<ServiceKey>,
    /// The large ones, with their facts.
    large: BTreeMap<ServiceKey, EndpointFacts>,
    /// Shared by the entries of all indexes.
    endpoints: Arc<[Endpoint]>,
}

/// The key of an address: cluster, namespace, address.
pub(crate) type AddressKey = (Text, Text, Text);

/// Name of a Service, and the endpoints of one of its slices.
pub(crate) type ServiceSlice = (Text, Arc<[Endpoint]>);

/// Endpoints of slices.
#[derive(Clone)]
pub(crate) struct Slices<'s> {
    /// By Service, and by its import, except large ones.
    pub(crate) by_service: Index<'s, ServiceKey, ObjectKey, Arc<[Endpoint]>>,
    /// The endpoints of large services.
    pub(crate) large: Collection<'s, LargeEndpointKey, Vec<Endpoint>>,
    /// By address: only those of Services without a selector.
    pub(crate) by_address: Index<'s, AddressKey, ObjectKey, ServiceSlice>,
}

/// Endpoints of each slice, by service. An endpoint whose pod is not read yet is omitted until the pod is read (S05).
/// Key: slice. From: `endpoint_slices`, `pods`, `nodes`, `kubernetes_services`, `service_exports`, `large_services`,
/// `mesh_config`, `networks`.
/// Changes when: the slice does, or the identity, labels, locality or network of one of its pods; its Service becomes
/// large, is exported, or is no longer.
/// Size: slices of Services. Rejects: none.
pub(crate) fn derive_slice_endpoints<'s>(
    objects: &ObjectCollections<'s>,
    mesh: &Collection<'s, (), MeshConfig>,
    networks: &Collection<'s, (), NetworkRules>,
    large: &Collection<'s, ServiceKey, EndpointFacts>,
    options: &GraphOptions,
) -> Slices<'s> {
    let trust_domain = trust_domain(mesh);
    let pods_by_address = objects.pods.index("pods/by-address", |key, pod| {
        // Many pods share the addresses of their node, so such an address does not identify a pod.
        let address = pod.ips.first().filter(|_| pod.ready && !pod.is_stopping() && !pod.host_network);
        address.map(|address| ((key.cluster.clone(), key.namespace.clone(), address.clone()), ()))
    });
    let (dual_stack, sessions) = (options.dual_stack, options.sessions.clone());
    let readings = objects.kubernetes_services.filter_map("slice_readings", move |_, service| {
        let reading = SliceServiceFacts {
            drains: sessions.enabled_for(&service.meta.labels),
            dual_stack: dual_stack && service.cluster_ips.len() > 1,
            unselected: service.selector.is_empty(),
        };
        (reading != SliceServiceFacts::default()).then_some(reading)
    });
    let endpoints = objects.endpoint_slices.derive("slice_endpoints", |deps| {
        let (pods, nodes) = (deps.on(&objects.pods), deps.on(&objects.nodes));
        let by_address = deps.by(&pods_by_address);
        let (trust_domain, networks, readings) = (deps.on(&trust_domain), deps.on(networks), deps.on(&readings));
        let (large, hosts) = (deps.on(large), SliceHosts::new(options));
        let exports = ExportLookup::on(deps, objects, options);
        move |cx, key, slice: &EndpointSlice| {
            if slice.service.is_empty() || slice.address_type == "FQDN" {
                return None;
            }
            let service = ObjectKey::new(key.cluster.clone(), key.namespace.clone(), slice.service.clone());
            let reading = cx.get(&readings, &service).map(|reading| *reading).unwrap_or_default();
            let trust_domain = cx.get(&trust_domain, &())?;
            let networks = cx.get(&networks, &())?;
            let pod_of = |endpoint: &SliceEndpoint, address: &Text| -> Option<Arc<Pod>> {
                let pod = match &endpoint.target_pod {
                    Some((namespace, name)) => ObjectKey::new(key.cluster.clone(), namespace.clone(), name.clone()),
                    None => {
                        let at = (key.cluster.clone(), key.namespace.clone(), address.clone());
                        cx.by(&by_address, &at).into_iter().next()?.0
                    }
                };
                cx.get(&pods, &pod)
            };
            let exported = exports.has(cx, &key.cluster, &key.namespace, &slice.service);
            let mut found = Vec::new();
            for endpoint in &slice.endpoints {
                for address in &endpoint.addresses {
                    let pod = pod_of(endpoint, address);
                    if endpoint.target_pod.is_some() && pod.is_none() {
                        continue;
                    }
                    let both = endpoint.target_pod.is_some()
                        && reading.dual_stack
                        && pod.as_ref().is_some_and(|pod| pod.ips.len() > 1);
                    if both && slice.address_type == "IPv6" {
                        // The IPv4 slice has the same pod, with both addresses.
                        continue;
                    }
                    let mut made = match &pod {
                        Some(pod) => {
                            let node = cx.get(&nodes, &ObjectKey::new(key.cluster.clone(), "", pod.node.clone()));
                            let pod_key = ObjectKey::new(key.cluster.clone(), pod.namespace.clone(), pod.name.clone());
                            pod_endpoint(pod, &pod_key, node.as_deref(), &trust_domain, &networks)
                        }
                        None => bare_endpoint(&key.cluster, address, &networks),
                    };
                    made.health = health(endpoint, reading);
                    made.cluster_local = !exported;
                    made.addresses = match &pod {
                        Some(pod) if both => pod.ips.clone(),
                        _ => vec![address.clone()],
                    };
                    found.extend(slice.ports.iter().map(|port| Endpoint {
                        port: u32::from(port.port),
                        port_name: port.name.clone(),
                        ..made.clone()
                    }));
                }
            }
            let (mut listed, mut chunked) = (Vec::new(), BTreeMap::new());
            for service in hosts.services(&slice.service, &key.namespace) {
                match cx.get(&large, &service) {
                    Some(facts) => drop(chunked.insert(service, *facts)),
                    None => listed.push(service),
                }
            }
            let (service, unselected) = (slice.service.clone(), reading.unselected);
            Some(SliceEndpoints { service, unselected, listed, large: chunked, endpoints: found.into() })
        }
    });
    let by_service = endpoints.index("slice_endpoints/by-service", move |_, found| {
        let row = |service: &ServiceKey| (service.clone(), found.endpoints.clone());
        found.listed.iter().map(row).collect::<Vec<_>>()
    });
    let large = derive_large_endpoints_of_slices(&endpoints, |found| (&found.large, &found.endpoints));
    let by_address = endpoints.index("slice_endpoints/by-address", |key, found| {
        let endpoints = found.endpoints.iter().filter(|_| found.unselected);
        let addresses: BTreeSet<&Text> = endpoints.filter_map(|endpoint| endpoint.addresses.first()).collect();
        let row = (found.service.clone(), found.endpoints.clone());
        let at = |address: &Text| (key.cluster.clone(), key.namespace.clone(), address.clone());
        addresses.into_iter().map(|address| (at(address), row.clone())).collect::<Vec<_>>()
    });
    Slices { by_service, large, by_address }
}

/// An address that does not belong to a pod: its workload is unknown.
fn bare_endpoint(cluster: &Text, address: &Text, networks: &NetworkRules) -> Endpoint {
    let network = networks.network(cluster, address, &sluice_model::Labels::new());
    Endpoint {
        addresses: vec![address.clone()],
        port: 0,
        port_name: Text::default(),
        labels: with_topology(&sluice_model::Labels::new(), cluster, &sluice_model::Locality::default(), "", &network),
        locality: sluice_model::Locality::default(),
        node: Text::default(),
        cluster: cluster.clone(),
        network,
        namespace: Text::default(),
        workload_name: Text::default(),
        service_account: Text::default(),
        tls_mode: TlsMode::Disabled,
        health: Health::Healthy,
        weight: 0,
        hostname: Text::default(),
        subdomain: Text::default(),
        hbone: false,
        cluster_local: false,
    }
}

fn health(endpoint: &SliceEndpoint, reading: SliceServiceFacts) -> Health {
    match () {
        () if endpoint.ready => Health::Healthy,
        () if reading.drains && endpoint.serving && endpoint.terminating => Health::Draining,
        () if endpoint.terminating => Health::Terminating,
        () => Health::Unhealthy,
    }
}
