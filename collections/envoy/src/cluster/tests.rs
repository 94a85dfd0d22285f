use std::collections::BTreeSet;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, LbPolicy};
use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::extensions::clusters::dynamic_forward_proxy::v3::ClusterConfig as DynamicDnsConfig;
use envoy_types::pb::envoy::extensions::clusters::dynamic_forward_proxy::v3::cluster_config::ClusterImplementationSpecifier;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::tls_parameters::TlsProtocol;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::UpstreamProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use prost::Message;
use sluice_model::{
    ClientCredential, ClientTls, ClientTlsMode, CompliancePolicy, DestinationRule, EnvoyExtensions, MeshConfig,
    Protocol, Proxy, ProxyType, Resolution, Service, ServicePort, Subset, Text, TrafficPolicy,
};

use super::{
    ClusterProfile, ClusterSettings, ClusterSwitches, HboneSettings, OutboundInputs, all_served,
    build_connect_originate, build_outbound, build_passthrough,
};

fn service() -> Service {
    Service {
        namespace: "shop".into(),
        host: "cart.shop.svc.cluster.local".into(),
        name: "cart".into(),
        cluster: "c".into(),
        ports: vec![ServicePort {
            port: 80,
            name: "http".into(),
            protocol: Protocol::Http,
            target_port: Text::default(),
        }],
        ..Service::default()
    }
}

fn build(service: &Service, rule: Option<&DestinationRule>, profile: &ClusterProfile) -> Vec<Cluster> {
    build_with(&ClusterSettings::new(&MeshConfig::default(), false), service, rule, profile, false)
}

fn build_with(
    settings: &ClusterSettings,
    service: &Service,
    rule: Option<&DestinationRule>,
    profile: &ClusterProfile,
    all_endpoints_hbone: bool,
) -> Vec<Cluster> {
    build_outbound(&OutboundInputs {
        settings,
        profile,
        service,
        port: &service.ports[0],
        rule,
        takes_mtls: true,
        all_endpoints_hbone,
        all_endpoints_mtls: false,
        identities: &["spiffe://cluster.local/ns/shop/sa/cart".into()],
        dns_load: &|_| None,
        is_served: &all_served,
    })
}

#[test]
fn proxy_without_metadata_exchange_does_not_get_the_filter() {
    let upstream = Proxy {
        extensions: EnvoyExtensions(Some(BTreeSet::from(["envoy.filters.network.tcp_proxy".into()]))),
        ..Proxy::default()
    };
    let settings = ClusterSettings::new(&MeshConfig::default(), false);
    let filters = |proxy: &Proxy| {
        let profile = ClusterProfile::of(proxy);
        let clusters = build(&service(), None, &profile);
        clusters[0].filters.len() + build_passthrough(&settings, &profile).filters.len()
    };
    assert_eq!(filters(&Proxy::default()), 2);
    assert_eq!(filters(&upstream), 0);
}

#[test]
fn auto_mtls_matches_transport_sockets_by_endpoint() {
    let clusters = build(&service(), None, &ClusterProfile::default());
    let names: Vec<&str> = clusters[0].transport_socket_matches.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(names, ["tlsMode-istio", "tlsMode-disabled"]);
    assert!(clusters[0].transport_socket.is_none());
}

#[test]
fn subset_cluster_has_settings_of_service_and_subset() {
    let tls = ClientTls { mode: ClientTlsMode::Disable, ..ClientTls::default() };
    let rule = DestinationRule {
        namespace: "shop".into(),
        name: "cart".into(),
        host: "cart.shop.svc.cluster.local".into(),
        traffic_policy: Some(TrafficPolicy { tls: Some(tls), ..TrafficPolicy::default() }),
        subsets: vec![Subset { name: "v1".into(), ..Subset::default() }],
        ..DestinationRule::default()
    };
    let clusters = build(&service(), Some(&rule), &ClusterProfile::default());
    let names: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    assert_eq!(names, ["outbound|80||cart.shop.svc.cluster.local", "outbound|80|v1|cart.shop.svc.cluster.local"]);
    for cluster in &clusters {
        assert!(cluster.transport_socket_matches.is_empty() && cluster.transport_socket.is_none());
        assert_eq!(cluster.lb_policy, LbPolicy::LeastRequest as i32);
    }
}

#[test]
fn dns_cluster_requires_endpoints() {
    let service = Service { resolution: Resolution::DnsLb, ..service() };
    assert!(build(&service, None, &ClusterProfile::default()).is_empty());
}

#[test]
fn hbone_transport_socket_match_is_first() {
    let settings = ClusterSettings::new(&MeshConfig::default(), false).with_hbone(true, false);
    let matches = |rule: Option<&DestinationRule>, all: bool| {
        build_with(&settings, &service(), rule, &ClusterProfile::default(), all).remove(0)
    };
    let names = |cluster: &Cluster| -> Vec<String> {
        cluster.transport_socket_matches.iter().map(|found| found.name.clone()).collect()
    };
    let ruled = |mode| {
        let tls = ClientTls { mode, ..ClientTls::default() };
        let traffic_policy = Some(TrafficPolicy { tls: Some(tls), ..TrafficPolicy::default() });
        DestinationRule { host: "cart.shop.svc.cluster.local".into(), traffic_policy, ..DestinationRule::default() }
    };
    assert_eq!(names(&matches(None, false)), ["hbone", "tlsMode-istio", "tlsMode-disabled"]);
    for (mode, expected) in [
        (ClientTlsMode::Disable, ["hbone", "tlsMode-disabled"]),
        (ClientTlsMode::IstioMutual, ["hbone", "tlsMode-istio"]),
        (ClientTlsMode::Simple, ["hbone", "user"]),
    ] {
        assert_eq!(names(&matches(Some(&ruled(mode)), false)), expected, "{mode:?}");
    }
    let istio = |cluster: &Cluster| cluster.metadata.clone().unwrap_or_default().filter_metadata["istio"].clone();
    assert!(istio(&matches(None, true)).fields.contains_key("disable_mx"));
    assert!(!istio(&matches(None, false)).fields.contains_key("disable_mx"));
}

#[test]
fn a_cluster_without_its_certificates_accepts_no_server() {
    let is_refused = |mode, credential: ClientCredential, anonymous| {
        let tls = ClientTls { mode, credential, ..ClientTls::default() };
        let traffic_policy = Some(TrafficPolicy { tls: Some(tls), ..TrafficPolicy::default() });
        let rule = DestinationRule { host: service().host, traffic_policy, ..DestinationRule::default() };
        let profile = ClusterProfile { proxy_type: ProxyType::Router, anonymous, ..ClusterProfile::default() };
        let socket = build(&service(), Some(&rule), &profile).remove(0).transport_socket.expect("TLS");
        let Some(ConfigType::TypedConfig(config)) = socket.config_type else { panic!("no configuration") };
        let context = UpstreamTlsContext::decode(config.value.as_slice()).unwrap();
        match context.common_tls_context.unwrap().validation_context_type {
            Some(ValidationContextType::ValidationContext(context)) => !context.verify_certificate_hash.is_empty(),
            _ => false,
        }
    };
    let named = || ClientCredential::Named("cart".into());
    for mode in [ClientTlsMode::Simple, ClientTlsMode::Mutual] {
        assert!(is_refused(mode, ClientCredential::Unusable, false), "{mode:?}");
        assert!(is_refused(mode, named(), true), "{mode:?}: it is served no Secrets");
        assert!(!is_refused(mode, named(), false), "{mode:?}");
    }
    assert!(is_refused(ClientTlsMode::Mutual, ClientCredential::None, false), "there is no client certificate");
    assert!(!is_refused(ClientTlsMode::Simple, ClientCredential::None, true));
}

#[test]
fn compliance_policy_limits_every_cluster_with_tls() {
    let settings = ClusterSettings::new(&MeshConfig::default(), false);
    let settings = settings.with_compliance(Some(CompliancePolicy::Fips140V2));
    let versions = |socket: TransportSocket| {
        let Some(ConfigType::TypedConfig(config)) = socket.config_type else { panic!("no configuration") };
        let context = UpstreamTlsContext::decode(config.value.as_slice()).unwrap();
        let params = context.common_tls_context.unwrap().tls_params.unwrap();
        [params.tls_minimum_protocol_version, params.tls_maximum_protocol_version]
    };
    let only_12 = [TlsProtocol::TlSv12 as i32; 2];
    let mut automatic = build_with(&settings, &service(), None, &ClusterProfile::default(), false).remove(0);
    let mutual = automatic.transport_socket_matches.remove(0).transport_socket.unwrap();
    assert_eq!(versions(mutual), only_12);
    for mode in [ClientTlsMode::IstioMutual, ClientTlsMode::Simple] {
        let tls = ClientTls { mode, ..ClientTls::default() };
        let traffic_policy = Some(TrafficPolicy { tls: Some(tls), ..TrafficPolicy::default() });
        let rule = DestinationRule {
            host: "cart.shop.svc.cluster.local".into(),
            traffic_policy,
            ..DestinationRule::default()
        };
        let cluster = build_with(&settings, &service(), Some(&rule), &ClusterProfile::default(), false).remove(0);
        assert_eq!(versions(cluster.transport_socket.unwrap()), only_12, "{mode:?}");
    }
    // Without a policy, tunnels use only TLS 1.3.
    let tunnel =
        build_connect_originate(&settings, &HboneSettings::new(&MeshConfig::default(), ClusterSwitches::default()));
    assert_eq!(versions(tunnel.transport_socket.unwrap()), only_12);
}

#[test]
fn circuit_breakers_count_what_remains_if_the_server_says_so() {
    let tracked = |tracks_remaining| {
        let switches = ClusterSwitches { tracks_remaining, ..Default::default() };
        let settings = ClusterSettings::new(&MeshConfig::default(), false).with_switches(switches);
        let clusters = build_with(&settings, &service(), None, &ClusterProfile::default(), false);
        clusters[0].circuit_breakers.as_ref().expect("thresholds").thresholds[0].track_remaining
    };
    assert!(!tracked(false) && tracked(true));
}

#[test]
fn alpn_of_the_metadata_exchange_is_offered_unless_the_server_says_otherwise() {
    let offered = |peer_exchange| {
        let switches = ClusterSwitches { peer_exchange, ..ClusterSwitches::default() };
        let settings = ClusterSettings::new(&MeshConfig::default(), false).with_switches(switches);
        let tls = ClientTls { mode: ClientTlsMode::IstioMutual, ..ClientTls::default() };
        let rule = DestinationRule {
            host: "cart.shop.svc.cluster.local".into(),
            traffic_policy: Some(TrafficPolicy { tls: Some(tls), ..TrafficPolicy::default() }),
            ..DestinationRule::default()
        };
        let cluster = build_with(&settings, &service(), Some(&rule), &ClusterProfile::default(), false).remove(0);
        let Some(ConfigType::TypedConfig(config)) = cluster.transport_socket.unwrap().config_type else { panic!() };
        UpstreamTlsContext::decode(config.value.as_slice()).unwrap().common_tls_context.unwrap().alpn_protocols
    };
    assert_eq!(offered(true), ["istio-peer-exchange", "istio"]);
    assert_eq!(offered(false), ["istio"]);
}

#[test]
fn dns_cache_of_unknown_hosts_has_the_size_of_the_server() {
    let hosts = |dns_cache_hosts| {
        let switches = ClusterSwitches { dns_cache_hosts, ..ClusterSwitches::default() };
        let settings = ClusterSettings::new(&MeshConfig::default(), false).with_switches(switches);
        let cluster = super::build_allow_any_dynamic_dns(&settings, &ClusterProfile::default());
        let Some(ClusterDiscoveryType::ClusterType(custom)) = cluster.cluster_discovery_type else { panic!() };
        let config = DynamicDnsConfig::decode(custom.typed_config.unwrap().value.as_slice()).unwrap();
        let Some(ClusterImplementationSpecifier::DnsCacheConfig(cache)) = config.cluster_implementation_specifier
        else {
            panic!()
        };
        cache.max_hosts.map(|hosts| hosts.value)
    };
    assert_eq!((hosts(1024), hosts(9)), (Some(1024), Some(9)));
}

#[test]
fn windows_of_tunnels_are_those_of_the_server() {
    let windows = |hbone_stream_window, hbone_connection_window| {
        let switches = ClusterSwitches { hbone_stream_window, hbone_connection_window, ..ClusterSwitches::default() };
        let hbone = HboneSettings::new(&MeshConfig::default(), switches);
        let options = super::hbone::connect_options(&hbone);
        let Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit)) = options.upstream_protocol_options else {
            panic!()
        };
        let Some(ProtocolConfig::Http2ProtocolOptions(http2)) = explicit.protocol_config else { panic!() };
        let bytes = |window: Option<envoy_types::pb::google::protobuf::UInt32Value>| window.map(|window| window.value);
        (bytes(http2.initial_stream_window_size), bytes(http2.initial_connection_window_size))
    };
    assert_eq!(windows(0, 0), (None, None));
    assert_eq!(windows(65_536, 131_072), (Some(65_536), Some(131_072)));
}
