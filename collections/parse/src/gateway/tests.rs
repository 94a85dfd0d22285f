use serde_json::json;

use super::*;

/// The findings of a Gateway that applies, as `path: reason`.
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
fn hosts_are_read_with_their_namespace() {
    let check = |hosts: &[&str], expect: &[&str]| {
        let spec = server(json!({"hosts": hosts, "tls": {"mode": "PASSTHROUGH"}}));
        let gateway = parse(spec).unwrap();
        assert_eq!(gateway.servers[0].hosts, expect.iter().map(|h| Text::from(*h)).collect::<Vec<_>>());
    };
    check(&["./a.com", "shop/b.com", "*/c.com", "d.com"], &["edge/a.com", "shop/b.com", "c.com", "d.com"]);
    check(&["a.com", "*/*"], &["*"]);
}

#[test]
fn invalid_fields_are_reported_with_their_path() {
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
fn ignored_tls_settings_are_reported() {
    let check = |tls: Value, expect: &[&str]| {
        let found = warnings(server(json!({"tls": tls})));
        let paths: Vec<&str> = found.iter().filter_map(|line| line.split_once(": ")).map(|(path, _)| path).collect();
        let expect: Vec<String> = expect.iter().map(|line| line.replace(' ', " spec.servers[0].tls.")).collect();
        assert_eq!(paths, expect, "{tls}");
    };
    check(json!({"mode": "SIMPLE", "credentialName": "a", "cipherSuites": ["AES128-SHA", "-ALL"]}), &[]);
    let suites = json!(["AES128-SHA", "RC4", "AES128-SHA"]);
    check(
        json!({"mode": "SIMPLE", "credentialName": "a", "cipherSuites": suites}),
        &["Warning cipherSuites[1]", "Warning cipherSuites[2]"],
    );
    check(
        json!({"mode": "SIMPLE", "credentialName": "a", "minProtocolVersion": "TLSV1_1"}),
        &["Warning minProtocolVersion"],
    );
    check(json!({"mode": "PASSTHROUGH", "caCrl": "/etc/crl"}), &["Warning mode"]);
    let files = json!({"mode": "SIMPLE", "serverCertificate": "c", "privateKey": "k", "caCrl": "r"});
    check(files, &["Refused caCrl"]);
}

#[test]
fn unix_domain_socket_requires_a_path_and_port_0() {
    let of = |bind: &str, number: u32| {
        let port = json!({"number": number, "name": "http", "protocol": "HTTP"});
        parse(json!({"servers": [{"port": port, "bind": bind, "hosts": ["*"]}]})).err().unwrap_or_default()
    };
    assert!(of("unix:///run/front", 0).is_empty());
    assert!(of("unix://@front", 0).is_empty());
    assert!(of("10.0.0.1", 80).is_empty());
    assert_eq!(of("unix:///run/front", 80), ["spec.servers[0].port.number"]);
    assert_eq!(of("unix://run/front", 0), ["spec.servers[0].bind"]);
    assert_eq!(of("front.example", 80), ["spec.servers[0].bind"]);
}
