//! Endpoints that ServiceEntries list, and hosts of ServiceEntries that are to be resolved (S09).

use std::collections::{BTreeMap, BTreeSet};

use sluice_engine::Collection;
use sluice_model::{
    Endpoint, Kind, MeshConfig, Resolution, Service, ServiceEntry, ServicePort, Text, TlsMode, UNIX_PREFIX, label,
};

use super::DeclaredEndpoints;
use crate::inputs::ObjectCollections;
use crate::registry::networks::NetworkRules;
use crate::registry::services::DeclaredKey;
use crate::registry::workloads::{address_endpoint, trust_domain};

/// Endpoints of each ServiceEntry without a selector: those that it lists, or its host if that is to be resolved.
/// Key: `DeclaredKey`. From: `declared_services`, `service_entries`, `mesh_config`, `networks`.
/// Changes when: the declaration does. Size: declarations that have any; multiplied by the addresses of the ServiceEntry.
/// Rejects: none.
pub(crate) fn derive_declared_endpoints<'s>(
    objects: &ObjectCollections<'s>,
    declared: &Collection<'s, DeclaredKey, Service>,
    mesh: &Collection<'s, (), MeshConfig>,
    networks: &Collection<'s, (), NetworkRules>,
) -> DeclaredEndpoints<'s> {
    let trust_domain = trust_domain(mesh);
    let endpoints = declared.derive("declared_endpoints", |deps| {
        let entries = deps.on(&objects.service_entries);
        let (trust_domain, networks) = (deps.on(&trust_domain), deps.on(networks));
        move |cx, key, service| {
            if key.kind != Kind::ServiceEntry {
                return None;
            }
            let entry = cx.get(&entries, &key.object).filter(|entry| entry.workload_selector.is_none())?;
            let mut found = if entry.endpoints.is_empty() && service.resolution.is_dns() {
                of_host(key, service, &entry)
            } else {
                let trust_domain = cx.get(&trust_domain, &())?;
                let networks = cx.get(&networks, &())?;
                let listed: Vec<_> = entry
                    .endpoints
                    .iter()
                    .enumerate()
                    .map(|(i, workload)| {
                        let name = format!("{}-{i}", key.object.name).into();
                        let named = workload.labels.get(label::WORKLOAD_NAME).unwrap_or(&name);
                        let endpoint = address_endpoint(workload, &key.object, named, &trust_domain, &networks);
                        (endpoint, &workload.ports)
                    })
                    .collect();
                of_entry(&service.ports, listed.iter().map(|(endpoint, ports)| (endpoint, *ports)))
            };
            if service.resolution == Resolution::DnsRoundRobinLb {
                // Envoy resolves one host name for such a cluster.
                let mut ports = BTreeSet::new();
                found.retain(|endpoint| ports.insert(endpoint.port_name.clone()));
            }
            (!found.is_empty()).then_some(found)
        }
    });
    let repeated = endpoints.join("declared_endpoints/repeated", declared, |_, endpoints, service| {
        let times = times(service);
        Some(endpoints.iter().flat_map(|endpoint| std::iter::repeat_n(endpoint.clone(), times)).collect::<Vec<_>>())
    });
    let by_service =
        repeated.index("declared_endpoints/by-service", |key, endpoints| [(key.service(), endpoints.clone())]);
    DeclaredEndpoints { endpoints, by_service }
}

/// How many times the service of a ServiceEntry has each endpoint: it declares one service for each of its addresses, each
/// with all of the endpoints. Envoy resolves one host name for each port of a round-robin cluster.
pub(super) fn times(service: &Service) -> usize {
    match service.resolution {
        Resolution::DnsRoundRobinLb => 1,
        _ => service.addresses.values().next().map_or(1, Vec::len).max(1),
    }
}

pub(super) fn is_ip(endpoint: &Endpoint) -> bool {
    let address = endpoint.addresses.first().map(Text::as_str).unwrap_or_default();
    address.is_empty() || address.parse::<std::net::IpAddr>().is_ok()
}

/// The host itself, once for each port: Envoy resolves it.
fn of_host(key: &DeclaredKey, service: &Service, entry: &ServiceEntry) -> Vec<Endpoint> {
    let ports = service.ports.iter();
    ports
        .map(|port| Endpoint {
            addresses: vec![service.host.0.clone()],
            port: target(port).unwrap_or(u32::from(port.port)),
            port_name: port.name.clone(),
            labels: sluice_model::Labels::new(),
            locality: sluice_model::Locality::default(),
            node: Text::default(),
            cluster: key.object.cluster.clone(),
            network: Text::default(),
            namespace: key.object.namespace.clone(),
            workload_name: entry.meta.name.clone(),
            service_account: Text::default(),
            tls_mode: TlsMode::Disabled,
            health: sluice_model::Health::Unknown,
            weight: 0,
            hostname: Text::default(),
            subdomain: Text::default(),
            hbone: false,
            cluster_local: false,
        })
        .collect()
}

/// The target port of a ServiceEntry, which is always a number.
fn target(port: &ServicePort) -> Option<u32> {
    port.target_port.parse().ok().filter(|number| *number > 0)
}

/// The endpoints of a ServiceEntry with these ports, at workloads with theirs.
pub(super) fn of_entry<'a>(
    service_ports: &[ServicePort],
    workloads: impl Iterator<Item = (&'a Endpoint, &'a BTreeMap<Text, u32>)>,
) -> Vec<Endpoint> {
    let mut found = Vec::new();
    for (endpoint, ports) in workloads {
        for port in service_ports {
            let mut made = Endpoint { port_name: port.name.clone(), ..endpoint.clone() };
            let path = endpoint.addresses.first().and_then(|address| address.strip_prefix(UNIX_PREFIX)).map(Text::from);
            // A path has no port; otherwise the port of the workload has precedence over that of the ServiceEntry.
            if let Some(path) = path {
                made.addresses = vec![path];
            } else {
                let own = ports.get(&port.name).copied().filter(|number| *number > 0);
                made.port = own.or_else(|| target(port)).unwrap_or(u32::from(port.port));
            }
            found.push(made);
        }
    }
    found
}
