//! Servers of Gateways: each has a listener, or a record says that it has none.

use sluice_model::{Kind, ObjectKey, ProxyType, ResourceType, Severity, View};

use super::{Mesh, sidecar};
use crate::RejectKey;

impl Mesh {
    /// Names of the listeners written for routers.
    fn router_listeners(&self) -> Vec<String> {
        let now = self.engine.snapshot();
        let keys = self.handles.resources.iter().flat_map(|of| now.iter(of)).map(|(key, _)| key.clone());
        let listeners = keys.filter(|key| key.resource_type == ResourceType::Listener);
        let listeners =
            listeners.filter(|key| matches!(key.layer.view, View::Workload(_)) && key.name != *"virtualInbound");
        listeners.map(|key| key.name.to_string()).collect()
    }

    /// Where something is wrong with the Gateway, and why; none of it stops it from being applied.
    fn doubts(&self) -> Vec<String> {
        let key = RejectKey { kind: Kind::Gateway, object: ObjectKey::new("Kubernetes", "edge", "front") };
        let rejects = self.get(&self.handles.rejects, &key).unwrap_or_default();
        assert!(rejects.iter().all(|reject| reject.severity == Severity::Warning && reject.object == key.object));
        rejects.iter().map(|reject| format!("{}: {}", reject.field_path, reject.reason)).collect()
    }
}

/// A mesh with a router.
fn edge() -> Mesh {
    let mesh = Mesh::new("{apiVersion: v1, kind: Namespace, metadata: {name: edge}}");
    let mut router = sidecar("edge", "router", "10.1.0.8", &[("istio", "ingress")]);
    router.proxy_type = ProxyType::Router;
    mesh.connect(router);
    mesh
}

fn gateway(servers: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: front, namespace: edge}}
spec:
  selector: {{istio: ingress}}
  servers: [{servers}]"
    )
}

#[test]
fn a_server_has_a_listener_or_a_reject() {
    let mesh = edge();
    let check = |protocol: &str, tls: &str| {
        let server = format!("{{port: {{number: 8443, name: it, protocol: {protocol}}}, hosts: [a.example]{tls}}}");
        let is_plain = protocol.starts_with("HTTP") && protocol != "HTTPS" || protocol.starts_with("GRPC");
        mesh.write(&gateway(&server), !is_plain);
        assert_eq!(
            (mesh.router_listeners().len(), mesh.doubts().len()),
            if is_plain { (1, 0) } else { (0, 1) },
            "{server}"
        );
    };
    for protocol in
        ["HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTP_PROXY", "TCP", "UDP", "MONGO", "REDIS", "MYSQL", "HBONE"]
    {
        check(protocol, "");
    }
    check("HTTP", ", tls: {httpsRedirect: true}");
    for mode in ["SIMPLE, credentialName: c", "MUTUAL, credentialName: c", "OPTIONAL_MUTUAL, credentialName: c"] {
        check("HTTPS", &format!(", tls: {{mode: {mode}}}"));
        check("TLS", &format!(", tls: {{mode: {mode}}}"));
    }
    for mode in ["ISTIO_MUTUAL", "PASSTHROUGH", "AUTO_PASSTHROUGH"] {
        check("HTTPS", &format!(", tls: {{mode: {mode}}}"));
        check("TLS", &format!(", tls: {{mode: {mode}}}"));
    }
}

#[test]
fn the_reject_of_a_server_goes_with_it() {
    let mesh = edge();
    let plain = "{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}";
    let tls = "{port: {number: 443, name: tls, protocol: TLS}, hosts: ['*'], tls: {mode: AUTO_PASSTHROUGH}}";
    let doubt = |n: usize| {
        format!(
            "spec.servers[{n}].port.protocol: servers of protocol TLS with TLS mode AUTO_PASSTHROUGH are not served yet"
        )
    };
    mesh.write(&gateway(&format!("{plain}, {tls}")), true);
    assert_eq!(mesh.doubts(), [doubt(1)]);
    assert_eq!(mesh.router_listeners(), ["0.0.0.0_80"]);
    mesh.write(&gateway(&format!("{tls}, {plain}")), true);
    assert_eq!(mesh.doubts(), [doubt(0)]);
    mesh.apply(&gateway(plain));
    assert!(mesh.engine.snapshot().is_empty(&mesh.handles.rejects));
    assert_eq!(mesh.router_listeners(), ["0.0.0.0_80"]);
    // It does not depend on routers, and goes with the Gateway.
    mesh.write(&gateway(tls).replace("istio: ingress", "istio: none"), true);
    assert_eq!(mesh.doubts(), [doubt(0)]);
    mesh.delete(Kind::Gateway, "edge", "front");
    mesh.engine.flush();
    assert!(mesh.engine.snapshot().is_empty(&mesh.handles.rejects));
}

#[test]
fn an_object_of_a_kind_that_is_not_supported_is_a_record_until_it_goes() {
    let mesh = edge();
    let text = "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: all, namespace: edge}, spec: {}}";
    mesh.write(text, true);
    let key = RejectKey { kind: Kind::Sidecar, object: ObjectKey::new("Kubernetes", "edge", "all") };
    let rejects = mesh.get(&mesh.handles.rejects, &key).expect("a record");
    assert_eq!(rejects.len(), 1);
    assert_eq!(rejects[0].reason, *"this kind is not supported yet");
    mesh.delete(Kind::Sidecar, "edge", "all");
    mesh.engine.flush();
    assert!(mesh.engine.snapshot().is_empty(&mesh.handles.rejects));
}
