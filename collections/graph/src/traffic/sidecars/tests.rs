use std::sync::Arc;

use sluice_model::{
    CaptureMode, ConnectionPool, ExportTo, Host, IpFamilies, LocalEndpoint, ObjectKey, Protocol, RouteSemantics,
    Service, ServicePort, ServiceSource, Sidecar, SidecarEgress, SidecarIngress, SidecarPort, SidecarScope,
    VirtualService,
};

use super::egress::EgressScope;
use super::{SidecarInbound, ingress_address, ingress_endpoint};
use crate::proxies::sidecar_choice::is_everything;
use crate::proxies::workloads::WorkloadSidecar;
use crate::registry::services::HostServices;

fn scope(listeners: &[SidecarEgress]) -> EgressScope {
    let sidecar = ObjectKey::new("c", "shop", "own");
    EgressScope::new(SidecarScope { namespace: "shop".into(), sidecar }, listeners, None)
}

fn egress(hosts: &[&str]) -> SidecarEgress {
    SidecarEgress { hosts: hosts.iter().map(|host| (*host).into()).collect(), ..SidecarEgress::default() }
}

fn at_port(number: u16, protocol: Protocol, hosts: &[&str]) -> SidecarEgress {
    SidecarEgress { port: Some(SidecarPort { number, protocol, ..SidecarPort::default() }), ..egress(hosts) }
}

fn service(namespace: &str, host: &str, ports: &[u16], source: ServiceSource) -> Arc<Service> {
    let port = |number: &u16| ServicePort {
        port: *number,
        name: "p".into(),
        protocol: Protocol::Http,
        target_port: "".into(),
    };
    Arc::new(Service {
        namespace: namespace.into(),
        host: host.into(),
        name: host.into(),
        source,
        ports: ports.iter().map(port).collect(),
        ..Service::default()
    })
}

fn imported_ports(scope: &EgressScope, services: &[Arc<Service>]) -> Vec<Option<(String, Vec<u16>)>> {
    let found = |service: Arc<Service>| {
        (service.namespace.to_string(), service.ports.iter().map(|port| port.port).collect::<Vec<_>>())
    };
    let services = HostServices::new(services.to_vec());
    scope.listeners.iter().map(|listener| listener.service(&services, "shop").map(found)).collect()
}

#[test]
fn hosts_are_named_by_namespace_and_name() {
    let check = |hosts: &[&str], namespace: &str, host: &str, expect: bool| {
        let scope = scope(&[egress(hosts)]);
        assert_eq!(scope.listeners[0].imports(namespace, &Host::from(host)), expect, "{hosts:?} {namespace}/{host}");
    };
    check(&["./*"], "shop", "cart.shop", true);
    check(&["./*"], "other", "cart.other", false);
    check(&["*/cart.shop"], "shop", "cart.shop", true);
    check(&["other/*.example.com"], "other", "a.example.com", true);
    check(&["other/*.example.com"], "other", "*.a.example.com", true);
    check(&["other/a.example.com"], "other", "*.example.com", false);
    check(&["*/*", "~shop/cart.shop"], "shop", "cart.shop", false);
    check(&["*/*", "~shop/cart.shop"], "other", "cart.shop", true);
    check(&["*/*", "~/cart.shop"], "other", "cart.shop", false);
    check(&["*/*", "~./*.shop"], "shop", "cart.shop", false);
    check(&["~/*"], "shop", "cart.shop", false);
}

#[test]
fn a_route_is_found_by_what_its_wildcard_covers() {
    let scope = scope(&[egress(&["./a.example.com"])]);
    let route = |host: &str, semantics| VirtualService {
        namespace: "shop".into(),
        hosts: vec![host.into()],
        export_to: Some(ExportTo::All),
        semantics,
        ..VirtualService::default()
    };
    assert!(scope.imports_route(&route("a.example.com", RouteSemantics::Istio)));
    assert!(scope.imports_route(&route("*.example.com", RouteSemantics::Istio)));
    assert!(!scope.imports_route(&route("*.example.com", RouteSemantics::GatewayApi)));
    assert!(!scope.imports_route(&route("b.example.com", RouteSemantics::Istio)));
    let private = VirtualService { export_to: Some(ExportTo::None), ..route("a.example.com", RouteSemantics::Istio) };
    assert!(!scope.imports_route(&private));
    let elsewhere = VirtualService { namespace: "other".into(), ..route("a.example.com", RouteSemantics::Istio) };
    assert!(!scope.imports_route(&elsewhere));
}

#[test]
fn a_listener_of_a_port_has_that_port_of_its_services() {
    let cart = [service("shop", "cart.shop", &[80, 90], ServiceSource::Kubernetes)];
    let scope = scope(&[
        at_port(90, Protocol::Http, &["./*"]),
        at_port(70, Protocol::Http, &["./*"]),
        at_port(8888, Protocol::HttpProxy, &["./*"]),
        egress(&["./*"]),
    ]);
    let all = || Some(("shop".to_owned(), vec![80, 90]));
    assert_eq!(imported_ports(&scope, &cart), [Some(("shop".to_owned(), vec![90])), None, all(), all()]);
    assert_eq!(scope.listener_for(90), Some(0));
    assert_eq!(scope.listener_for(80), Some(3));
    assert_eq!(scope.listeners[2].shared_table(), Some("8888".into()));
    assert_eq!(scope.listeners[0].shared_table(), None);
}

#[test]
fn the_service_of_the_own_namespace_then_of_kubernetes_is_reached() {
    let entry = |namespace| service(namespace, "a.example.com", &[80], ServiceSource::ServiceEntry);
    let of = |services: &[Arc<Service>], hosts: &[&str]| {
        imported_ports(&scope(&[egress(hosts)]), services).remove(0).map(|(namespace, _)| namespace)
    };
    let kubernetes = service("third", "a.example.com", &[80], ServiceSource::Kubernetes);
    let all = [entry("other"), kubernetes.clone(), entry("shop")];
    assert_eq!(of(&all, &["*/*"]).as_deref(), Some("shop"));
    assert_eq!(of(&all, &["*/*", "~shop/*"]).as_deref(), Some("third"));
    assert_eq!(of(&all, &["other/*"]).as_deref(), Some("other"));
    let mut young = (*entry("other")).clone();
    young.created = 9;
    young.export_to = ExportTo::Namespaces(["shop".into()].into());
    // A service that is exported to listed namespaces precedes, unless every host is exact: then the older precedes.
    let both = [Arc::new(young), entry("third")];
    assert_eq!(of(&both, &["other/*", "third/*"]).as_deref(), Some("other"));
    assert_eq!(of(&both, &["other/a.example.com", "third/a.example.com"]).as_deref(), Some("third"));
}

#[test]
fn a_listener_for_all_hosts_limits_nothing() {
    assert!(is_everything(&[]));
    assert!(is_everything(&[egress(&["*/*"])]));
    assert!(is_everything(&[egress(&["./*", "*/*"])]));
    assert!(!is_everything(&[egress(&["*/*", "~shop/*"])]));
    assert!(!is_everything(&[egress(&["./*"])]));
    assert!(!is_everything(&[at_port(80, Protocol::Http, &["*/*"])]));
    assert!(!is_everything(&[SidecarEgress { capture: CaptureMode::None, ..egress(&["*/*"]) }]));
    assert!(!is_everything(&[SidecarEgress { bind: "127.0.0.1".into(), ..egress(&["*/*"]) }]));
}

#[test]
fn the_endpoint_has_an_address_family_of_the_workload() {
    let sidecar = ObjectKey::new("c", "shop", "own");
    let workload = WorkloadSidecar {
        scope: SidecarScope { namespace: "shop".into(), sidecar },
        limits: false,
        addresses: vec!["fe80::1".into(), "10.0.0.7".into()],
    };
    let at = |endpoint, families| {
        let listener = SidecarIngress { endpoint, ..SidecarIngress::default() };
        ingress_endpoint(&listener, &workload, families).map(|(address, port)| format!("{address} {port}"))
    };
    let loopback = |v6| LocalEndpoint::Loopback { v6, port: 8 };
    assert_eq!(at(loopback(true), IpFamilies::V4).as_deref(), Some("127.0.0.1 8"));
    assert_eq!(at(loopback(true), IpFamilies::Dual).as_deref(), Some("::1 8"));
    assert_eq!(at(loopback(false), IpFamilies::V6).as_deref(), Some("::1 8"));
    assert_eq!(at(LocalEndpoint::Instance { v6: false, port: 8 }, IpFamilies::V4).as_deref(), Some("10.0.0.7 8"));
    assert_eq!(at(LocalEndpoint::Instance { v6: true, port: 8 }, IpFamilies::V4).as_deref(), Some("fe80::1 8"));
    assert_eq!(at(LocalEndpoint::Original, IpFamilies::V4), None);
    // The listener does not bind an address that other hosts cannot reach.
    assert_eq!(ingress_address(&SidecarIngress::default(), &workload), Some("10.0.0.7".into()));
    let bound = SidecarIngress { bind: "0.0.0.0".into(), ..SidecarIngress::default() };
    assert_eq!(ingress_address(&bound, &workload), Some("0.0.0.0".into()));
}

#[test]
fn the_connection_pool_of_a_listener_precedes_that_of_the_sidecar() {
    let pool = |most| {
        let tcp = sluice_model::TcpSettings { max_connections: most, ..sluice_model::TcpSettings::default() };
        ConnectionPool { tcp: Some(tcp), http: None }
    };
    let listener = |number, connection_pool| SidecarIngress {
        port: SidecarPort { number, ..SidecarPort::default() },
        connection_pool,
        ..SidecarIngress::default()
    };
    let sidecar = Sidecar {
        ingress: vec![listener(80, Some(pool(1))), listener(90, None)],
        inbound_connection_pool: Some(pool(2)),
        ..Sidecar::default()
    };
    let inbound = SidecarInbound::of(&sidecar);
    assert_eq!(inbound.connection_pool(80), Some(&pool(1)));
    assert_eq!(inbound.connection_pool(90), Some(&pool(2)));
    assert_eq!(inbound.connection_pool(70), Some(&pool(2)));
}
