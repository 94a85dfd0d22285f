//! Metadata that names the object that a part of a resource follows from (N10).

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::Metadata;

use crate::wire;

/// The path of an object. `kind_path` is group, version and kind, such as `networking.istio.io/v1/virtual-service`.
pub(crate) fn object_path(kind_path: &str, namespace: &str, name: &str) -> String {
    let (group_version, kind) = kind_path.rsplit_once('/').unwrap_or(("", kind_path));
    format!("/apis/{group_version}/namespaces/{namespace}/{kind}/{name}")
}

/// The metadata of a route or a filter chain.
pub(crate) fn object_metadata(kind_path: &str, namespace: &str, name: &str) -> Metadata {
    let path = object_path(kind_path, namespace, name);
    let istio = wire::structure([("config", wire::string_value(&path))]);
    Metadata { filter_metadata: HashMap::from([("istio".to_owned(), istio)]), ..Metadata::default() }
}
