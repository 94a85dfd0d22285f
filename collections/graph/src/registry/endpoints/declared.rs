//! Endpoints of ServiceEntries, and WorkloadEntries that Services select (S09, S12).

use std::collections::BTreeSet;

use sluice_engine::Collection;
use sluice_model::{
    Endpoint, Kind, MeshConfig, Resolution, Service, ServiceEntry, ServicePort, Text, TlsMode, UNIX_PREFIX, label,
    match_labels,
};

use super::{DeclaredEndpoints, ExportLookup};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::networks::NetworkRules;
use crate::registry::services::DeclaredKey;
use crate::registry::workloads::{
    WorkloadInstance, WorkloadInstanceKey, WorkloadInstances, address_endpoint, selector_key, trust_domain,
};

/// Endpoints of each declaration: those that a ServiceEntry lists or selects, its host if that is to be resolved, and
/// the WorkloadEntries that a Service selects.
/// Key: `DeclaredKey`. From: `declared_services`, `service_entries`, `workload_instances`, `service_exports`, `mesh_config`,
/// `networks`.
/// Changes when: the declaration does, a workload it selects, or the export of its cluster.
/// Size: declarations that have any; for a ServiceEntry, multiplied by its addresses. Rejects: none.
pub(crate) fn derive_declared_endpoints<'s>(
    objects: &ObjectCollections<'s>,
    declared: &Collection<'s, DeclaredKey, Service>,
    instances: &WorkloadInstances<'s>,
    mesh: &Collection<'s, (), MeshConfig>,
    networks: &Collection<'s, (), NetworkRules>,
    options: &GraphOptions,
) -> DeclaredEndpoints<'s> {
    let services_select_entries = options.services_select_entries;
    let trust_domain = trust_domain(mesh);
    let endpoints = declared.derive("declared_endpoints", |deps| {
        let (entries, by_label) = (deps.on(&objects.service_entries), deps.by(&instances.by_label));
        let (trust_domain, networks) = (deps.on(&trust_domain), deps.on(networks));
        let exports = ExportLookup::on(deps, objects, options);
        move |cx, key, service| {
            let select = |selector| -> Vec<(WorkloadInstanceKey, std::sync::Arc<WorkloadInstance>)> {
                let mut found = cx.by(&by_label, &selector_key(&key.object.namespace, selector));
                found.retain(|(_, instance)| match_labels(selector, &instance.endpoint.labels));
                found
            };
            let mut found = match key.kind {
                Kind::Service | Kind::ServiceImport => {
                    let takes = service.resolution == Resolution::ClientSideLb && !service.mesh_external;
                    if !services_select_entries || !takes || service.selector.is_empty() {
                        return None;
                    }
                    let mut selected = select(&service.selector);
                    selected.retain(|(of, _)| of.kind == Kind::WorkloadEntry);
                    let mut found = of_service(service, &selected);
                    for endpoint in &mut found {
                        endpoint.cluster_local = service.needs_export
                            && !exports.has(cx, &endpoint.cluster, &service.namespace, &service.name);
                    }
                    found
                }
                _ => {
                    let entry = cx.get(&entries, &key.object)?;
                    match &entry.workload_selector {
                        Some(selector) => {
                            let mut selected = select(selector);
                            selected.retain(|(_, instance)| service.resolution.is_dns() || is_ip(&instance.endpoint));
                            of_entry(
                                service,
                                selected.iter().map(|(_, instance)| (&instance.endpoint, &instance.ports)),
                            )
                        }
                        None if entry.endpoints.is_empty() && service.resolution.is_dns() => {
                            of_host(key, service, &entry)
                        }
                        None => {
                            let trust_domain = cx.get(&trust_domain, &())?;
                            let networks = cx.get(&networks, &())?;
                            let listed: Vec<_> = entry
                                .endpoints
                                .iter()
                                .enumerate()
                                .map(|(i, workload)| {
                                    let name = format!("{}-{i}", key.object.name).into();
                                    let named = workload.labels.get(label::WORKLOAD_NAME).unwrap_or(&name);
                                    (
                                        address_endpoint(workload, &key.object, named, &trust_domain, &networks),
                                        &workload.ports,
                                    )
                                })
                                .collect();
                            of_entry(service, listed.iter().map(|(endpoint, ports)| (endpoint, *ports)))
                        }
                    }
                }
            };
            if service.resolution == Resolution::DnsRoundRobinLb {
                // Envoy resolves one host name for such a cluster.
                let mut ports = BTreeSet::new();
                found.retain(|endpoint| ports.insert(endpoint.port_name.clone()));
            }
            (!found.is_empty()).then_some(found)
        }
    });
    // A ServiceEntry declares one service for each of its addresses, each with all of the endpoints.
    let repeated = endpoints.join("declared_endpoints/repeated", declared, |key, endpoints, service| {
        let addresses = service.addresses.values().next().filter(|_| key.kind == Kind::ServiceEntry);
        // Envoy resolves one host name for each port of a round-robin cluster.
        let once = service.resolution == Resolution::DnsRoundRobinLb;
        let times = addresses.filter(|_| !once).map_or(1, Vec::len).max(1);
        Some(endpoints.iter().flat_map(|endpoint| std::iter::repeat_n(endpoint.clone(), times)).collect::<Vec<_>>())
    });
    let by_service = repeated.index("declared_endpoints/by-service", |key, endpoints| {
        let service = sluice_model::ServiceKey { namespace: key.object.namespace.clone(), host: key.host.clone() };
        [(service, endpoints.clone())]
    });
    DeclaredEndpoints { endpoints, by_service }
}

fn is_ip(endpoint: &Endpoint) -> bool {
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

fn of_entry<'a>(
    service: &Service,
    workloads: impl Iterator<Item = (&'a Endpoint, &'a std::collections::BTreeMap<Text, u32>)>,
) -> Vec<Endpoint> {
    let mut found = Vec::new();
    for (endpoint, ports) in workloads {
        for port in &service.ports {
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

fn of_service(
    service: &Service,
    selected: &[(WorkloadInstanceKey, std::sync::Arc<WorkloadInstance>)],
) -> Vec<Endpoint> {
    let mut found = Vec::new();
    for (_, instance) in selected.iter().filter(|(_, instance)| is_ip(&instance.endpoint)) {
        for port in &service.ports {
            if let Some(number) = workload_port(port, &instance.ports) {
                found.push(Endpoint { port: number, port_name: port.name.clone(), ..instance.endpoint.clone() });
            }
        }
    }
    found
}

/// The port at which a WorkloadEntry listens for a Service's port. A named target port must be one of the workload's
/// ports. A number is used unless the workload declares another number under the port's name.
pub(crate) fn workload_port(port: &ServicePort, ports: &std::collections::BTreeMap<Text, u32>) -> Option<u32> {
    let own = |name: &Text| ports.get(name).copied().filter(|number| *number > 0);
    match port.target_port.as_str() {
        "" => Some(u32::from(port.port)),
        text => match text.parse::<u32>() {
            Ok(number) => Some(own(&port.name).unwrap_or(number)),
            Err(_) => own(&port.target_port),
        },
    }
}
