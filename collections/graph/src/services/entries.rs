//! ServiceEntries to services (S09, S10).

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_engine::Collection;
use sluice_model::{
    ExportTo, Host, Kind, Namespace, ObjectKey, Resolution, Service, ServiceEntry, ServicePort, ServiceSource, Text,
    is_cluster_local,
};

use super::kubernetes::{TRAFFIC_DISTRIBUTION, annotated_distribution};
use super::{DeclaredKey, ServiceDefaults};
use crate::GraphOptions;

/// Set to `false`, allocated addresses are not used.
const ALLOCATE: &str = "networking.istio.io/enable-autoallocate-ip";

pub(super) fn derive<'s>(
    entries: &Collection<'s, ObjectKey, ServiceEntry>,
    namespaces: &Collection<'s, ObjectKey, Namespace>,
    defaults: &Collection<'s, (), ServiceDefaults>,
    traffic: &Collection<'s, ObjectKey, Text>,
    options: &GraphOptions,
) -> Collection<'s, DeclaredKey, Service> {
    let domain = options.domain.clone();
    entries.derive_many("declared_services/entries", |deps| {
        let (defaults, traffic, namespaces) = (deps.on(defaults), deps.on(traffic), deps.on(namespaces));
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
            let services = entry.hosts.iter().map(|host| {
                let service = convert(key, entry, host, &export_to, &traffic, &defaults, &domain);
                (DeclaredKey { kind: Kind::ServiceEntry, object: key.clone(), host: host.clone() }, service)
            });
            // A host that is named twice counts once.
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
    let opted_out = entry.meta.labels.get(ALLOCATE).is_some_and(|word| word.eq_ignore_ascii_case("false"));
    let allocates = addresses.is_empty() && entry.resolution != Resolution::Passthrough && !opted_out;
    let allocated = entry.allocated_addresses.iter().filter(|(of, _)| allocates && of == host);
    Service {
        namespace: key.namespace.clone(),
        host: host.clone(),
        name: host.0.clone(),
        source: ServiceSource::ServiceEntry,
        cluster: key.cluster.clone(),
        created: entry.meta.created,
        addresses: if addresses.is_empty() { BTreeMap::new() } else { [(Text::default(), addresses)].into() },
        auto_allocated_addresses: allocated.map(|(_, address)| address.clone()).collect(),
        external_addresses: BTreeMap::new(),
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
        cluster_local: is_cluster_local(&defaults.settings, host.as_str(), domain),
    }
}

/// An address, or a block of them; a block of one is an address.
fn virtual_address(text: &Text) -> Option<Text> {
    if text.parse::<IpAddr>().is_ok() {
        return Some(text.clone());
    }
    let block: ipnet::IpNet = text.parse().ok()?;
    Some(if block.prefix_len() == block.max_prefix_len() { block.addr().to_string().into() } else { text.clone() })
}
