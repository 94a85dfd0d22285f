//! Objects of a remote cluster: copies of the services and workloads of a mesh, and Gateways that lead into their network.

use serde_json::{Value, json};

#[cfg(test)]
use super::input_change::InputChange;
use crate::seeds::Seed;

/// Id of the cluster.
const REMOTE: &str = "remote";
/// Its network.
const NETWORK: &str = "far";
/// Kinds that are copied.
const COPIED: [&str; 4] = ["EndpointSlice", "Namespace", "Pod", "Service"];

/// The objects of the remote cluster of a mesh with these objects.
pub(super) fn objects(mesh: &[Seed]) -> Vec<Seed> {
    let copied = mesh.iter().filter(|seed| COPIED.contains(&seed.kind())).map(|seed| seed.object.clone());
    let labels = json!({ "topology.istio.io/network": NETWORK });
    let system =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "istio-system", "labels": labels } });
    let all = copied.chain([system]).chain(gateways());
    all.map(|object| Seed { cluster: REMOTE.into(), object }).collect()
}

/// Gateways that are east-west gateways, that request their addresses, that stand for others, and a waypoint.
fn gateways() -> [Value; 4] {
    let at = |address: &str| json!({ "type": "IPAddress", "value": address });
    let tls = json!({ "mode": "Terminate", "options": { "gateway.istio.io/tls-terminate-mode": "ISTIO_MUTUAL" } });
    let hbone = json!({ "name": "mesh", "port": 15008, "protocol": "HBONE", "tls": tls });
    let mtls = json!({ "name": "mtls", "port": 15443, "protocol": "TLS", "tls": { "mode": "Passthrough" } });
    let host = json!({ "type": "Hostname", "value": "eastwest.example.com" });
    let gateway = |name: &str, class: &str, addresses: Value, assigned: Value| {
        let labels = json!({ "topology.istio.io/network": NETWORK });
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": { "name": name, "namespace": "istio-system", "labels": labels },
            "spec": { "gatewayClassName": class, "addresses": addresses, "listeners": [hbone, mtls] },
            "status": { "addresses": assigned },
        })
    };
    [
        gateway("east-west", "istio-east-west", json!([]), json!([at("203.0.113.1")])),
        gateway("requested", "istio", json!([at("203.0.113.2"), host]), json!([])),
        gateway("elsewhere", "istio-remote", json!([at("203.0.113.3")]), json!([at("203.0.113.3")])),
        gateway("waypoint", "istio-waypoint", json!([]), json!([at("10.0.0.77")])),
    ]
}

/// Whether the changes write a Gateway of the cluster.
#[cfg(test)]
pub(super) fn has_gateway(changes: &[InputChange]) -> bool {
    let is_gateway = |seed: &Seed| *seed.cluster == *REMOTE && seed.kind() == "Gateway";
    changes.iter().any(|change| matches!(change, InputChange::Set(seed) if is_gateway(seed)))
}
