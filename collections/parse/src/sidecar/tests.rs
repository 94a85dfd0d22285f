use serde_json::{Value, json};
use sluice_model::{CaptureMode, LocalEndpoint, Object, OutboundPolicy, ParsedObject, Protocol, Reject, Sidecar};

use crate::parse_object;

fn rejects(spec: &Value) -> Vec<Reject> {
    parsed(spec).rejects
}

fn parsed(spec: &Value) -> ParsedObject {
    let object = json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "Sidecar",
        "metadata": {"namespace": "orchard", "name": "s"},
        "spec": spec,
    });
    parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("of a known kind")
}

fn parse(spec: &Value) -> (Option<Sidecar>, Vec<String>) {
    let parsed = parsed(spec);
    let sidecar = match parsed.object {
        Some(Object::Sidecar(sidecar)) => Some(sidecar),
        _ => None,
    };
    (sidecar, parsed.rejects.iter().map(|reject| reject.field_path.to_string()).collect())
}

fn accepted(spec: Value) -> Sidecar {
    let (sidecar, paths) = parse(&spec);
    assert_eq!(paths, Vec::<String>::new(), "{spec}");
    sidecar.expect("accepted")
}

#[test]
fn all_fields_are_read() {
    let sidecar = accepted(json!({
        "workloadSelector": {"labels": {"app": "press"}},
        "ingress": [{
            "port": {"number": 9000, "protocol": "TCP", "name": "raw"},
            "bind": "0.0.0.0",
            "captureMode": "NONE",
            "defaultEndpoint": "unix:///run/press.sock",
            "connectionPool": {"tcp": {"maxConnections": 3}},
        }],
        "egress": [
            {"port": {"number": 0, "protocol": "HTTP", "name": "s"}, "bind": "unix:///run/out", "hosts": ["./*"]},
            {"hosts": ["*/*.example.com", "~shop/private.example.com"], "captureMode": "IPTABLES"},
        ],
        "inboundConnectionPool": {"http": {"http1MaxPendingRequests": 2}},
        "outboundTrafficPolicy": {
            "mode": "ALLOW_ANY",
            "egressProxy": {"host": "door.orchard.svc.cluster.local", "subset": "v2", "port": {"number": 8443}},
        },
    }));
    assert_eq!(sidecar.workload_selector, Some([("app".into(), "press".into())].into()));
    let ingress = &sidecar.ingress[0];
    assert_eq!((ingress.port.number, ingress.port.protocol, ingress.capture), (9000, Protocol::Tcp, CaptureMode::None));
    assert_eq!(ingress.endpoint, LocalEndpoint::Socket("unix:///run/press.sock".into()));
    assert_eq!(ingress.connection_pool.as_ref().and_then(|pool| pool.tcp.as_ref()).unwrap().max_connections, 3);
    assert_eq!(sidecar.egress[0].bind, *"unix:///run/out");
    assert!(sidecar.egress[1].port.is_none());
    assert!(sidecar.inbound_connection_pool.is_some());
    let outbound = sidecar.outbound.expect("declared");
    assert_eq!(outbound.policy, OutboundPolicy::AllowAny);
    assert_eq!(outbound.egress_proxy.expect("declared").port, Some(8443));
}

#[test]
fn default_endpoint_must_be_local() {
    let endpoint = |text: &str| {
        let spec = json!({"ingress": [{"port": {"number": 80, "protocol": "HTTP"}, "defaultEndpoint": text}]});
        accepted(spec).ingress[0].endpoint.clone()
    };
    assert_eq!(endpoint("127.0.0.1:8080"), LocalEndpoint::Loopback { v6: false, port: 8080 });
    assert_eq!(endpoint("[::1]:8080"), LocalEndpoint::Loopback { v6: true, port: 8080 });
    assert_eq!(endpoint("0.0.0.0:8080"), LocalEndpoint::Instance { v6: false, port: 8080 });
    assert_eq!(endpoint("[::]:8080"), LocalEndpoint::Instance { v6: true, port: 8080 });
    assert_eq!(endpoint(":8080"), LocalEndpoint::Original);
    assert_eq!(endpoint(""), LocalEndpoint::Original);
}

#[test]
fn invalid_fields_are_reported_with_their_path() {
    let refused = |spec: Value, path: &str| {
        let found = rejects(&spec);
        let refused = found.iter().any(|reject| reject.severity.is_refusal() && reject.field_path == *path);
        assert!(refused, "{spec}: {found:?}");
    };
    let port = json!({"number": 80, "protocol": "HTTP"});
    refused(json!({}), "spec");
    refused(json!({"workloadSelector": {"labels": {"app": "a"}}}), "spec");
    refused(
        json!({"workloadSelector": {"labels": {"app": "*"}}, "egress": [{"hosts": ["*/*"]}]}),
        "spec.workloadSelector.labels",
    );
    refused(json!({"egress": [{"hosts": ["name"]}]}), "spec.egress[0].hosts[0]");
    refused(json!({"egress": [{"hosts": ["*/name"]}]}), "spec.egress[0].hosts[0]");
    refused(json!({"egress": [{"hosts": ["/a.b"]}]}), "spec.egress[0].hosts[0]");
    refused(json!({"egress": [{"hosts": ["a.b/c.d"]}]}), "spec.egress[0].hosts[0]");
    refused(json!({"egress": [{"port": port}]}), "spec.egress[0].hosts");
    refused(json!({"egress": [{"hosts": ["*/*"]}, {"hosts": ["*/*"]}]}), "spec.egress[0].port");
    let twice = json!([{"port": port, "hosts": ["*/*"]}, {"port": port, "hosts": ["*/*"]}]);
    refused(json!({"egress": twice}), "spec.egress[1].port.number");
    let socket = json!({"number": 0, "protocol": "HTTP"});
    refused(json!({"egress": [{"port": socket, "hosts": ["*/*"], "bind": "127.0.0.1"}]}), "spec.egress[0].bind");
    refused(
        json!({"egress": [{"port": socket, "hosts": ["*/*"], "bind": "unix:///a", "captureMode": "IPTABLES"}]}),
        "spec.egress[0].captureMode",
    );
    refused(
        json!({"egress": [{"port": {"number": 80, "protocol": "SMTP"}, "hosts": ["*/*"]}]}),
        "spec.egress[0].port.protocol",
    );
    refused(json!({"ingress": [{"defaultEndpoint": "127.0.0.1:80"}]}), "spec.ingress[0].port");
    refused(json!({"ingress": [{"port": port}, {"port": port}]}), "spec.ingress[1].port.number");
    for endpoint in ["10.0.0.1:80", "127.0.0.1", "127.0.0.1:0", "unix://", "unix://a", "unix:///a/"] {
        refused(json!({"ingress": [{"port": port, "defaultEndpoint": endpoint}]}), "spec.ingress[0].defaultEndpoint");
    }
    refused(json!({"ingress": [{"port": port, "bind": "here"}]}), "spec.ingress[0].bind");
    refused(json!({"ingress": [{"port": port, "connectionPool": {}}]}), "spec.ingress[0].connectionPool");
    let tls = json!({"mode": "SIMPLE", "serverCertificate": "a", "privateKey": "b"});
    refused(json!({"ingress": [{"port": port, "tls": tls}]}), "spec.ingress[0].tls");
    let mutual = json!({"port": {"number": 443, "protocol": "HTTPS"}, "tls": {"mode": "ISTIO_MUTUAL"}});
    refused(json!({"ingress": [mutual]}), "spec.ingress[0].tls.mode");
    refused(json!({"outboundTrafficPolicy": {"mode": "ALLOW_ANY_DYNAMIC_DNS"}}), "spec.outboundTrafficPolicy.mode");
    let proxy = json!({"host": "a.b", "port": {"number": 80}});
    refused(json!({"outboundTrafficPolicy": {"egressProxy": proxy}}), "spec.outboundTrafficPolicy.egressProxy");
    let proxy = json!({"host": "a.b"});
    refused(
        json!({"outboundTrafficPolicy": {"mode": "ALLOW_ANY", "egressProxy": proxy}}),
        "spec.outboundTrafficPolicy.egressProxy.port",
    );
}

#[test]
fn redundant_fields_are_warnings() {
    let warned = |spec: Value, path: &str| {
        let (sidecar, paths) = parse(&spec);
        assert!(sidecar.is_some(), "{spec}");
        assert_eq!(paths, [path], "{spec}");
    };
    warned(json!({"workloadSelector": {}, "egress": [{"hosts": ["*/*"]}]}), "spec.workloadSelector.labels");
    warned(json!({"egress": [{"hosts": ["./a.b", "orchard/a.b"]}]}), "spec.egress[0].hosts[1]");
    warned(json!({"egress": [{"hosts": ["*/*", "./a.b"]}]}), "spec.egress[0].hosts");
    let raw = json!({"port": {"number": 80, "protocol": "TCP"}, "connectionPool": {"http": {"maxRetries": 1}}});
    warned(json!({"ingress": [raw]}), "spec.ingress[0].connectionPool.http");
}
