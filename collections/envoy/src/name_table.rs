//! Name tables: what the DNS proxy beside a workload answers (X22).
//!
//! A table is assembled from its entries, so that a service that changes costs its own names only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bytes::Bytes;
use prost::Message;
use sluice_model::{Endpoint, Health, Resolution, Service, ServiceSource, Text};
use sluice_proto::istio::networking::nds::v1::name_table::NameInfo;

/// One entry of the table's map, as protobuf writes maps.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    info: Option<NameInfo>,
}

/// What the names of a service depend on.
#[derive(Clone, Copy, Debug)]
pub struct NameInputs<'a> {
    /// The service.
    pub service: &'a Service,
    /// Where the client reaches it, blocks of addresses included; none if it is reached at its endpoints.
    pub addresses: &'a [Text],
    /// Its endpoints; they count only where there are no addresses.
    pub endpoints: &'a [Endpoint],
    /// Cluster of the client, empty if unknown.
    pub cluster: &'a str,
    /// Network of the client, empty if unknown.
    pub network: &'a str,
}

/// The encoded entries of a service, by a name of the entry that no other service has: the service's own, and those of
/// single pods of a headless one.
#[must_use]
pub fn build_names(inputs: &NameInputs<'_>) -> BTreeMap<Text, Bytes> {
    let service = inputs.service;
    let mut entries = BTreeMap::new();
    // Blocks of addresses are no answer.
    let mut own: Vec<Text> = inputs.addresses.iter().filter(|address| is_ip(address)).cloned().collect();
    if inputs.addresses.is_empty() && service.resolution == Resolution::Passthrough && !service.ports.is_empty() {
        let answers = Answers::new(inputs);
        for (name, short_name, addresses) in answers.pods {
            let info =
                NameInfo { shortname: short_name, namespace: service.namespace.to_string(), ..NameInfo::default() };
            entries.insert(format!("{}~{name}", service.host).into(), entry(&name, service, &addresses, info));
        }
        own = answers.all;
    }
    if !own.is_empty() {
        let info = match service.source {
            ServiceSource::Kubernetes => NameInfo {
                shortname: service.name.to_string(),
                namespace: service.namespace.to_string(),
                ..NameInfo::default()
            },
            ServiceSource::ServiceEntry => NameInfo::default(),
        };
        entries.insert(service.host.0.clone(), entry(service.host.as_str(), service, &own, info));
    }
    entries
}

fn entry(name: &str, service: &Service, addresses: &[Text], info: NameInfo) -> Bytes {
    let registry = match service.source {
        ServiceSource::Kubernetes => "Kubernetes",
        ServiceSource::ServiceEntry => "External",
    };
    let ips = addresses.iter().map(ToString::to_string).collect();
    let info = NameInfo { ips, registry: registry.to_owned(), ..info };
    Entry { name: name.to_owned(), info: Some(info) }.encode_to_vec().into()
}

/// What is answered for a service without addresses, as the cluster's DNS would.
struct Answers {
    all: Vec<Text>,
    /// Name, short name and addresses of pods that have a name of their own.
    pods: Vec<(String, String, Vec<Text>)>,
}

impl Answers {
    fn new(inputs: &NameInputs<'_>) -> Self {
        let service = inputs.service;
        let usable = |endpoint: &&Endpoint| {
            let ready = service.publish_not_ready || endpoint.health == Health::Healthy;
            // Beyond the network an address would bypass the gateway.
            let near = inputs.network.is_empty() || endpoint.network.is_empty() || *endpoint.network == *inputs.network;
            ready && near && !endpoint.addresses.is_empty() && endpoint.addresses.iter().all(is_ip)
        };
        let (mut all, mut known) = (Vec::new(), BTreeSet::new());
        // Of a pod's name, the own cluster's pods come before others of that name.
        let mut pods: BTreeMap<String, BTreeMap<bool, Vec<Text>>> = BTreeMap::new();
        for endpoint in inputs.endpoints.iter().filter(usable) {
            // One address backs each port of the service once.
            if !known.insert(endpoint.addresses.first()) {
                continue;
            }
            all.extend(endpoint.addresses.iter().cloned());
            if !endpoint.subdomain.is_empty() {
                let is_remote = !inputs.cluster.is_empty() && *endpoint.cluster != *inputs.cluster;
                let name = format!("{}.{}", endpoint.hostname, endpoint.subdomain);
                let addresses = pods.entry(name).or_default().entry(is_remote).or_default();
                addresses.extend(endpoint.addresses.iter().cloned());
            }
        }
        let domain = service.host.as_str().split_once('.').map_or("", |(_, domain)| domain);
        let pods = pods.into_iter().filter_map(|(short_name, by_place)| {
            let (_, addresses) = by_place.into_iter().next()?;
            Some((format!("{short_name}.{domain}"), short_name, addresses))
        });
        Self { all, pods: pods.collect() }
    }
}

fn is_ip(address: &Text) -> bool {
    address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests;
