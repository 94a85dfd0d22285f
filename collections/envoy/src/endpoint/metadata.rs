//! Metadata and labels of endpoints.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use sluice_model::label::{
    APP_NAME, CANONICAL_NAME, CANONICAL_REVISION, CLUSTER, HOSTNAME, NETWORK, REGION, SUBZONE, ZONE,
};
use sluice_model::{Endpoint, Labels};

use crate::socket_match::{TRANSPORT_SOCKET_MATCH, by_mtls};
use crate::wire::{string_value, structure};

const CANONICAL_NAMES: [&str; 3] = [CANONICAL_NAME, APP_NAME, "app"];
const CANONICAL_REVISIONS: [&str; 3] = [CANONICAL_REVISION, "app.kubernetes.io/version", "version"];

const DEFAULT_REVISION: &str = "latest";

/// Canonical name and revision of a workload with these labels.
pub(crate) fn canonical_service<'a>(labels: &'a Labels, workload_name: &'a str) -> (&'a str, &'a str) {
    let first = |keys: [&str; 3]| keys.into_iter().find_map(|key| labels.get(key)).map(|value| value.as_str());
    (first(CANONICAL_NAMES).unwrap_or(workload_name), first(CANONICAL_REVISIONS).unwrap_or(DEFAULT_REVISION))
}

/// Metadata of an endpoint: its transport socket match and, for telemetry, `workload;namespace;canonical;revision;cluster`.
pub(super) fn metadata(endpoint: &Endpoint, mtls: bool) -> Metadata {
    let (name, revision) = canonical_service(&endpoint.labels, &endpoint.workload_name);
    // The default revision is omitted.
    let revision = if revision == DEFAULT_REVISION { "" } else { revision };
    let workload = format!("{};{};{name};{revision};{}", endpoint.workload_name, endpoint.namespace, endpoint.cluster);
    workload_metadata(&workload, mtls)
}

/// Metadata of a gateway that replaces endpoints of another network. `mtls`: it is reached by mutual TLS.
pub(super) fn gateway_metadata(cluster: &str, mtls: bool) -> Metadata {
    workload_metadata(&format!(";;;;{cluster}"), mtls)
}

fn workload_metadata(workload: &str, mtls: bool) -> Metadata {
    let mut metadata = Metadata::default();
    if mtls {
        metadata.filter_metadata.insert(TRANSPORT_SOCKET_MATCH.to_owned(), by_mtls());
    }
    metadata.filter_metadata.insert("istio".to_owned(), structure([("workload", string_value(workload))]));
    metadata
}

/// The value of a label of an endpoint: of its workload or of its topology.
pub(super) fn label<'a>(endpoint: &'a Endpoint, key: &str) -> Option<&'a str> {
    let own = || endpoint.labels.get(key).map(|value| value.as_str());
    let network = || Some(endpoint.network.as_str()).filter(|network| !network.is_empty());
    let place = match key {
        REGION => endpoint.locality.region.as_str(),
        ZONE => endpoint.locality.zone.as_str(),
        SUBZONE => endpoint.locality.subzone.as_str(),
        CLUSTER => endpoint.cluster.as_str(),
        HOSTNAME => endpoint.node.as_str(),
        // The network label of the workload has precedence.
        NETWORK => return own().filter(|own| !own.is_empty()).or_else(network),
        _ => "",
    };
    if place.is_empty() { own() } else { Some(place) }
}

/// Whether an endpoint has all the labels of a subset.
pub(super) fn selected(endpoint: &Endpoint, selector: &Labels) -> bool {
    selector.iter().all(|(key, value)| label(endpoint, key) == Some(value.as_str()))
}
