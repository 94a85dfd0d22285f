//! Clusters Envoy has from the start: this machine's, and the way to its configuration and secrets.

use std::path::Path;

use serde_json::{Value, json};

use super::{Hosts, Inputs, ads, socket_address};
use crate::node::Node;
use crate::settings::{CREDENTIAL_SOCKET, FILES_SOCKET, IDENTITY_DIRECTORY};

/// The cluster of the proxy's own service, for routing that prefers its zone.
pub(super) const LOCAL: &str = "local_cluster";

/// Whether the proxy learns the endpoints of its own service.
pub(super) fn discovers_itself(node: &Node) -> bool {
    node.metadata.get("ENABLE_SELF_DISCOVERY").is_some_and(|value| value == "true" || value == true)
}

pub(super) fn build(inputs: &Inputs<'_>, hosts: &Hosts) -> Vec<Value> {
    let ports = inputs.settings.ports;
    let identity = Path::new(IDENTITY_DIRECTORY).join(&inputs.settings.identity.socket_name);
    let mut clusters = vec![
        fixed("prometheus_stats", "0.250s", socket_address(hosts.local, ports.admin)),
        fixed("agent", "0.250s", socket_address(hosts.local, ports.status)),
        grpc("sds-grpc", &identity),
        xds(&inputs.settings.control_plane.socket),
    ];
    if inputs.foreign_identity {
        clusters.push(grpc("sds-files-grpc", Path::new(FILES_SOCKET)));
    }
    if inputs.credential_socket {
        clusters.push(grpc("sds-external", Path::new(CREDENTIAL_SOCKET)));
    }
    if discovers_itself(inputs.node) {
        clusters.push(json!({
            "name": LOCAL,
            "type": "EDS",
            "connect_timeout": "1s",
            "eds_cluster_config": { "eds_config": ads(), "service_name": LOCAL },
        }));
    }
    clusters
}

/// A cluster of one address. The name of its statistics ends in `;`, as of every other cluster.
fn fixed(name: &str, connect_timeout: &str, address: Value) -> Value {
    json!({
        "name": name,
        "alt_stat_name": format!("{name};"),
        "type": "STATIC",
        "connect_timeout": connect_timeout,
        "load_assignment": load_assignment(name, address),
    })
}

fn grpc(name: &str, socket: &Path) -> Value {
    let mut cluster = fixed(name, "1s", json!({ "pipe": { "path": socket } }));
    cluster["typed_extension_protocol_options"] = http2();
    cluster
}

fn xds(socket: &Path) -> Value {
    let mut cluster = grpc("xds-grpc", socket);
    let unlimited = |priority: &str| json!({ "priority": priority, "max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000 });
    cluster["circuit_breakers"] = json!({ "thresholds": [unlimited("DEFAULT"), unlimited("HIGH")] });
    cluster["upstream_connection_options"] = json!({ "tcp_keepalive": { "keepalive_time": 300 } });
    cluster
}

pub(super) fn load_assignment(name: &str, address: Value) -> Value {
    json!({
        "cluster_name": name,
        "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
    })
}

pub(super) fn http2() -> Value {
    json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": {} },
        },
    })
}
