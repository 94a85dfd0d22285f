use prost::Message;
use sluice_model::{Gateway, GatewayServer, Protocol, ServerTls};
use sluice_proto::envoy::config::route::v3::VirtualHost;

use super::*;
use crate::outputs::routes::virtual_hosts::tests::{FakeRouteContext, client, profile, service, virtual_service};
use crate::traffic::gateways::{MergeOptions, SelectingGateway, merge_gateways};

const A: &str = "a.shop.svc.cluster.local";

fn server(port: u32, hosts: &[&str], redirect: bool) -> GatewayServer {
    GatewayServer {
        port,
        port_name: format!("p{port}").into(),
        protocol: Protocol::Http,
        protocol_text: "HTTP".into(),
        hosts: hosts.iter().map(|host| Text::from(*host)).collect(),
        tls: redirect.then(|| ServerTls { https_redirect: true, ..ServerTls::default() }),
        ..GatewayServer::default()
    }
}

fn bound(name: &str, hosts: &[&str]) -> VirtualService {
    VirtualService { gateways: vec!["edge/front".into()], ..virtual_service("shop", name, hosts, A) }
}

fn key(vs: &VirtualService) -> ObjectKey {
    ObjectKey::new("c", vs.namespace.clone(), vs.name.clone())
}

/// Name, domains, number of routes and whether TLS is required, of each virtual host of the only table.
fn show(servers: Vec<GatewayServer>, virtual_services: &[VirtualService]) -> Vec<String> {
    let gateway = Gateway { namespace: "edge".into(), name: "front".into(), servers, ..Gateway::default() };
    let merged =
        merge_gateways("edge", [SelectingGateway { gateway: &gateway, targets: Vec::new() }], MergeOptions::default());
    let fake = FakeRouteContext {
        services: vec![service("shop", A, "10.0.0.1", &[(80, Protocol::Http)])],
        ..FakeRouteContext::default()
    };
    let bound_to = |gateway: &Text| {
        let bound = virtual_services.iter().filter(|vs| vs.gateways.contains(gateway));
        bound.map(|vs| (key(vs), Arc::new(vs.clone()))).collect::<Vec<_>>()
    };
    let planned = plan_virtual_hosts(&merged.tables[0], &bound_to, &client("edge"));
    let find = |source: &RouteSource| {
        let found = virtual_services.iter().find(|vs| key(vs) == source.virtual_service);
        found.cloned().map(Arc::new)
    };
    let build = |planned: &PlannedHost| build_planned_host(&fake, planned, &find, &client("edge"), &profile());
    let hosts: BTreeMap<Text, Bytes> = planned.iter().map(|host| (host.name.clone(), build(host))).collect();
    let line = |bytes: &Bytes| {
        let host = VirtualHost::decode(bytes.clone()).expect("a virtual host");
        let tls = if host.require_tls > 0 { " tls" } else { "" };
        format!("{} [{}] {}{tls}", host.name, host.domains.join(" "), host.routes.len())
    };
    hosts.values().map(line).collect()
}

#[test]
fn hosts_of_one_virtual_service_are_one_virtual_host() {
    let vs = bound("vs", &["long.example", "b.example"]);
    assert_eq!(show(vec![server(80, &["*"], false)], &[vs]), ["long.example:80 [long.example b.example] 1"]);
}

#[test]
fn the_narrower_of_server_and_virtual_service_counts() {
    let check = |server_host: &str, host: &str, expect: &str| {
        let shown = show(vec![server(80, &[server_host], false)], &[bound("vs", &[host])]);
        assert_eq!(shown, [expect]);
    };
    check("*.example", "a.example", "a.example:80 [a.example] 1");
    check("a.example", "*.example", "a.example:80 [a.example] 1");
    check("shop/a.example", "a.example", "a.example:80 [a.example] 1");
    check("other/a.example", "a.example", "blackhole:80 [*] 0");
}

#[test]
fn virtual_services_of_one_host_follow_one_another() {
    let all = [bound("one", &["a.example"]), bound("two", &["a.example", "b.example"])];
    let shown = show(vec![server(80, &["*"], false)], &all);
    assert_eq!(shown, ["a.example:80 [a.example] 2", "b.example:80 [b.example] 1"]);
}

#[test]
fn a_redirecting_server_has_hosts_without_routes() {
    let shown = show(vec![server(80, &["a.example", "b.example"], true)], &[bound("vs", &["a.example"])]);
    assert_eq!(shown, ["a.example:80 [a.example] 1 tls", "b.example:80 [b.example] 0 tls"]);
}

#[test]
fn a_virtual_service_without_a_route_for_the_port_is_none() {
    let mut elsewhere = bound("vs", &["a.example"]);
    elsewhere.http[0].matches = vec![HttpMatch { port: 81, ..HttpMatch::default() }];
    assert_eq!(show(vec![server(80, &["*"], false)], &[elsewhere.clone()]), ["blackhole:80 [*] 0"]);
    elsewhere.http[0].matches[0].gateways = vec!["edge/front".into()];
    elsewhere.http[0].matches[0].port = 80;
    assert_eq!(show(vec![server(80, &["*"], false)], &[elsewhere]), ["a.example:80 [a.example] 1"]);
}

#[test]
fn an_outline_plans_the_same_virtual_hosts() {
    let mut whole = bound("vs", &["a.example", "b.example"]);
    whole.http[0].matches = vec![HttpMatch { port: 80, ignore_uri_case: true, ..HttpMatch::default() }];
    let gateway = Gateway {
        namespace: "edge".into(),
        name: "front".into(),
        servers: vec![server(80, &["*"], false)],
        ..Gateway::default()
    };
    let merged =
        merge_gateways("edge", [SelectingGateway { gateway: &gateway, targets: Vec::new() }], MergeOptions::default());
    let plan = |vs: &VirtualService| {
        plan_virtual_hosts(&merged.tables[0], &|_: &Text| vec![(key(vs), Arc::new(vs.clone()))], &client("edge"))
    };
    let small = outline(&whole);
    assert_ne!(small, whole);
    assert_eq!(plan(&small), plan(&whole));
    // A change of routes does not change the outline.
    whole.http[0].timeout = Some(std::time::Duration::from_secs(1));
    assert_eq!(outline(&whole), small);
}

#[test]
fn a_host_joins_only_the_last_virtual_host_with_its_routes() {
    let vs = bound("vs", &["aaa.example", "bb.example", "c.example"]);
    let servers = vec![server(80, &["aaa.example", "c.example"], true), server(80, &["bb.example"], false)];
    let shown = show(servers, &[vs]);
    assert_eq!(
        shown,
        ["aaa.example:80 [aaa.example] 1 tls", "bb.example:80 [bb.example] 1", "c.example:80 [c.example] 1 tls"]
    );
}
