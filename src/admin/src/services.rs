//! Services in istiod's form: `registryz`, `instancesz`, `networkz` (O08).

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use sluice_engine::Engine;
use sluice_graph::MultiClusterService;
use sluice_model::{
    ExportTo, Labels, ObjectKey, Protocol, Resolution, Service, ServicePort, ServiceSource, Text, TextMap,
    TrafficDistribution,
};
use sluice_xds::short_id;

use crate::AdminState;
use crate::answer::{self, Parameters};

/// All services: first those of Kubernetes Services, by host.
pub(crate) async fn registryz(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    answer::stream_json(Registry(state), &parameters)
}

struct Registry(Arc<AdminState>);

impl Serialize for Registry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let snapshot = self.0.engine.snapshot();
        let services = snapshot.iter(&self.0.handles.services).map(|(_, service)| service);
        let services: Vec<&Service> = in_registry_order(services.collect());
        let mut rows = serializer.serialize_seq(Some(services.len()))?;
        for service in services {
            rows.serialize_element(&service_json(service))?;
        }
        rows.end()
    }
}

/// Services that clusters export or import, by cluster, namespace and name; `null` if there are none, as in istiod.
pub(crate) async fn mcsz(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Response<Body> {
    let snapshot = state.engine.snapshot();
    let mut rows: Vec<_> = snapshot.iter(&state.handles.multi_cluster_services).collect();
    rows.sort_by_key(|(key, _)| (*key).clone());
    let row = |(key, service): (&ObjectKey, &MultiClusterService)| {
        let policy = |all| if all { "AlwaysDiscoverable" } else { "DiscoverableFromSameCluster" };
        let policies = service.hosts.iter().map(|(host, all)| (host.as_str(), policy(*all)));
        json!({
            "Cluster": key.cluster.as_str(), "Name": key.name.as_str(), "Namespace": key.namespace.as_str(),
            "Exported": service.is_exported, "Imported": service.is_imported,
            "ClusterSetVIP": service.address.as_str(),
            "Discoverability": service.is_exported.then(|| policies.collect::<BTreeMap<_, _>>()),
        })
    };
    let rows: Vec<Value> = rows.into_iter().map(row).collect();
    answer::json(&(!rows.is_empty()).then_some(rows), &parameters)
}

/// The ports of services that each connected proxy serves.
pub(crate) async fn instancesz(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    answer::stream_json(Instances(state), &parameters)
}

struct Instances(Arc<AdminState>);

impl Serialize for Instances {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(state) = self;
        let snapshot = state.engine.snapshot();
        let proxies: BTreeMap<Text, _> =
            state.status.proxies().into_iter().map(|(key, _)| (short_id(&key.0), key)).collect();
        let mut rows = serializer.serialize_map(Some(proxies.len()))?;
        for (name, key) in proxies {
            let targets = snapshot.get(&state.handles.service_targets, &key).unwrap_or_default();
            let instance = |target: &sluice_graph::ServiceTarget| {
                let service = snapshot.get(&state.handles.services, &target.service)?;
                let mut port = port_json(&target.port);
                port["TargetPort"] = target.target_port.into();
                Some(json!({"Port": port, "Service": service_json(&service)}))
            };
            rows.serialize_entry(&*name, &targets.iter().filter_map(instance).collect::<Vec<_>>())?;
        }
        rows.end()
    }
}

/// Services in the order of the pages: first those of Kubernetes Services, by host.
pub(crate) fn in_registry_order<T: Borrow<Service>>(mut services: Vec<T>) -> Vec<T> {
    let key = |service: &Service| {
        (service.source == ServiceSource::ServiceEntry, service.host.clone(), service.namespace.clone())
    };
    services.sort_by_cached_key(|service| key(Borrow::<Service>::borrow(service)));
    services
}

/// The gateways between networks; `null` if there are none.
pub(crate) async fn networkz(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let gateways = network_gateways(&state.engine);
    answer::json(&(!gateways.is_empty()).then_some(gateways), &parameters)
}

/// The gateways between networks, by IP address.
pub(crate) fn network_gateways(engine: &Engine) -> Vec<Value> {
    let Some(dump) = engine.dump("network_gateways/resolved") else { return Vec::new() };
    let gateways = dump.records().flat_map(|(_, gateways)| gateways.as_array().cloned().unwrap_or_default());
    let row = |gateway: Value| {
        json!({
            "Network": gateway["network"], "Cluster": gateway["cluster"], "Addr": gateway["address"],
            "Port": gateway["port"], "HBONEPort": gateway["hbone_port"],
        })
    };
    gateways.map(row).collect()
}

/// A service in istiod's form.
pub(crate) fn service_json(service: &Service) -> Value {
    let is_external = service.source == ServiceSource::ServiceEntry;
    let kind = match (is_external, &service.external_name) {
        (true, _) => "",
        (false, Some(_)) => "ExternalName",
        (false, None) => "ClusterIP",
    };
    let address = service.addresses_for(&service.cluster).first();
    let mut row = json!({
        "Attributes": {
            "Name": service.name,
            "Namespace": service.namespace,
            "ServiceRegistry": if is_external { "External" } else { "Kubernetes" },
            "Labels": labels(&service.labels),
            "LabelSelectors": labels(&service.selector),
            "ExportTo": export_to(&service.export_to),
            "ClusterExternalAddresses": {"Addresses": by_cluster(&service.external_addresses)},
            "ExternalName": service.external_name.as_ref().map(ToString::to_string).unwrap_or_default(),
            "NodeLocal": service.node_local,
            "PublishNotReadyAddresses": service.publish_not_ready,
            "TrafficDistribution": match service.traffic_distribution {
                TrafficDistribution::Any => 0,
                TrafficDistribution::PreferSameZone => 1,
                TrafficDistribution::PreferSameNode => 2,
            },
            "DNSConnectStrategy": i32::from(service.races_connects),
            "Type": kind,
        },
        "MeshExternal": service.mesh_external,
        "Resolution": match service.resolution {
            Resolution::ClientSideLb => 0,
            Resolution::DnsLb => 1,
            Resolution::Passthrough => 2,
            Resolution::DnsRoundRobinLb => 3,
            Resolution::Alias => 4,
            Resolution::DynamicDns => 5,
        },
        "clusterVIPs": {"Addresses": by_cluster(&service.addresses)},
        "creationTime": jiff::Timestamp::from_second(service.created).map(|at| at.to_string()).unwrap_or_default(),
        "defaultAddress": address.map_or("0.0.0.0", Text::as_str),
        "hostname": service.host.to_string(),
        "ports": service.ports.iter().map(port_json).collect::<Vec<_>>(),
    });
    for address in &service.auto_allocated_addresses {
        let field = if address.contains(':') { "autoAllocatedIPv6Address" } else { "autoAllocatedIPv4Address" };
        row[field] = address.as_str().into();
    }
    if !service.subject_alt_names.is_empty() {
        row["serviceAccounts"] = json!(service.subject_alt_names);
    }
    row
}

fn port_json(port: &ServicePort) -> Value {
    json!({"name": port.name, "port": port.port, "protocol": protocol(port.protocol)})
}

fn labels(labels: &Labels) -> Value {
    if labels.is_empty() { Value::Null } else { json!(labels) }
}

fn by_cluster(addresses: &TextMap<Vec<Text>>) -> Value {
    if addresses.is_empty() { Value::Null } else { json!(addresses) }
}

/// A set of namespaces; `null` for the default, all.
fn export_to(export_to: &ExportTo) -> Value {
    match export_to {
        ExportTo::All => Value::Null,
        ExportTo::None => json!({"~": {}}),
        ExportTo::Namespaces(namespaces) => {
            namespaces.iter().map(|namespace| (namespace.to_string(), json!({}))).collect::<Map<_, _>>().into()
        }
    }
}

pub(crate) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Unsupported => "UnsupportedProtocol",
        Protocol::Http => "HTTP",
        Protocol::Http2 => "HTTP2",
        Protocol::Https => "HTTPS",
        Protocol::Grpc => "GRPC",
        Protocol::GrpcWeb => "GRPC-Web",
        Protocol::Tcp => "TCP",
        Protocol::Tls => "TLS",
        Protocol::Udp => "UDP",
        Protocol::Mongo => "Mongo",
        Protocol::Redis => "Redis",
        Protocol::Mysql => "MySQL",
        Protocol::Hbone => "HBONE",
        Protocol::HttpProxy => "HTTP_PROXY",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_without_address_has_the_unspecified_one() {
        let service = Service { source: ServiceSource::ServiceEntry, ..Service::default() };
        let row = service_json(&service);
        assert_eq!((&row["defaultAddress"], &row["Attributes"]["Labels"]), (&json!("0.0.0.0"), &Value::Null));
    }
}
