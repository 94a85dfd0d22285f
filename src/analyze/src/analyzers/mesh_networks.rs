//! Clusters of the networks of the mesh (IST0126).

use std::collections::BTreeSet;

use serde_json::Value;

use crate::codes::UNKNOWN_SERVICE_REGISTRY;
use crate::resource::SECRET;
use crate::value::{at, items, text};
use crate::{MeshObjects, MessageList};

/// Names of the control plane's own cluster and of the ServiceEntries.
const BUILT_IN: [&str; 3] = ["Kubernetes", "External", "Mock"];

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let Some(config) = mesh.mesh_config_map() else { return };
    let networks = MeshObjects::parse_yaml(text(&config.value, "data.meshNetworks"));
    let clusters = mesh.all(SECRET).iter().filter(|secret| secret.label("istio/multiCluster") == Some("true"));
    let clusters = clusters.flat_map(|secret| at(&secret.value, "data").as_object());
    let mut known: BTreeSet<&str> = clusters.flatten().map(|(name, _)| name.as_str()).collect();
    known.extend(BUILT_IN);
    for (network, value) in at(&networks, "networks").as_object().into_iter().flatten() {
        for endpoint in items(value, "endpoints") {
            let Some(registry) = endpoint.get("fromRegistry").and_then(Value::as_str) else { continue };
            if !known.contains(registry) {
                let text = format!("network {network} refers to cluster {registry}, of which there is no Secret");
                report.add(&UNKNOWN_SERVICE_REGISTRY, config, "data.meshNetworks", text);
            }
        }
    }
}
