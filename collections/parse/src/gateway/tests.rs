use serde_json::json;

use super::*;

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
