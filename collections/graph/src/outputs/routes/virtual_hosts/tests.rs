use prost::Message;
use sluice_model::{ExportTo, HttpDestination, HttpMatch, HttpRoute, ServiceSource, StringMatch, TextMap};
use sluice_proto::envoy::config::route::v3::VirtualHost;

use super::*;

#[derive(Default)]
pub(crate) struct FakeRouteContext {
    pub(crate) services: Vec<Service>,
    pub(crate) virtual_services: Vec<VirtualService>,
    pub(crate) sessions: SessionLabels,
}

impl RouteContext for FakeRouteContext {
    fn services(&self, host: &Host) -> HostServices {
        HostServices::new(self.services.iter().filter(|service| service.host == *host).cloned().map(Arc::new).collect())
    }
    fn aliases(&self, host: &Host) -> Vec<Arc<Service>> {
        let aliases = self.services.iter().filter(|service| service.external_name.as_ref() == Some(host));
        aliases.cloned().map(Arc::new).collect()
    }
    fn hosts_at(&self, address: &Text, port: u16) -> Vec<Host> {
        let here = |s: &&Service| s.port(port).is_some() && s.addresses.values().flatten().any(|a| a == address);
        self.services.iter().filter(here).map(|service| service.host.clone()).collect()
    }
    fn hosts_matching(&self, wildcard: &Host) -> Vec<Host> {
        self.services.iter().map(|service| service.host.clone()).filter(|host| host.overlaps(wildcard)).collect()
    }
    fn virtual_services(&self, host: &Host) -> Vec<Arc<VirtualService>> {
        self.virtual_services.iter().filter(|vs| vs.hosts.contains(host)).cloned().map(Arc::new).collect()
    }
    fn destination_rule(&self, _: &RouteScope, _: &Host) -> Option<DestinationRule> {
        None
    }
    fn destination_rule_namespaces(&self, _: &Host) -> BTreeSet<Text> {
        BTreeSet::new()
    }
    fn rules_use_labels(&self, _: &Host) -> bool {
        false
    }
    fn domain(&self) -> &str {
        "cluster.local"
    }
    fn default_retry(&self) -> Option<&HttpRetry> {
        None
    }
    fn default_headers(&self) -> RouteHeaders {
        RouteHeaders::default()
    }
    fn shadow_suffix(&self) -> bool {
        false
    }
    fn dual_stack(&self) -> bool {
        false
    }
    fn has_http_proxy(&self) -> bool {
        false
    }
    fn sessions(&self) -> &SessionLabels {
        &self.sessions
    }
}

pub(crate) fn service(namespace: &str, host: &str, address: &str, ports: &[(u16, Protocol)]) -> Service {
    Service {
        namespace: namespace.into(),
        host: Host::from(host),
        name: host.split('.').next().unwrap_or_default().into(),
        source: ServiceSource::Kubernetes,
        cluster: "c".into(),
        created: 0,
        addresses: TextMap::from([("c".into(), vec![address.into()])]),
        ports: ports
            .iter()
            .map(|(port, protocol)| ServicePort {
                port: *port,
                name: format!("p{port}").into(),
                protocol: *protocol,
                target_port: Text::default(),
            })
            .collect(),
        export_to: ExportTo::All,
        auto_allocated_addresses: Vec::new(),
        external_addresses: TextMap::new(),
        resolution: Resolution::ClientSideLb,
        mesh_external: false,
        labels: Labels::new(),
        selector: Labels::new(),
        subject_alt_names: Vec::new(),
        external_name: None,
        node_local: false,
        publish_not_ready: false,
        traffic_distribution: sluice_model::TrafficDistribution::Any,
        ..Service::default()
    }
}

pub(crate) fn virtual_service(namespace: &str, name: &str, hosts: &[&str], to: &str) -> VirtualService {
    let destination = Destination { host: Host::from(to), ..Destination::default() };
    VirtualService {
        namespace: namespace.into(),
        name: name.into(),
        hosts: hosts.iter().map(|host| Host::from(*host)).collect(),
        gateways: vec![MESH_GATEWAY.into()],
        http: vec![HttpRoute {
            route: vec![HttpDestination { destination, ..HttpDestination::default() }],
            ..HttpRoute::default()
        }],
        ..VirtualService::default()
    }
}

pub(crate) fn client(namespace: &str) -> RouteScope {
    RouteScope { namespace: namespace.into(), ..RouteScope::default() }
}

pub(crate) fn profile() -> RouteProfile {
    RouteProfile { cluster: "c".into(), ..RouteProfile::default() }
}

/// Tables, names, domains and the cluster of the first route.
fn show(fake: &FakeRouteContext, host: &str, namespace: &str) -> Vec<String> {
    let all = virtual_hosts(fake, &Host::from(host), &client(namespace), &profile());
    let line = |((table, name), bytes): (&(Text, Text), &Bytes)| {
        let decoded = VirtualHost::decode(bytes.clone()).expect("a virtual host");
        assert_eq!(decoded.name, name.as_str());
        let operation = decoded.routes[0].decorator.clone().unwrap_or_default().operation;
        format!("{table} {name} [{}] {operation}", decoded.domains.join(" "))
    };
    all.iter().map(line).collect()
}

const A: &str = "a.shop.svc.cluster.local";

#[test]
fn a_service_is_in_the_tables_of_its_http_ports() {
    let ports = [(80, Protocol::Http), (9000, Protocol::Tcp), (81, Protocol::Unsupported)];
    let fake =
        FakeRouteContext { services: vec![service("shop", A, "10.0.0.1", &ports)], ..FakeRouteContext::default() };
    let names = "a.shop.svc.cluster.local a.shop.svc.cluster.local. a.shop.svc a.shop 10.0.0.1";
    let expect = [
        format!("80 {A}:80 [{names}] {A}:80/*"),
        format!("81 {A}:81 [{names}] {A}:81/*"),
        format!("{A}:81 {A}:81 [*] {A}:81/*"),
    ];
    assert_eq!(show(&fake, A, ""), expect);
    assert!(show(&fake, A, "shop")[0].contains(" a a.shop.svc "));
}

#[test]
fn a_host_without_a_service_is_in_table_80_and_where_its_neighbours_are() {
    let fake = FakeRouteContext {
        services: vec![service("shop", A, "10.0.0.1", &[(8080, Protocol::Http)])],
        virtual_services: vec![virtual_service("shop", "vs", &[A, "x.example"], A)],
        ..FakeRouteContext::default()
    };
    let expect =
        [format!("80 x.example:80 [x.example] {A}:80/*"), format!("8080 x.example:8080 [x.example] {A}:8080/*")];
    assert_eq!(show(&fake, "x.example", ""), expect);
    let both = show(&fake, A, "");
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both[0].starts_with(&format!("80 {A}:80 [{A}] ")));
}

#[test]
fn the_most_specific_wildcard_routes_a_service() {
    let mut fake = FakeRouteContext {
        services: vec![service("shop", "a.b.example", "10.0.0.1", &[(80, Protocol::Http)])],
        virtual_services: vec![
            virtual_service("shop", "wide", &["*.example"], "wide"),
            virtual_service("shop", "narrow", &["*.b.example"], "narrow"),
        ],
        ..FakeRouteContext::default()
    };
    assert!(show(&fake, "a.b.example", "")[0].ends_with(" narrow:80/*"));
    assert_eq!(show(&fake, "*.b.example", ""), [""; 0]);
    fake.services.clear();
    assert_eq!(show(&fake, "*.b.example", ""), ["80 *.b.example:80 [*.b.example] narrow:80/*"]);
}

#[test]
fn private_virtual_services_are_for_their_namespaces() {
    let mut private = virtual_service("other", "vs", &[A], "elsewhere");
    private.export_to = Some(ExportTo::Namespaces(BTreeSet::from(["other".into()])));
    let fake = FakeRouteContext {
        services: vec![service("shop", A, "10.0.0.1", &[(80, Protocol::Http)])],
        virtual_services: vec![private],
        ..FakeRouteContext::default()
    };
    assert!(show(&fake, A, "other")[0].ends_with(" elsewhere:80/*"));
    assert!(show(&fake, A, "")[0].ends_with(&format!(" {A}:80/*")));
    let special: Vec<_> = special_namespaces(&fake, &Host::from(A)).into_iter().collect();
    assert_eq!(special, [Text::from("other"), Text::from("shop")]);
}

#[test]
fn names_that_are_hosts_of_their_own_are_not_short_for_others() {
    let fake = FakeRouteContext {
        services: vec![
            service("shop", A, "10.0.0.1", &[(80, Protocol::Http)]),
            service("x", "a.shop", "10.0.0.2", &[(80, Protocol::Http)]),
        ],
        ..FakeRouteContext::default()
    };
    assert_eq!(show(&fake, A, ""), [format!("80 {A}:80 [{A} {A}. a.shop.svc 10.0.0.1] {A}:80/*")]);
}

#[test]
fn an_address_belongs_to_one_service_of_a_port() {
    let mut younger = service("x", "b.example", "10.0.0.1", &[(80, Protocol::Http)]);
    younger.created = 5;
    let fake = FakeRouteContext {
        services: vec![service("x", "a.example", "10.0.0.1", &[(80, Protocol::Http)]), younger],
        ..FakeRouteContext::default()
    };
    assert!(show(&fake, "a.example", "")[0].contains("10.0.0.1"));
    assert!(!show(&fake, "b.example", "")[0].contains("10.0.0.1"));
}

#[test]
fn routes_for_other_clients_leave_the_service_as_it_is() {
    let mut picky = virtual_service("shop", "vs", &[A], "elsewhere");
    picky.http[0].matches = vec![HttpMatch {
        uri: Some(StringMatch::Prefix("/".into())),
        source_namespace: "other".into(),
        ..HttpMatch::default()
    }];
    let fake = FakeRouteContext {
        services: vec![service("shop", A, "10.0.0.1", &[(80, Protocol::Http)])],
        virtual_services: vec![picky],
        ..FakeRouteContext::default()
    };
    assert!(show(&fake, A, "")[0].ends_with(&format!(" {A}:80/*")));
    assert!(show(&fake, A, "other")[0].ends_with(" elsewhere:80/*"));
    assert!(special_namespaces(&fake, &Host::from(A)).contains("other"));
}
