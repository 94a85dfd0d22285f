//! Metadata that names the object that a part of a resource follows from (N10).

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::Metadata;
use sluice_model::NETWORKING_GROUP;

use crate::wire;

/// A kind of object that resources name.
#[derive(Clone, Copy)]
pub(crate) enum ConfigKind {
    DestinationRule,
    Sidecar,
    VirtualService,
}

/// The path of an object.
pub(crate) fn object_path(kind: ConfigKind, namespace: &str, name: &str) -> String {
    let kind = match kind {
        ConfigKind::DestinationRule => "destination-rule",
        ConfigKind::Sidecar => "sidecar",
        ConfigKind::VirtualService => "virtual-service",
    };
    format!("/apis/{NETWORKING_GROUP}/v1/namespaces/{namespace}/{kind}/{name}")
}

/// The metadata of a route or a filter chain.
pub(crate) fn object_metadata(kind: ConfigKind, namespace: &str, name: &str) -> Metadata {
    let path = object_path(kind, namespace, name);
    let istio = wire::structure([("config", wire::string_value(&path))]);
    Metadata { filter_metadata: HashMap::from([("istio".to_owned(), istio)]), ..Metadata::default() }
}
