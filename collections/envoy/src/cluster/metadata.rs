//! Cluster metadata for telemetry (N10).

use envoy_types::pb::envoy::config::cluster::v3::{Cluster, Filter};
use envoy_types::pb::google::protobuf::{Struct, Value};
use sluice_model::{ClientTls, ClientTlsMode, DestinationRule, Service, ServiceSource};

use crate::metadata_exchange::{METADATA_EXCHANGE, metadata_exchange_config};
use crate::object_metadata::{ConfigKind, object_path};
use crate::wire::{bool_value, list_value, string_value, struct_value, typed_struct};

/// Metadata key of settings about the metadata of peers.
pub(super) const PEER_METADATA: &str = "istio.peer_metadata";
/// Metadata namespace of all other fields.
const ISTIO: &str = "istio";

/// The fields of namespace `istio`, which are added if absent.
pub(super) fn istio(cluster: &mut Cluster) -> &mut Struct {
    cluster.metadata.get_or_insert_default().filter_metadata.entry(ISTIO.to_owned()).or_default()
}

fn insert(cluster: &mut Cluster, key: &str, value: Value) {
    istio(cluster).fields.insert(key.to_owned(), value);
}

/// Adds the services of a cluster.
pub(super) fn add_services<'a>(cluster: &mut Cluster, services: impl Iterator<Item = &'a Service>) {
    let services = services.map(service).collect();
    insert(cluster, "services", list_value(services));
}

fn service(service: &Service) -> Value {
    let name = match service.source {
        ServiceSource::Kubernetes => service.name.as_str(),
        ServiceSource::ServiceEntry => service.host.as_str(),
    };
    struct_value([
        ("host", string_value(service.host.as_str())),
        ("name", string_value(name)),
        ("namespace", string_value(&service.namespace)),
    ])
}

/// Sets the DestinationRule of a cluster.
pub(super) fn add_rule(cluster: &mut Cluster, rule: &DestinationRule) {
    let path = object_path(ConfigKind::DestinationRule, &rule.namespace, &rule.name);
    insert(cluster, "config", string_value(&path));
}

/// Sets the subset of a cluster.
pub(super) fn add_subset(cluster: &mut Cluster, subset: &str) {
    insert(cluster, "subset", string_value(subset));
}

/// Marks a destination outside of the mesh, which disables metadata exchange.
pub(super) fn add_external(cluster: &mut Cluster) {
    insert(cluster, "external", bool_value(true));
}

/// Disables metadata exchange over HBONE.
pub(super) fn add_no_exchange(cluster: &mut Cluster) {
    insert(cluster, "disable_mx", bool_value(true));
}

/// Disables the ALPN override for user-defined TLS.
pub(super) fn add_alpn_override(cluster: &mut Cluster, tls: Option<&ClientTls>) {
    if tls.is_some_and(|tls| matches!(tls.mode, ClientTlsMode::Simple | ClientTlsMode::Mutual)) {
        insert(cluster, "alpn_override", string_value("false"));
    }
}

/// The filter that reads the metadata of peers from the baggage of the responses of tunnels.
pub(super) fn baggage() -> Filter {
    let config = typed_struct(
        "type.googleapis.com/envoy.extensions.network_filters.peer_metadata.UpstreamConfig",
        serde_json::json!({}),
    );
    Filter { name: "upstream_hbone_peer_metadata".to_owned(), typed_config: Some(config), ..Filter::default() }
}

/// Disables reading of baggage: the connection in the tunnel does not begin with the bytes that the filter expects.
pub(super) fn add_no_baggage(cluster: &mut Cluster) {
    let metadata = cluster.metadata.get_or_insert_default();
    let settings = metadata.filter_metadata.entry(PEER_METADATA.to_owned()).or_default();
    settings.fields.insert("disable_baggage_discovery".to_owned(), bool_value(true));
}

/// The network filter for metadata exchange.
pub(super) fn metadata_exchange() -> Filter {
    Filter { name: METADATA_EXCHANGE.to_owned(), typed_config: Some(metadata_exchange_config()), ..Filter::default() }
}
