//! Recorded dumps of two proxies, and what istioctl prints for them.

use super::*;

const WEB: &str = include_str!("../../tests/recorded/config_dump.web.json");
const EDGE: &str = include_str!("../../tests/recorded/config_dump.edge.json");

fn dump(text: &str) -> ConfigDump {
    ConfigDump::parse(text.as_bytes()).expect("a dump")
}

fn printed(text: &str, kind: Kind, filter: &Filter) -> String {
    let mut out = Vec::new();
    show(&dump(text), kind, filter, AnswerOutput::Table, &mut out).expect("printed");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn tables_are_those_of_istioctl() {
    let listener = Kind::Listener { verbose: true };
    let route = Kind::Route { verbose: true };
    let none = Filter::default();
    for (text, kind, expected) in [
        (WEB, Kind::Cluster, include_str!("../../tests/recorded/pc-clusters.txt")),
        (WEB, listener, include_str!("../../tests/recorded/pc-listeners.txt")),
        (WEB, route, include_str!("../../tests/recorded/pc-routes.txt")),
        (EDGE, Kind::Cluster, include_str!("../../tests/recorded/pc-clusters-edge.txt")),
        (EDGE, listener, include_str!("../../tests/recorded/pc-listeners-edge.txt")),
        (EDGE, route, include_str!("../../tests/recorded/pc-routes-edge.txt")),
        (WEB, Kind::Secret, "No active or warming secrets found.\n"),
        (WEB, Kind::Ecds, "ECDS NAME     TYPE\n"),
    ] {
        assert_eq!(printed(text, kind, &none), expected, "{kind:?}");
    }
}

#[test]
fn table_of_all_kinds_is_that_of_istioctl() {
    let mut out = Vec::new();
    all(&dump(WEB), AnswerOutput::Table, &mut out).expect("printed");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let ours = String::from_utf8(out).expect("UTF-8");
    let ours: Vec<Vec<String>> = ours.lines().map(words).collect();
    // In the recording, the port of the API server was replaced, which moved columns.
    let recorded = include_str!("../../tests/recorded/pc-all.txt").replace("192.0.2.12:6443", "192.0.2.12:24443");
    let expected = recorded.lines().map(|line| match &mut words(line)[..] {
        // Of a cluster without a host, istioctl prints the name of the resource as host, with the kind before it.
        [name, host, rest @ ..] if name == host => {
            let host = host.replace("cluster/", "");
            [&[name.clone(), host], &*rest].concat()
        }
        words => words.to_vec(),
    });
    assert_eq!(ours, expected.collect::<Vec<_>>());
}

#[test]
fn clusters_are_selected_by_host_port_direction_and_subset() {
    let some = |text: &str| Some(text.to_owned());
    let outbound = Some(args::Direction::Outbound);
    for (filter, names) in [
        (
            Filter {
                fqdn: some("cart.shop.svc.cluster.local"),
                port: Some(80),
                direction: outbound,
                ..Filter::default()
            },
            &["outbound|80||cart.shop.svc.cluster.local"][..],
        ),
        (Filter { subset: some("v1"), ..Filter::default() }, &["outbound|80|v1|pay.store.svc.cluster.local"]),
        (Filter { direction: Some(args::Direction::Inbound), ..Filter::default() }, &["inbound|8080||"]),
        (Filter { fqdn: some("nowhere"), ..Filter::default() }, &[]),
    ] {
        let selected = selected(&dump(WEB), Kind::Cluster, &filter);
        let selected: Vec<_> = selected.as_array().expect("clusters").iter().map(|it| text(it, "name")).collect();
        assert_eq!(selected, names, "{filter:?}");
    }
}

#[test]
fn listeners_are_selected_by_port_address_and_type() {
    let some = |text: &str| Some(text.to_owned());
    for (filter, count) in [
        (Filter { port: Some(15_006), ..Filter::default() }, 1),
        (Filter { address: some("10.96.0.1"), ..Filter::default() }, 1),
        (Filter { kind: some("tcp"), ..Filter::default() }, 6),
        (Filter { port: Some(1), ..Filter::default() }, 0),
    ] {
        let short = printed(WEB, Kind::Listener { verbose: false }, &filter);
        assert_eq!(short.lines().count(), count + 1, "{short}");
    }
}

#[test]
fn routes_are_selected_by_name() {
    let filter = Filter { name: Some("7000".to_owned()), ..Filter::default() };
    let short = printed(WEB, Kind::Route { verbose: false }, &filter);
    assert_eq!(short, "NAME     VIRTUAL HOSTS\n7000     2\n");
}

#[test]
fn certificates_have_their_serial_number_and_validity() {
    let pem = include_str!("../../tests/recorded/certificate.pem");
    let secrets = json!({"configs": [{
        "@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
        "dynamic_active_secrets": [{"name": "default", "secret": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": "default",
            "tls_certificate": {"certificate_chain": {"inline_string": pem}, "private_key": {"inline_string": "-----BEGIN"}},
        }}],
        "dynamic_warming_secrets": [{"name": "ROOTCA", "secret": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": "ROOTCA",
            "validation_context": {"trusted_ca": {"inline_string": pem}},
        }}],
    }]});
    let dump = dump(&secrets.to_string());
    let at = |text: &str| text.parse::<Timestamp>().expect("a time");
    let rows = secrets::rows(&dump, "", at("2026-06-01T00:00:00Z"));
    let of = |cells: [&str; 7]| cells.map(str::to_owned).to_vec();
    assert_eq!(
        rows,
        [
            of(["default", "Cert Chain", "ACTIVE", "true", "1a2b3c", "2036-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]),
            of(["ROOTCA", "CA", "WARMING", "true", "1a2b3c", "2036-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]),
        ]
    );
    assert_eq!(secrets::rows(&dump, "", at("2040-01-01T00:00:00Z"))[0][3], "false");
    let mut out = Vec::new();
    show(&dump, Kind::Secret, &Filter::default(), AnswerOutput::Json, &mut out).expect("printed");
    let text = String::from_utf8(out).expect("UTF-8");
    assert!(text.contains("[redacted]") && !text.contains("-----BEGIN\""), "{text}");
}
