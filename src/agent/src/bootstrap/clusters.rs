//! Envoy's static clusters: its admin interface, the agent, and the sources of configuration and secrets.

use std::path::Path;

use serde_json::{Value, json};

use super::{BootstrapInputs, FamilyAddresses, ads, socket_address};
use crate::node::EnvoyNode;
use crate::settings::{CREDENTIAL_SOCKET, FILES_SOCKET, IDENTITY_DIRECTORY};

/// The cluster of the proxy's own service, for zone-aware routing.
pub(super) const LOCAL_CLUSTER: &str = "local_cluster";

/// Whether the proxy discovers the endpoints of its own service.
pub(super) fn has_self_discovery(node: &EnvoyNode) -> bool {
    node.metadata.get("ENABLE_SELF_DISCOVERY").is_some_and(|value| value == "true" || value == true)
}

pub(super) fn build(inputs: &BootstrapInputs<'_>, hosts: &FamilyAddresses) -> Vec<Value> {
    let ports = inputs.settings.ports;
    let identity = Path::new(IDENTITY_DIRECTORY).join(&inputs.settings.identity.socket_name);
    let mut clusters = vec![
        static_cluster("prometheus_stats", "0.250s", socket_address(hosts.local, ports.admin)),
        static_cluster("agent", "0.250s", socket_address(hosts.local, ports.status)),
        grpc("sds-grpc", &identity),
        xds(&inputs.settings.control_plane.socket),
    ];
    if inputs.external_sds {
        clusters.push(grpc("sds-files-grpc", Path::new(FILES_SOCKET)));
    }
    if inputs.credential_socket {
        clusters.push(grpc("sds-external", Path::new(CREDENTIAL_SOCKET)));
    }
    if has_self_discovery(inputs.node) {
        clusters.push(json!({
            "name": LOCAL_CLUSTER,
            "type": "EDS",
            "connect_timeout": "1s",
            "eds_cluster_config": { "eds_config": ads(), "service_name": LOCAL_CLUSTER },
        }));
    }
    clusters
}

/// A cluster of one address. The name of its statistics ends in `;`, like that of all clusters.
fn static_cluster(name: &str, connect_timeout: &str, address: Value) -> Value {
    json!({
        "name": name,
        "alt_stat_name": format!("{name};"),
        "type": "STATIC",
        "connect_timeout": connect_timeout,
        "load_assignment": load_assignment(name, address),
    })
}

fn grpc(name: &str, socket: &Path) -> Value {
    let mut cluster = static_cluster(name, "1s", json!({ "pipe": { "path": socket } }));
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
