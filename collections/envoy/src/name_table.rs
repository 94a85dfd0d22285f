//! Name tables of the DNS proxy in the agent (X22).
//!
//! A table is assembled from encoded entries, so that a change of a service re-encodes only the entries of that service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bytes::Bytes;
use prost::Message;
use sluice_model::{CLUSTER_SET_DOMAIN, Endpoint, Health, Resolution, Service, ServiceSource, Text};
use sluice_proto::istio::networking::nds::v1::name_table::NameInfo;

/// An entry of the table's map, in the protobuf encoding of maps.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    info: Option<NameInfo>,
}

/// Inputs of the entries of a service.
#[derive(Clone, Copy, Debug)]
pub struct NameInputs<'a> {
    /// The service.
    pub service: &'a Service,
    /// Addresses and CIDR blocks at which the client reaches the service; empty if it uses the endpoints.
    pub addresses: &'a [Text],
    /// Its endpoints, which are used only without addresses.
    pub endpoints: &'a [Endpoint],
    /// Cluster of the client, empty if unknown.
    pub cluster: &'a str,
    /// Network of the client, empty if unknown.
    pub network: &'a str,
}

/// The encoded entries of a service, by a key that is unique among services: the service itself, and the pods of a headless
/// service.
#[must_use]
pub fn build_names(inputs: &NameInputs<'_>) -> BTreeMap<Text, Bytes> {
    let service = inputs.service;
    let mut entries = BTreeMap::new();
    // A CIDR block is not an address.
    let mut own: Vec<Text> = inputs.addresses.iter().filter(|address| is_ip(address)).cloned().collect();
    if inputs.addresses.is_empty() && service.resolution == Resolution::Passthrough && !service.ports.is_empty() {
        let answers = HeadlessRecords::new(inputs);
        for (name, short_name, addresses) in answers.pods {
            let info =
                NameInfo { shortname: short_name, namespace: service.namespace.to_string(), ..NameInfo::default() };
            entries.insert(format!("{}~{name}", service.host).into(), entry(&name, service, &addresses, info));
        }
        own = answers.all;
    }
    if !own.is_empty() {
        let info = match service.source {
            // Short names stand for the Service of the cluster.
            ServiceSource::Kubernetes if !is_imported(service) => NameInfo {
                shortname: service.name.to_string(),
                namespace: service.namespace.to_string(),
                ..NameInfo::default()
            },
            ServiceSource::Kubernetes | ServiceSource::ServiceEntry => NameInfo::default(),
        };
        entries.insert(service.host.0.clone(), entry(service.host.as_str(), service, &own, info));
    }
    entries
}

/// Whether it is declared by a ServiceImport.
fn is_imported(service: &Service) -> bool {
    let domain = service.host.as_str().strip_suffix(CLUSTER_SET_DOMAIN);
    domain.is_some_and(|host| host.ends_with('.'))
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

/// Addresses and pod names for a service without addresses, by the rules of the cluster's DNS.
struct HeadlessRecords {
    all: Vec<Text>,
    /// Host, short name and addresses of the pods that have a host name.
    pods: Vec<(String, String, Vec<Text>)>,
}

impl HeadlessRecords {
    fn new(inputs: &NameInputs<'_>) -> Self {
        let service = inputs.service;
        let usable = |endpoint: &&Endpoint| {
            let ready = service.publish_not_ready || endpoint.health == Health::Healthy;
            // An address in another network would bypass the gateway.
            let near = inputs.network.is_empty() || endpoint.network.is_empty() || *endpoint.network == *inputs.network;
            ready && near && !endpoint.addresses.is_empty() && endpoint.addresses.iter().all(is_ip)
        };
        let (mut all, mut known) = (Vec::new(), BTreeSet::new());
        // For a pod name in several clusters, the client's cluster has precedence.
        let mut pods: BTreeMap<String, BTreeMap<bool, Vec<Text>>> = BTreeMap::new();
        for endpoint in inputs.endpoints.iter().filter(usable) {
            // An address occurs once per port of the service.
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
