//! Filter chains of a waypoint: those of the services that it serves, and those of workloads (N23).

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain};
use envoy_types::pb::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost};
use envoy_types::pb::envoy::extensions::filters::common::set_filter_state::v3::filter_state_value::{
    SharedWithUpstream, Value,
};
use envoy_types::pb::envoy::extensions::filters::network::set_filter_state::v3::Config as SetFilterState;
use envoy_types::pb::envoy::extensions::formatter::cel::v3::Cel;
use serde::Serialize;
use sluice_model::{
    ConsistentHash, DestinationRule, HttpRetry, MESH_GATEWAY, Protocol, RouteDestination, Service, ServiceKey,
    ServicePort, ServiceSource, Text, VirtualService,
};

use super::connect_terminate::CONNECT_AUTHORITY_FILTER;
use super::dynamic_dns;
use super::inbound::operation;
use super::protocol_detection::{PortProtocol, port_protocol};
use super::service_address::{service_address, vip_addresses};
use super::tcp_filters::{Destinations, TcpFilterInputs};
use super::waypoint_matcher::{DIRECT_HTTP, DIRECT_TCP, by_protocol, host_names, service_ranges, to_chain};
use crate::address::join_port;
use crate::filter::{HttpChain, RouteSource, build_http_manager, hcm_filter};
use crate::filter_config::network_filter;
use crate::filter_state::{ORIGINAL_DESTINATION, filter_state};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name::{self, ENCAP, inbound_vip_cluster};
use crate::route::{TableKind, WaypointDestination, build_header, build_route_to, vip_kinds};
use crate::security::{PolicyFilters, PolicySteps};
use crate::stat_name::StatNameValues;
use crate::wire::any;

/// How a service of a waypoint uses a port number.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct WaypointPort {
    /// How the protocol is determined.
    pub protocol: PortProtocol,
    /// Whether it is declared as TLS.
    pub tls: bool,
    /// Whether connections are accepted; otherwise the port only belongs to a service.
    pub accepted: bool,
}

/// Inputs of the chains of a service.
#[derive(Clone, Copy)]
pub struct WaypointChainInputs<'a> {
    /// Settings of the mesh and of the waypoint, with the telemetry and the extensions of the service.
    pub settings: &'a ListenerSettings,
    /// The service.
    pub service: &'a Service,
    /// Policies of the service and of the waypoint.
    pub policies: &'a PolicyFilters,
    /// VirtualServices with the host of the service, in order.
    pub virtual_services: &'a [Arc<VirtualService>],
    /// The service itself and the destinations of its routes, with their rules.
    pub destinations: &'a Destinations,
    /// Whether the waypoint serves a service.
    pub serves: &'a dyn Fn(&ServiceKey) -> bool,
    /// Addresses of a global service in other clusters of the network.
    pub more_addresses: &'a [Text],
    /// HTTP routes of the VirtualServices for requests to a port.
    pub http_routes: &'a dyn Fn(u32) -> Vec<Route>,
}

/// The chains of a service at its waypoint, and how they are selected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaypointChains {
    /// The chains.
    pub chains: Vec<FilterChain>,
    /// The encoded matcher of the addresses. Concatenated ones are the matcher of several services.
    pub matcher: Vec<u8>,
    /// With several networks, the encoded matches of the host names. Concatenated ones are those of several services.
    pub host_names: Vec<u8>,
    /// The ports of the service.
    pub ports: Vec<(u16, WaypointPort)>,
}

/// Builds the chains of a service. Without addresses, no connection selects them.
#[must_use]
pub fn build_waypoint_chains(inputs: &WaypointChainInputs<'_>) -> WaypointChains {
    let WaypointChainInputs { settings, service, .. } = *inputs;
    let mut built = WaypointChains::default();
    let (mut selected, mut hosts) = (Vec::new(), Vec::new());
    let addresses = vip_addresses(settings, service, inputs.more_addresses);
    let by_host = settings.switches.tunnels.multi_network && !addresses.is_empty();
    for port in &service.ports {
        // HBONE is proxied as TCP here.
        let protocol = match port.protocol {
            Protocol::Udp => None,
            // The client could choose any host by the server name.
            Protocol::Tls if service.is_dynamic_dns() => None,
            protocol => Some(port_protocol(protocol).unwrap_or(PortProtocol::Tcp)),
        };
        let tls = port.protocol.is_tls();
        built.ports.push((
            port.port,
            WaypointPort { protocol: protocol.unwrap_or(PortProtocol::Tcp), tls, accepted: protocol.is_some() },
        ));
        let Some(protocol) = protocol else { continue };
        let number = u32::from(port.port);
        let host = service.host.as_str();
        let (tcp, http) = (inbound_vip_cluster(number, "tcp", host), inbound_vip_cluster(number, "http", host));
        let kept = |filters: Vec<Filter>| -> Vec<Filter> {
            let address = service_address(settings, service).filter(|_| by_host);
            let state = address.map(|address| keep_reached_address(&join_port(&address, number)));
            state.into_iter().chain(filters).collect()
        };
        if protocol != PortProtocol::Http {
            built.chains.push(chain(&tcp, kept(tcp_filters(inputs, port, &tcp))));
        }
        if protocol != PortProtocol::Tcp {
            built.chains.push(chain(&http, kept(http_filters(inputs, port, &http))));
        }
        let selects = match protocol {
            PortProtocol::Http => to_chain(&http),
            PortProtocol::Tcp => to_chain(&tcp),
            PortProtocol::Auto => by_protocol(settings.switches, &http, &tcp),
        };
        if by_host {
            hosts.push((format!("{host}:{number}"), selects.clone()));
        }
        selected.push((port.port, selects));
    }
    built.matcher = service_ranges(&addresses, selected);
    built.host_names = host_names(hosts);
    built
}

/// The chains of connections to workloads, which policies of the waypoint itself apply to.
#[must_use]
pub(super) fn direct_chains(settings: &ListenerSettings, policies: &PolicyFilters) -> Vec<FilterChain> {
    let destinations = Destinations::default();
    let tcp = tcp_inputs((Protocol::Tcp, 0, &*UNNAMED), &destinations, &policies.tcp, &[]);
    let tcp = tcp.to_cluster(settings, stat_prefix(settings, ENCAP, None), ENCAP.to_owned(), "", None);
    let routes = default_routes(ENCAP, 0, &operation("", 0), &["*"], None, default_retry(settings));
    let http = http_chain(settings, (Protocol::Tcp, 0), routes, policies);
    let kept = |filters: Vec<Filter>| -> Vec<Filter> { std::iter::once(keep_destination()).chain(filters).collect() };
    let http = vec![hcm_filter(&build_http_manager(settings, &http))];
    vec![chain(DIRECT_TCP, kept(tcp)), chain(DIRECT_HTTP, kept(http))]
}

/// Name of a port without a service.
static UNNAMED: std::sync::LazyLock<Text> = std::sync::LazyLock::new(|| "unknown".into());

pub(super) fn chain(name: &str, filters: Vec<Filter>) -> FilterChain {
    FilterChain { name: name.to_owned(), filters, ..FilterChain::default() }
}

/// The filter of connections to workloads that keeps their destination for the tunnel.
fn keep_destination() -> Filter {
    let format = format!("%FILTER_STATE({ORIGINAL_DESTINATION}:PLAIN)%");
    let state = SetFilterState {
        on_new_connection: vec![filter_state(ORIGINAL_DESTINATION, &format, "", SharedWithUpstream::Once)],
        ..SetFilterState::default()
    };
    network_filter(CONNECT_AUTHORITY_FILTER, any(&state))
}

/// The filter of connections to a service that keeps the address that the client reached: that of the tunnel or, if the tunnel
/// is for a host name, `address`.
fn keep_reached_address(address: &str) -> Filter {
    let key = ORIGINAL_DESTINATION;
    let format = format!("%CEL('{key}' in filter_state ? filter_state['{key}']: r'{address}')%");
    let cel = TypedExtensionConfig { name: "envoy.formatter.cel".to_owned(), typed_config: Some(any(&Cel::default())) };
    let mut value =
        filter_state("envoy.network.transport_socket.original_dst_address", &format, "", SharedWithUpstream::None);
    if let Some(Value::FormatString(format)) = &mut value.value {
        format.formatters.push(cel);
    }
    let state = SetFilterState { on_new_connection: vec![value], ..SetFilterState::default() };
    network_filter("set_dst_address", any(&state))
}

fn default_retry(settings: &ListenerSettings) -> Option<&HttpRetry> {
    settings.mesh.default_http_retry_policy.as_ref()
}

fn http_filters(inputs: &WaypointChainInputs<'_>, port: &ServicePort, cluster: &str) -> Vec<Filter> {
    let WaypointChainInputs { settings, service, policies, .. } = *inputs;
    let number = u32::from(port.port);
    // Requests to other hosts must not be resolved.
    let domain = if service.is_dynamic_dns() { service.host.as_str() } else { "*" };
    let declared = (inputs.http_routes)(number);
    let routes = if declared.is_empty() {
        let operation = operation(service.host.as_str(), number);
        let hash = own_rule(inputs).and_then(rule_hash);
        default_routes(cluster, number, &operation, &[domain], hash, default_retry(settings))
    } else {
        let mut routes = build_header(cluster, TableKind::Absent);
        routes.virtual_hosts = vec![virtual_host(number, &[domain], declared)];
        routes
    };
    let mut http = http_chain(settings, (port.protocol, number), routes, policies);
    if service.host.is_wildcard() {
        http.forward_filters.push(dynamic_dns::http_filter(settings, service));
    }
    vec![hcm_filter(&build_http_manager(settings, &http))]
}

fn http_chain(
    settings: &ListenerSettings,
    (protocol, port): (Protocol, u32),
    routes: RouteConfiguration,
    policies: &PolicyFilters,
) -> HttpChain {
    debug_assert!(settings.profile.proxy_type == sluice_model::ProxyType::Waypoint);
    let prefix = name::stat_prefix(&format!("inbound_{}", name::listener("0.0.0.0", port)));
    // Extensions are selected by service, not by port.
    let mut http = HttpChain::new(ListenerClass::Inbound, protocol, 0, RouteSource::Inline(Box::new(routes)), prefix);
    http.policies.clone_from(&policies.http);
    http
}

/// The routes of a port without a VirtualService.
fn default_routes(
    cluster: &str,
    port: u32,
    operation: &str,
    domains: &[&str],
    hash: Option<&ConsistentHash>,
    retry: Option<&HttpRetry>,
) -> RouteConfiguration {
    let mut routes = build_header(cluster, TableKind::Absent);
    routes.max_direct_response_body_size_bytes =
        build_header(cluster, TableKind::Full).max_direct_response_body_size_bytes;
    let route = build_route_to(cluster.to_owned(), operation.to_owned(), hash, retry);
    routes.virtual_hosts = vec![virtual_host(port, domains, vec![route])];
    routes
}

fn virtual_host(port: u32, domains: &[&str], routes: Vec<Route>) -> VirtualHost {
    VirtualHost {
        name: format!("inbound|http|{port}"),
        domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
        routes,
        ..VirtualHost::default()
    }
}

/// The rule of the service itself.
fn own_rule<'a>(inputs: &WaypointChainInputs<'a>) -> Option<&'a DestinationRule> {
    inputs.destinations.get(&inputs.service.host).and_then(|facts| facts.rule.as_deref())
}

fn rule_hash(rule: &DestinationRule) -> Option<&ConsistentHash> {
    rule.traffic_policy.as_ref()?.load_balancer.as_ref()?.consistent_hash.as_ref()
}

fn tcp_filters(inputs: &WaypointChainInputs<'_>, port: &ServicePort, cluster: &str) -> Vec<Filter> {
    let WaypointChainInputs { settings, service, policies, destinations, .. } = *inputs;
    let resolving: Vec<Filter> =
        service.is_dynamic_dns().then(|| dynamic_dns::sni_filter(settings, service, port.port)).into_iter().collect();
    let tcp = tcp_inputs((port.protocol, port.port, &port.name), destinations, &policies.tcp, &resolving);
    let prefix = stat_prefix(settings, cluster, Some((service, port)));
    let route = declared_route(inputs, u32::from(port.port)).unwrap_or_default();
    let destination_cluster =
        |destination: &sluice_model::Destination| destination_cluster(inputs, destination, u32::from(port.port));
    let rule_of = |host| destinations.get(host).and_then(|facts| facts.rule.as_deref());
    match route {
        [] => tcp.to_cluster(settings, prefix, cluster.to_owned(), "", own_rule(inputs)),
        [only] => {
            let to = &only.destination;
            tcp.to_cluster(settings, prefix, destination_cluster(to), &to.subset, rule_of(&to.host))
        }
        [first, ..] => tcp.to_clusters(settings, prefix, route, rule_of(&first.destination.host), &destination_cluster),
    }
}

pub(super) fn tcp_inputs<'a>(
    (protocol, port, port_name): (Protocol, u16, &'a Text),
    destinations: &'a Destinations,
    policies: &'a PolicySteps<Filter>,
    before_proxy: &'a [Filter],
) -> TcpFilterInputs<'a> {
    TcpFilterInputs {
        class: ListenerClass::Inbound,
        protocol,
        port,
        port_name,
        destinations,
        exchanges_metadata: true,
        tunnels: true,
        policies: Some(policies),
        before_proxy,
    }
}

/// The statistics prefix of a TCP chain: the name of the cluster, or the pattern of the mesh.
pub(super) fn stat_prefix(
    settings: &ListenerSettings,
    cluster: &str,
    port: Option<(&Service, &ServicePort)>,
) -> String {
    let pattern = &settings.mesh.inbound_cluster_stat_name;
    if pattern.is_empty() {
        return cluster.to_owned();
    }
    let Some((service, port)) = port else {
        let unknown = StatNameValues {
            host: "",
            kubernetes: None,
            subset: "",
            port: 0,
            port_name: UNNAMED.as_str(),
            target_port: None,
        };
        return unknown.expand(pattern);
    };
    let kubernetes = service.source == ServiceSource::Kubernetes;
    let values = StatNameValues {
        host: service.host.as_str(),
        kubernetes: kubernetes.then_some((&*service.name, &*service.namespace)),
        subset: "",
        port: u32::from(port.port),
        port_name: &port.name,
        target_port: None,
    };
    values.expand(pattern)
}

/// The destinations of connections to a port by the VirtualServices; routes of TLS come before those of TCP. A waypoint
/// knows neither labels nor namespace of the source, and it does not select by other server names than the host.
fn declared_route<'a>(inputs: &WaypointChainInputs<'a>, port: u32) -> Option<&'a [RouteDestination]> {
    let here = |on: u32, gateways: &[Text]| {
        (on == 0 || on == port) && (gateways.is_empty() || gateways.iter().any(|gateway| *gateway == *MESH_GATEWAY))
    };
    let host = inputs.service.host.as_str();
    let tls = inputs.virtual_services.iter().flat_map(|service| &service.tls).find(|route| {
        route.matches.is_empty()
            || route.matches.iter().any(|on| {
                matches!(on.sni_hosts.as_slice(), [only] if only.as_str() == host)
                    && here(on.port, &on.gateways)
                    && on.source_labels.is_empty()
                    && on.source_namespace.is_empty()
            })
    });
    if let Some(route) = tls {
        return Some(&route.route);
    }
    let tcp = inputs.virtual_services.iter().flat_map(|service| &service.tcp).find(|route| {
        route.matches.is_empty()
            || route
                .matches
                .iter()
                .any(|on| here(on.port, &on.gateways) && on.source_labels.is_empty() && on.source_namespace.is_empty())
    });
    tcp.map(|route| route.route.as_slice())
}

/// The cluster of a destination.
fn destination_cluster(
    inputs: &WaypointChainInputs<'_>,
    destination: &sluice_model::Destination,
    listen_port: u32,
) -> String {
    let service = inputs.destinations.get(&destination.host).and_then(|facts| facts.service.as_deref());
    let Some(service) = service else { return WaypointDestination::Unknown.cluster(destination, listen_port) };
    let only_port = service.only_port();
    if !(inputs.serves)(&service.key()) {
        return WaypointDestination::Other { only_port }.cluster(destination, listen_port);
    }
    let kinds = vip_kinds(service);
    WaypointDestination::Served { only_port, kinds: &kinds }.cluster(destination, listen_port)
}

#[cfg(test)]
mod tests {
    use sluice_model::{Destination, Host, L4Match, ProxyType, TcpRoute, TlsMatch, TlsRoute};

    use super::*;
    use crate::listener_settings::ListenerProfile;

    fn service(ports: &[(u16, Protocol)]) -> Service {
        let port = |(port, protocol): &(u16, Protocol)| ServicePort {
            port: *port,
            name: "p".into(),
            protocol: *protocol,
            target_port: Text::default(),
        };
        Service {
            namespace: "reef".into(),
            host: Host::new("coral.reef"),
            ports: ports.iter().map(port).collect(),
            ..Service::default()
        }
    }

    fn built(service: &Service, virtual_services: &[Arc<VirtualService>]) -> WaypointChains {
        let profile = ListenerProfile { proxy_type: ProxyType::Waypoint, ..ListenerProfile::default() };
        build_waypoint_chains(&WaypointChainInputs {
            settings: &ListenerSettings { profile, ..ListenerSettings::default() },
            service,
            policies: &PolicyFilters::default(),
            virtual_services,
            destinations: &Destinations::default(),
            serves: &|_| true,
            more_addresses: &[],
            http_routes: &|_| Vec::new(),
        })
    }

    fn names(chains: &WaypointChains) -> Vec<&str> {
        chains.chains.iter().map(|chain| chain.name.as_str()).collect()
    }

    #[test]
    fn chains_follow_the_protocol_of_the_port() {
        let of = |protocol| built(&service(&[(80, protocol)]), &[]);
        let (tcp, http) = ("inbound-vip|80|tcp|coral.reef", "inbound-vip|80|http|coral.reef");
        assert_eq!(names(&of(Protocol::Grpc)), [http]);
        assert_eq!(names(&of(Protocol::Tls)), [tcp]);
        assert_eq!(names(&of(Protocol::Unsupported)), [tcp, http]);
        let udp = of(Protocol::Udp);
        assert_eq!(names(&udp), [""; 0]);
        assert!(!udp.ports[0].1.accepted);
    }

    #[test]
    fn service_without_an_address_is_not_selected() {
        let mut coral = service(&[(80, Protocol::Http)]);
        assert!(built(&coral, &[]).matcher.is_empty());
        coral.auto_allocated_addresses = vec!["240.240.0.1".into()];
        assert!(!built(&coral, &[]).matcher.is_empty());
    }

    #[test]
    fn routes_of_tls_come_before_those_of_tcp() {
        let to = |host: &str| {
            let destination = Destination { host: Host::new(host), ..Destination::default() };
            vec![RouteDestination { destination, ..RouteDestination::default() }]
        };
        let tls = |names: &[&str]| TlsRoute {
            matches: vec![TlsMatch {
                sni_hosts: names.iter().map(|name| (*name).into()).collect(),
                ..TlsMatch::default()
            }],
            route: to("of-tls"),
        };
        let tcp = |port| TcpRoute { matches: vec![L4Match { port, ..L4Match::default() }], route: to("of-tcp") };
        let coral = service(&[(443, Protocol::Tls)]);
        let found = |tls: TlsRoute, tcp: TcpRoute| {
            let routed = VirtualService { tls: vec![tls], tcp: vec![tcp], ..VirtualService::default() };
            let virtual_services = [Arc::new(routed)];
            let inputs = WaypointChainInputs {
                settings: &ListenerSettings::default(),
                service: &coral,
                policies: &PolicyFilters::default(),
                virtual_services: &virtual_services,
                destinations: &Destinations::default(),
                serves: &|_| true,
                more_addresses: &[],
                http_routes: &|_| Vec::new(),
            };
            declared_route(&inputs, 443).map(|route| route[0].destination.host.to_string())
        };
        assert_eq!(found(tls(&["coral.reef"]), tcp(0)).as_deref(), Some("of-tls"));
        assert_eq!(found(tls(&["other"]), tcp(443)).as_deref(), Some("of-tcp"));
        assert_eq!(found(tls(&["coral.reef", "other"]), tcp(80)), None);
    }
}
