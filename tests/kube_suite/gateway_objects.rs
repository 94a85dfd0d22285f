//! Objects of the Gateway API, one of each kind whose status is written.

use serde_json::{Value, json};
use sluice_model::gateway_api::GROUP;

/// A route of a kind to the Gateway `door` of namespace `edge`.
pub(crate) fn route(kind: &str, section: &str) -> Value {
    let mut route = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"namespace": "edge", "name": "route"},
        "spec": {
            "parentRefs": [{"name": "door", "sectionName": section}],
            "rules": [{"backendRefs": [{"name": "cart", "port": 80}]}],
        },
    });
    if kind == "TLSRoute" {
        route["spec"]["hostnames"] = json!(["cart.example"]);
    }
    route
}

/// A Gateway with listeners for all kinds of routes, a ListenerSet, a policy for a backend, and a route of each kind.
pub(crate) fn gateway_objects() -> Vec<Value> {
    let version = format!("{GROUP}/v1");
    let listener = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": name.to_uppercase()});
    let mut tls = listener("tls", 443);
    tls["tls"] = json!({"mode": "Passthrough"});
    let gateway = json!({
        "apiVersion": version, "kind": "Gateway", "metadata": {"namespace": "edge", "name": "door"},
        "spec": {
            "gatewayClassName": "istio", "allowedListeners": {"namespaces": {"from": "Same"}},
            "listeners": [listener("http", 80), listener("tcp", 9000), tls, listener("udp", 9000)],
        },
    });
    let set = json!({
        "apiVersion": version, "kind": "ListenerSet", "metadata": {"namespace": "edge", "name": "more"},
        "spec": {"parentRef": {"name": "door"}, "listeners": [listener("http", 8080)]},
    });
    let routes =
        [("HTTPRoute", "http"), ("GRPCRoute", "http"), ("TCPRoute", "tcp"), ("TLSRoute", "tls"), ("UDPRoute", "udp")];
    let policy = json!({
        "apiVersion": version, "kind": "BackendTLSPolicy", "metadata": {"namespace": "edge", "name": "tls"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "cart"}],
            "validation": {"hostname": "cart.example", "wellKnownCACertificates": "System"},
        },
    });
    [gateway, set, policy].into_iter().chain(routes.map(|(kind, section)| route(kind, section))).collect()
}
