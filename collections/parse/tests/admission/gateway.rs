use super::check;

/// Checks a server. Paths of findings are relative to `spec.servers[0]`.
fn server(table: &[(&str, &[&str])]) {
    let below = |path: &&str| format!("{} spec.servers[0].{}", &path[..1], &path[2..]).trim_end_matches('.').to_owned();
    let table: Vec<(String, Vec<String>)> = table
        .iter()
        .map(|(server, found)| (format!("{{servers: [{server}]}}"), found.iter().map(below).collect()))
        .collect();
    let paths: Vec<Vec<&str>> = table.iter().map(|(_, found)| found.iter().map(String::as_str).collect()).collect();
    let table: Vec<(&str, &[&str])> =
        table.iter().zip(&paths).map(|((spec, _), found)| (spec.as_str(), found.as_slice())).collect();
    check("networking.istio.io/v1", "Gateway", &table);
}

#[test]
fn hosts_and_ports_are_checked() {
    let with = |hosts: &str| format!("{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: [{hosts}]}}");
    let table: Vec<(String, &[&str])> = vec![
        (with("'*', a.b, ./a.b, shop/*.b, '*/*', 1.2.3.4"), &[]),
        (with("a"), &["R hosts[0]"]),
        (with("'*-a.b'"), &["R hosts[0]"]),
        (with("a_b.c"), &["R hosts[0]"]),
        (with("x y/a.b"), &["E hosts[0]"]),
        (with("a..b"), &["E hosts[0]"]),
        ("{port: {number: 0, name: http, protocol: HTTP}, hosts: [a.b]}".to_owned(), &["E port.number"]),
        ("{port: {number: 80, name: http, protocol: SMTP}, hosts: [a.b]}".to_owned(), &["E port.protocol"]),
        ("{port: {number: 80, protocol: HTTP}, hosts: [a.b]}".to_owned(), &["E port.name"]),
        (
            "{port: {number: 80, name: http, protocol: HTTP, targetPort: 1}, hosts: [a.b]}".to_owned(),
            &["R port.targetPort"],
        ),
        ("{hosts: [a.b]}".to_owned(), &["E port"]),
    ];
    let table: Vec<(&str, &[&str])> = table.iter().map(|(server, found)| (server.as_str(), *found)).collect();
    server(&table);
}

#[test]
fn tls_settings_are_checked() {
    let with = |tls: &str| format!("{{port: {{number: 443, name: tls, protocol: HTTPS}}, hosts: [a.b], tls: {tls}}}");
    let table: Vec<(String, &[&str])> = vec![
        (with("{mode: SIMPLE, credentialName: c}"), &[]),
        (with("{mode: SIMPLE, credentialNames: [a, b, c]}"), &["R tls.credentialNames"]),
        (with("{mode: SIMPLE, credentialName: a, credentialNames: [b]}"), &["E tls"]),
        (with("{mode: SIMPLE}"), &["E tls.serverCertificate"]),
        (with("{mode: MUTUAL, serverCertificate: a, privateKey: b}"), &["E tls.caCertificates"]),
        (with("{mode: PASSTHROUGH, credentialName: a}"), &["W tls.mode"]),
        (with("{mode: ISTIO_MUTUAL, credentialName: a}"), &["E tls.mode"]),
        (with("{mode: SIMPLE, credentialName: c, cipherSuites: [NONE]}"), &["W tls.cipherSuites[0]"]),
        (with("{mode: SIMPLE, credentialName: c, minProtocolVersion: TLSV1_0}"), &["W tls.minProtocolVersion"]),
    ];
    let table: Vec<(&str, &[&str])> = table.iter().map(|(server, found)| (server.as_str(), *found)).collect();
    server(&table);
}
