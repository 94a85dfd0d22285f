//! Clusters of waypoints: those between their listeners, and those of the services that they serve (N23).

use envoy_types::pb::envoy::config::cluster::v3::cluster::{DiscoveryType, LbPolicy};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster};
use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use sluice_model::{
    ClientTls, ClientTlsMode, DestinationRule, Protocol, SPIFFE_SCHEME, Service, ServicePort, ServiceSource, Text,
};

use super::draft::Draft;
use super::hbone::{
    connect_options, endpoint_metadata, full_socket, internal_socket, mutual_tls, tunnel_cluster, tunnel_socket,
};
use super::http_protocol::passthrough_options;
use super::load_balancer::{LocalityMode, apply_load_balancer, locality_mode};
use super::outbound::{DnsLoad, OutboundInputs, discovery_type, eds, start};
use super::outlier::apply_outlier_detection;
use super::tls::{IsServed, TlsInputs, apply_proxy_protocol, socket};
use super::traffic_policy::{apply_connection_pool, apply_h2_upgrade, unlimited};
use super::transport_socket::raw_buffer;
use super::{ClusterProfile, ClusterSettings, HboneSettings, build_black_hole, dynamic_dns, metadata};
use crate::address::internal_address;
use crate::name::{
    CONNECT_ORIGINATE, ENCAP, FORWARD_INNER_CONNECT, INNER_CONNECT_ORIGINATE, MAIN_INTERNAL, OUTER_CONNECT_ORIGINATE,
    inbound_vip_cluster, stat_prefix, vip_subset,
};
use crate::wire::uint32;

/// Name of the transport socket of internal connections at waypoints.
const INTERNAL_UPSTREAM: &str = "internal_upstream";

/// The clusters that every waypoint has, except [`build_waypoint_connect_originate`].
#[must_use]
pub fn build_waypoint_fixed(
    settings: &ClusterSettings,
    profile: &ClusterProfile,
    hbone: &HboneSettings,
) -> Vec<Cluster> {
    let mut encap = plain_internal_cluster(settings, profile, ENCAP, CONNECT_ORIGINATE);
    encap.filters.extend(settings.switches.tunnels.baggage.then(metadata::baggage));
    let mut clusters = vec![build_main_internal(settings, profile), encap];
    if !settings.switches.tunnels.local_waypoints {
        clusters.extend(build_double_tunnel(settings, hbone));
    }
    clusters
}

/// The clusters that every east-west gateway has.
#[must_use]
pub fn build_east_west_fixed(
    settings: &ClusterSettings,
    profile: &ClusterProfile,
    hbone: &HboneSettings,
) -> Vec<Cluster> {
    let socket = internal_socket(INTERNAL_UPSTREAM, Vec::new(), raw_buffer("raw_buffer"));
    vec![
        build_main_internal(settings, profile),
        internal_cluster(settings, ENCAP, FORWARD_INNER_CONNECT, socket, None),
        build_forward_inner_connect(settings, hbone),
        // Without a service, the listener `main_internal` leads there.
        build_black_hole(settings),
    ]
}

/// The cluster that forwards the bytes of the inner tunnel to the proxy or waypoint that ends it.
fn build_forward_inner_connect(settings: &ClusterSettings, hbone: &HboneSettings) -> Cluster {
    let tls = mutual_tls(settings.compliance, &hbone.trust_domains, None);
    let mut draft = tunnel_cluster(settings, hbone, FORWARD_INNER_CONNECT, tls, true);
    draft.http = None;
    draft.cluster.transport_socket = None;
    draft.finish()
}

/// The cluster that leads from the listener `connect_terminate` to `main_internal`.
#[must_use]
pub fn build_main_internal(settings: &ClusterSettings, profile: &ClusterProfile) -> Cluster {
    plain_internal_cluster(settings, profile, MAIN_INTERNAL, MAIN_INTERNAL)
}

/// A cluster that leads to an internal listener without TLS, in the protocol of the client.
fn plain_internal_cluster(settings: &ClusterSettings, profile: &ClusterProfile, name: &str, to: &str) -> Cluster {
    let socket = internal_socket(INTERNAL_UPSTREAM, Vec::new(), raw_buffer("raw_buffer"));
    internal_cluster(settings, name, to, socket, Some(passthrough_options(profile, settings)))
}

/// The cluster behind the listener `connect_originate` of a waypoint in this namespace: to the proxy of the
/// destination, or to another waypoint in the metadata.
#[must_use]
pub fn build_waypoint_connect_originate(settings: &ClusterSettings, hbone: &HboneSettings, namespace: &str) -> Cluster {
    let trust_domain = hbone.trust_domains.first().map_or("", Text::as_str);
    let peers = format!("{SPIFFE_SCHEME}{trust_domain}/ns/{namespace}/sa/");
    let tls = mutual_tls(settings.compliance, &hbone.trust_domains, Some(&peers));
    tunnel_cluster(settings, hbone, CONNECT_ORIGINATE, tls, true).finish()
}

/// The clusters of two tunnels, one in the other, to another network.
#[must_use]
pub fn build_double_tunnel(settings: &ClusterSettings, hbone: &HboneSettings) -> [Cluster; 2] {
    [build_inner_connect_originate(settings, hbone), build_outer_connect_originate(settings, hbone)]
}

/// The cluster of the inner of two tunnels to another network.
fn build_inner_connect_originate(settings: &ClusterSettings, hbone: &HboneSettings) -> Cluster {
    let tls = tunnel_socket(mutual_tls(settings.compliance, &hbone.trust_domains, None));
    let socket = internal_socket("internal_upstream_with_tls", Vec::new(), tls);
    let options = unpooled(connect_options(hbone));
    internal_cluster(settings, INNER_CONNECT_ORIGINATE, OUTER_CONNECT_ORIGINATE, socket, Some(options))
}

/// The cluster of the outer of two tunnels to another network.
fn build_outer_connect_originate(settings: &ClusterSettings, hbone: &HboneSettings) -> Cluster {
    let tls = mutual_tls(settings.compliance, &hbone.trust_domains, None);
    let mut draft = tunnel_cluster(settings, hbone, OUTER_CONNECT_ORIGINATE, tls, false);
    draft.http = draft.http.map(unpooled);
    draft.finish()
}

/// Each connection carries one tunnel, so that the gateway of the other network balances tunnels.
fn unpooled(mut options: HttpProtocolOptions) -> HttpProtocolOptions {
    options.common_http_protocol_options.get_or_insert_default().max_requests_per_connection = Some(uint32(1));
    options
}

/// A cluster with an internal listener as its only endpoint.
fn internal_cluster(
    settings: &ClusterSettings,
    name: &str,
    listener: &str,
    socket: TransportSocket,
    http: Option<HttpProtocolOptions>,
) -> Cluster {
    let endpoint = LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
            address: Some(internal_address(listener, "")),
            ..Endpoint::default()
        })),
        ..LbEndpoint::default()
    };
    let mut draft = Draft {
        cluster: Cluster {
            name: name.to_owned(),
            alt_stat_name: stat_prefix(name),
            circuit_breakers: Some(CircuitBreakers {
                thresholds: vec![unlimited(settings)],
                ..CircuitBreakers::default()
            }),
            load_assignment: Some(ClusterLoadAssignment {
                cluster_name: name.to_owned(),
                endpoints: vec![LocalityLbEndpoints { lb_endpoints: vec![endpoint], ..LocalityLbEndpoints::default() }],
                ..ClusterLoadAssignment::default()
            }),
            transport_socket: Some(socket),
            ..Cluster::default()
        },
        http,
        ..Draft::default()
    };
    draft.set_type(DiscoveryType::Static);
    draft.finish()
}

/// Inputs of the clusters of a port of a service at its waypoint.
#[derive(Clone, Copy)]
pub struct WaypointInputs<'a> {
    /// Settings of the mesh.
    pub settings: &'a ClusterSettings,
    /// Profile of the waypoint.
    pub profile: &'a ClusterProfile,
    /// The service.
    pub service: &'a Service,
    /// One of its ports.
    pub port: &'a ServicePort,
    /// The DestinationRule that the waypoint follows.
    pub rule: Option<&'a DestinationRule>,
    /// Endpoints of a DNS cluster by subset of the rule. The cluster name of the assignment is not set.
    pub dns_load: DnsLoad<'a>,
    /// Which Secrets the waypoint is served.
    pub is_served: IsServed<'a>,
}

/// Whether a waypoint serves a port: it proxies HTTP and TCP. Of hosts that are resolved per request it serves only HTTP:
/// with TLS, the client could choose any host by the server name.
fn serves_port(service: &Service, port: &ServicePort) -> bool {
    match port.protocol {
        Protocol::Udp => false,
        Protocol::Http => true,
        _ => !service.is_dynamic_dns(),
    }
}

/// The cluster names of a port, with the subset of the rule: for TCP, HTTP or both, of the whole service and of each
/// subset.
pub fn vip_cluster_names<'a>(
    service: &'a Service,
    port: &'a ServicePort,
    rule: Option<&'a DestinationRule>,
) -> impl Iterator<Item = (String, &'a str)> {
    let detected = port.protocol.is_unsupported();
    let kinds = [("tcp", detected || port.protocol.is_tcp()), ("http", detected || port.protocol.is_http())];
    let kinds = kinds.into_iter().filter(|(_, used)| *used && serves_port(service, port)).map(|(kind, _)| kind);
    let kinds: Vec<&str> = kinds.collect();
    let subsets = rule.into_iter().flat_map(|rule| &rule.subsets).map(|subset| subset.name.as_str());
    std::iter::once("").chain(subsets).flat_map(move |subset| {
        let number = u32::from(port.port);
        let name =
            |kind: &&str| (inbound_vip_cluster(number, &vip_subset(kind, subset), service.host.as_str()), subset);
        kinds.iter().map(name).collect::<Vec<_>>()
    })
}

/// The cluster name of a port at an east-west gateway, which forwards all protocols as TCP.
#[must_use]
pub fn east_west_cluster_name(service: &Service, port: &ServicePort) -> Option<String> {
    let is_served = port.protocol != Protocol::Udp && serves_port(service, port);
    is_served.then(|| inbound_vip_cluster(u32::from(port.port), "tcp", service.host.as_str()))
}

/// Builds the cluster of a port at an east-west gateway. It follows no DestinationRule.
#[must_use]
pub fn build_east_west(inputs: &WaypointInputs<'_>) -> Option<Cluster> {
    let WaypointInputs { settings, profile, service, port, dns_load, .. } = *inputs;
    let name = east_west_cluster_name(service, port)?;
    let mut draft = start(&plain_inputs(inputs, dns_load), &name, "", discovery_type(service, profile.proxy_type))?;
    draft.cluster.alt_stat_name = stat_prefix(&name);
    metadata::add_services(&mut draft.cluster, std::iter::once(service));
    apply_connection_pool(&mut draft, settings, &sluice_model::ConnectionPool::default(), None);
    draft.http = None;
    apply_load_balancer(&mut draft, settings, None, service);
    if draft.is(DiscoveryType::OriginalDst) {
        draft.cluster.lb_policy = LbPolicy::ClusterProvided as i32;
    }
    if draft.is(DiscoveryType::Eds) {
        draft.cluster.eds_cluster_config = Some(eds(&name));
    }
    draft.cluster.transport_socket = Some(full_socket(settings.switches.tunnels.baggage, raw_buffer("raw_buffer")));
    Some(draft.finish())
}

/// Inputs of a cluster without settings of clients outside of the waypoint.
fn plain_inputs<'a>(inputs: &WaypointInputs<'a>, dns_load: DnsLoad<'a>) -> OutboundInputs<'a> {
    OutboundInputs {
        settings: inputs.settings,
        profile: inputs.profile,
        service: inputs.service,
        port: inputs.port,
        rule: inputs.rule,
        takes_mtls: false,
        all_endpoints_mtls: false,
        all_endpoints_hbone: false,
        identities: &[],
        dns_load,
        is_served: inputs.is_served,
    }
}

/// Builds the clusters of a port.
#[must_use]
pub fn build_waypoint(inputs: &WaypointInputs<'_>) -> Vec<Cluster> {
    let WaypointInputs { service, port, rule, .. } = *inputs;
    vip_cluster_names(service, port, rule).filter_map(|(name, subset)| build_vip(inputs, &name, subset)).collect()
}

/// The cluster of a port; `None` if it requires endpoints and has none.
fn build_vip(inputs: &WaypointInputs<'_>, name: &str, subset: &str) -> Option<Cluster> {
    let WaypointInputs { settings, profile, service, port, rule, dns_load, .. } = *inputs;
    let outbound = plain_inputs(inputs, dns_load);
    let mut draft = if service.is_dynamic_dns() {
        dynamic_dns::start(name, service, port, profile, settings)?
    } else {
        start(&outbound, name, subset, discovery_type(service, profile.proxy_type))?
    };
    // The pattern of the mesh is for outbound clusters.
    draft.cluster.alt_stat_name = stat_prefix(name);
    metadata::add_services(&mut draft.cluster, std::iter::once(service));
    metadata::add_subset(&mut draft.cluster, name.split('|').nth(2).unwrap_or_default());
    let policy = rule.and_then(|rule| rule.policy(subset, port.port));
    if let Some(rule) = rule.filter(|_| policy.is_some()) {
        metadata::add_rule(&mut draft.cluster, rule);
    }
    let policy = policy.unwrap_or_default();
    let pool = policy.connection_pool.clone().unwrap_or_default();
    apply_connection_pool(&mut draft, settings, &pool, policy.retry_budget.as_ref());
    apply_h2_upgrade(&mut draft, settings, pool.http.as_ref(), port.protocol);
    apply_outlier_detection(&mut draft, policy.outlier_detection.as_ref(), settings, service);
    if !draft.dynamic_dns {
        let balancer = policy.load_balancer.as_ref();
        apply_load_balancer(&mut draft, settings, balancer, service);
        // Zone-aware routing requires a cluster of the waypoint's own replicas, which it does not have.
        if matches!(locality_mode(balancer, service, settings), LocalityMode::ZoneAware(_)) {
            draft.cluster.common_lb_config.get_or_insert_default().locality_config_specifier = None;
        }
    }
    if draft.is(DiscoveryType::OriginalDst) {
        draft.cluster.lb_policy = LbPolicy::ClusterProvided as i32;
    }
    if draft.is(DiscoveryType::Eds) {
        draft.cluster.eds_cluster_config = Some(eds(name));
    }
    let tls = policy.tls.as_ref().and_then(|tls| declared_tls(inputs, &mut draft, tls));
    let has_tls = tls.is_some();
    draft.cluster.transport_socket = Some(tls.unwrap_or_else(|| raw_buffer("raw_buffer")));
    apply_proxy_protocol(&mut draft, policy.proxy_protocol);
    let baggage = settings.switches.tunnels.baggage;
    if baggage && draft.is(DiscoveryType::Eds) {
        draft.cluster.filters.push(metadata::baggage());
    }
    if baggage && (has_tls || policy.proxy_protocol.is_some()) {
        metadata::add_no_baggage(&mut draft.cluster);
    }
    let inner = draft.cluster.transport_socket.take().unwrap_or_else(|| raw_buffer("raw_buffer"));
    draft.cluster.transport_socket = Some(internal_socket(INTERNAL_UPSTREAM, endpoint_metadata(baggage), inner));
    Some(draft.finish())
}

/// TLS inside of the tunnel, if the rule declares it. Mutual TLS of the mesh is that of the tunnel.
fn declared_tls(inputs: &WaypointInputs<'_>, draft: &mut Draft, tls: &ClientTls) -> Option<TransportSocket> {
    if !matches!(tls.mode, ClientTlsMode::Simple | ClientTlsMode::Mutual) {
        return None;
    }
    let service = inputs.service;
    let entry = service.source == ServiceSource::ServiceEntry;
    let tls_inputs = TlsInputs {
        settings: inputs.settings,
        profile: inputs.profile,
        identities: &[],
        declared_names: entry.then_some(service.subject_alt_names.as_slice()),
        sni: String::new(),
        external: service.mesh_external,
        takes_mtls: false,
        selected_clients: inputs.rule.is_some_and(|rule| rule.workload_selector.is_some()),
        is_served: inputs.is_served,
    };
    socket(draft, &tls_inputs, tls)
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
    use prost::Message as _;
    use sluice_model::{Host, ProxyType, Subset, TrafficPolicy};

    use envoy_types::pb::envoy::extensions::transport_sockets::internal_upstream::v3::InternalUpstreamTransport;

    use super::*;
    use crate::cluster::all_served;

    fn service(protocol: Protocol) -> Service {
        let port = ServicePort { port: 80, name: "p".into(), protocol, target_port: Text::default() };
        Service { namespace: "reef".into(), host: Host::new("coral.reef"), ports: vec![port], ..Service::default() }
    }

    fn built(service: &Service, rule: Option<&DestinationRule>) -> Vec<Cluster> {
        let settings = ClusterSettings::new(&sluice_model::MeshConfig::default(), false);
        let profile = ClusterProfile { proxy_type: ProxyType::Waypoint, ..ClusterProfile::default() };
        let port = service.ports.first().expect("a port");
        let dns_load = |_: &str| None;
        build_waypoint(&WaypointInputs {
            settings: &settings,
            profile: &profile,
            service,
            port,
            rule,
            dns_load: &dns_load,
            is_served: &all_served,
        })
    }

    fn inner_socket(cluster: &Cluster) -> String {
        let socket = cluster.transport_socket.as_ref().expect("a transport socket");
        let Some(ConfigType::TypedConfig(config)) = &socket.config_type else { return String::new() };
        let transport = InternalUpstreamTransport::decode(config.value.as_slice()).expect("an internal transport");
        assert_eq!(transport.passthrough_metadata.len(), 2);
        transport.transport_socket.expect("an inner socket").name
    }

    #[test]
    fn a_port_has_a_cluster_for_each_protocol_and_subset() {
        let names = |protocol, rule: Option<&DestinationRule>| -> Vec<String> {
            built(&service(protocol), rule).into_iter().map(|cluster| cluster.name).collect()
        };
        let name = |subset: &str| format!("inbound-vip|80|{subset}|coral.reef");
        assert_eq!(names(Protocol::Http, None), [name("http")]);
        assert_eq!(names(Protocol::Tls, None), [name("tcp")]);
        assert_eq!(names(Protocol::Unsupported, None), [name("tcp"), name("http")]);
        assert_eq!(names(Protocol::Udp, None), [""; 0]);
        let subset = Subset { name: "v1".into(), ..Subset::default() };
        let rule = DestinationRule { subsets: vec![subset], ..DestinationRule::default() };
        assert_eq!(names(Protocol::Grpc, Some(&rule)), [name("http"), name("http/v1")]);
    }

    #[test]
    fn declared_tls_is_inside_of_the_tunnel() {
        let rule = |mode| {
            let tls = Some(ClientTls { mode, ..ClientTls::default() });
            let traffic_policy = Some(TrafficPolicy { tls, ..TrafficPolicy::default() });
            DestinationRule { traffic_policy, ..DestinationRule::default() }
        };
        let socket = |rule: Option<&DestinationRule>| {
            built(&service(Protocol::Http), rule).iter().map(inner_socket).collect::<Vec<_>>()
        };
        assert_eq!(socket(None), ["raw_buffer"]);
        assert_eq!(socket(Some(&rule(ClientTlsMode::IstioMutual))), ["raw_buffer"]);
        assert_eq!(socket(Some(&rule(ClientTlsMode::Simple))), ["envoy.transport_sockets.tls"]);
    }
}
