//! Converts ServiceEntries to services (S09, S10).

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_engine::Collection;
use sluice_model::{
    ExportTo, Host, Kind, ObjectKey, Service, ServiceEntry, ServicePort, ServiceSource, Text, TextMap, is_cluster_local,
};

use super::kubernetes::{TRAFFIC_DISTRIBUTION, annotated_distribution};
use super::{DeclaredKey, ServiceDefaults};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::allocation::{AllocationKey, allocates, in_status};

/// Inputs of the derivation of services of ServiceEntries.
pub(super) struct EntryInputs<'a, 's> {
    pub(super) objects: &'a ObjectCollections<'s>,
    pub(super) defaults: &'a Collection<'s, (), ServiceDefaults>,
    pub(super) traffic: &'a Collection<'s, ObjectKey, Text>,
    pub(super) allocations: &'a Collection<'s, AllocationKey, Vec<Text>>,
}

pub(super) fn derive<'s>(inputs: &EntryInputs<'_, 's>, options: &GraphOptions) -> Collection<'s, DeclaredKey, Service> {
    let domain = options.domain.clone();
    let hashes = !options.allocates_addresses;
    let allocating = hashes || options.address_pools.is_some();
    inputs.objects.service_entries.derive_many("declared_services/entries", |deps| {
        let (defaults, traffic) = (deps.on(inputs.defaults), deps.on(inputs.traffic));
        let (namespaces, allocations) = (deps.on(&inputs.objects.namespaces), deps.on(inputs.allocations));
        move |cx, key, entry| {
            let Some(defaults) = cx.get(&defaults, &()) else { return Vec::new() };
            let namespace = ObjectKey::new(key.cluster.clone(), "", key.namespace.clone());
            let traffic = cx.get(&traffic, &namespace).map(|traffic| (*traffic).clone()).unwrap_or_default();
            let mut export_to = match entry.export_to.as_slice() {
                [] => ExportTo::resolve(&defaults.export_to, &key.namespace),
                words => ExportTo::resolve(words, &key.namespace),
            };
            if defaults.visibility.is_some() {
                let labels = cx.get(&namespaces, &namespace).map(|found| found.labels.clone()).unwrap_or_default();
                export_to = super::limit(export_to, defaults.visibility.as_ref(), &key.namespace, &labels);
            }
            let allocated = |host: &Host| -> Vec<Text> {
                if !hashes && !allocates(entry) {
                    return Vec::new();
                }
                if !allocating {
                    return in_status(entry, host);
                }
                let of = AllocationKey { entry: key.clone(), host: host.clone() };
                cx.get(&allocations, &of).map(|found| (*found).clone()).unwrap_or_default()
            };
            let services = entry.hosts.iter().map(|host| {
                let mut service = convert(key, entry, host, &export_to, &traffic, &defaults, &domain);
                service.auto_allocated_addresses = allocated(host);
                (DeclaredKey { kind: Kind::ServiceEntry, object: key.clone(), host: host.clone() }, service)
            });
            // A host that is listed twice counts once.
            services.collect::<BTreeMap<_, _>>().into_iter().collect()
        }
    })
}

fn convert(
    key: &ObjectKey,
    entry: &ServiceEntry,
    host: &Host,
    export_to: &ExportTo,
    namespace_traffic: &str,
    defaults: &ServiceDefaults,
    domain: &str,
) -> Service {
    let addresses: Vec<Text> = entry.addresses.iter().filter_map(virtual_address).collect();
    Service {
        namespace: key.namespace.clone(),
        host: host.clone(),
        name: host.0.clone(),
        source: ServiceSource::ServiceEntry,
        cluster: key.cluster.clone(),
        created: entry.meta.created,
        addresses: if addresses.is_empty() { TextMap::new() } else { [(Text::default(), addresses)].into() },
        auto_allocated_addresses: Vec::new(),
        external_addresses: TextMap::new(),
        ports: entry
            .ports
            .iter()
            .map(|port| ServicePort {
                port: port.number,
                name: port.name.clone(),
                protocol: port.protocol,
                target_port: match port.target_port {
                    0 => Text::default(),
                    target => target.to_string().into(),
                },
            })
            .collect(),
        resolution: entry.resolution,
        mesh_external: entry.mesh_external,
        export_to: export_to.clone(),
        labels: entry.meta.labels.clone(),
        selector: entry.workload_selector.clone().unwrap_or_default(),
        subject_alt_names: entry.subject_alt_names.clone(),
        external_name: None,
        node_local: false,
        publish_not_ready: false,
        traffic_distribution: annotated_distribution(
            entry.meta.annotations.get(TRAFFIC_DISTRIBUTION).map(Text::as_str),
            namespace_traffic,
        ),
        races_connects: entry.races_connects(),
        covered_by: None,
        cluster_local: is_cluster_local(&defaults.settings, host.as_str(), domain),
        needs_export: false,
    }
}

/// An address or a block of addresses; a block of one address is that address.
fn virtual_address(text: &Text) -> Option<Text> {
    if text.parse::<IpAddr>().is_ok() {
        return Some(text.clone());
    }
    let block: ipnet::IpNet = text.parse().ok()?;
    Some(if block.prefix_len() == block.max_prefix_len() { block.addr().to_string().into() } else { text.clone() })
}
