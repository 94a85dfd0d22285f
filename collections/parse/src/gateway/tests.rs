use serde_json::json;

use super::*;

/// What is found in a Gateway that applies, as `path: reason`.
fn warnings(spec: Value) -> Vec<String> {
    let meta = ObjectMeta { namespace: "edge".into(), name: "front".into(), ..ObjectMeta::default() };
    let findings = Findings::default();
    assert!(parse_gateway(&meta, &spec, &findings).is_some(), "{findings:?}");
    findings.into_vec().iter().map(|f| format!("{:?} {}: {}", f.severity, f.field_path, f.reason)).collect()
}

fn parse(spec: Value) -> Result<Gateway, Vec<String>> {
    let meta = ObjectMeta { namespace: "edge".into(), name: "front".into(), ..ObjectMeta::default() };
    let findings = Findings::default();
    let gateway = parse_gateway(&meta, &spec, &findings);
    gateway.ok_or_else(|| findings.into_vec().iter().map(|f| f.field_path.to_string()).collect())
}

fn server(more: Value) -> Value {
    let mut server = json!({"port": {"number": 443, "name": "https", "protocol": "HTTPS"}, "hosts": ["*"]});
    if let (Some(server), Value::Object(more)) = (server.as_object_mut(), more) {
        server.extend(more);
    }
    json!({"servers": [server]})
}

#[test]
fn hosts_name_their_namespace() {
    let check = |hosts: &[&str], expect: &[&str]| {
        let spec = server(json!({"hosts": hosts, "tls": {"mode": "PASSTHROUGH"}}));
        let gateway = parse(spec).unwrap();
        assert_eq!(gateway.servers[0].hosts, expect.iter().map(|h| Text::from(*h)).collect::<Vec<_>>());
    };
    check(&["./a.com", "shop/b.com", "*/c.com", "d.com"], &["edge/a.com", "shop/b.com", "c.com", "d.com"]);
    check(&["a.com", "*/*"], &["*"]);
}

#[test]
fn mistakes_have_a_path() {
    let check = |spec: Value, expect: &str| assert_eq!(parse(spec).unwrap_err(), [expect]);
    check(json!({"servers": []}), "spec.servers");
    check(server(json!({})), "spec.servers[0].tls");
    check(server(json!({"tls": {"mode": "SIMPLE"}})), "spec.servers[0].tls.serverCertificate");
    check(
        server(json!({"tls": {"mode": "SIMPLE", "credentialName": "a", "credentialNames": ["b"]}})),
        "spec.servers[0].tls",
    );
    check(server(json!({"tls": {"mode": "MAYBE"}})), "spec.servers[0].tls.mode");
    check(server(json!({"hosts": ["a..b"], "tls": {"mode": "PASSTHROUGH"}})), "spec.servers[0].hosts[0]");
}

#[test]
fn servers_without_a_listener_are_told() {
    let check = |protocol: &str, tls: Value, expect: Option<&str>| {
        let port =
            |number: u32, protocol: &str| json!({"number": number, "name": number.to_string(), "protocol": protocol});
        let mut server = json!({"port": port(443, protocol), "hosts": ["a.com"]});
        if !tls.is_null() {
            server["tls"] = tls;
        }
        let plain = json!({"port": port(80, "HTTP"), "hosts": ["*"]});
        let expect = expect.map(|what| {
            format!("Warning spec.servers[1].port.protocol: servers of protocol {what} are not served yet")
        });
        assert_eq!(warnings(json!({"servers": [plain, server]})), expect.as_slice(), "{protocol}");
    };
    let none = Value::Null;
    for plain in ["HTTP", "HTTP2", "GRPC", "GRPC-WEB", "http"] {
        check(plain, none.clone(), None);
    }
    check("HTTP", json!({"httpsRedirect": true}), None);
    for opaque in ["TCP", "UDP", "MONGO"] {
        check(opaque, none.clone(), Some(opaque));
    }
    check("HTTPS", json!({"mode": "SIMPLE", "credentialName": "a"}), Some("HTTPS with TLS mode SIMPLE"));
    check("https", json!({"mode": "ISTIO_MUTUAL"}), Some("HTTPS with TLS mode ISTIO_MUTUAL"));
    check("HTTPS", json!({"mode": "PASSTHROUGH"}), Some("HTTPS with TLS mode PASSTHROUGH"));
    check("TLS", json!({"mode": "MUTUAL", "credentialName": "a"}), Some("TLS with TLS mode MUTUAL"));
    check("TLS", json!({"mode": "AUTO_PASSTHROUGH"}), Some("TLS with TLS mode AUTO_PASSTHROUGH"));
}
