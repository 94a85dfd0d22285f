//! Listeners, compared with those of Istio.

use std::sync::Arc;

use envoy_types::pb::envoy::config::accesslog::v3::AccessLog;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType as SocketConfig;
use envoy_types::pb::envoy::config::listener::v3::{Filter, Listener, filter::ConfigType};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::DownstreamTlsContext;
use prost::Message;
use sluice_model::{MeshConfig, Protocol, ProxyType, Resolution, ServerTls, Service, ServicePort, Text};

use super::*;
use crate::listener_settings::{ListenerProfile, ListenerSettings, ListenerSwitches};
use crate::security::PolicyFilters;

fn service(name: &str, address: Option<&str>, ports: &[(u16, Protocol)]) -> Service {
    let ports = ports.iter().map(|(port, protocol)| ServicePort {
        port: *port,
        name: Text::default(),
        protocol: *protocol,
        target_port: Text::default(),
    });
    Service {
        namespace: "orchard".into(),
        host: format!("{name}.orchard.svc.cluster.local").as_str().into(),
        name: name.into(),
        cluster: "c".into(),
        addresses: address.map(|address| ("c".into(), vec![address.into()])).into_iter().collect(),
        ports: ports.collect(),
        resolution: if address.is_some() { Resolution::ClientSideLb } else { Resolution::Passthrough },
        ..Service::default()
    }
}

fn settings() -> ListenerSettings {
    ListenerSettings {
        profile: ListenerProfile { cluster: "c".into(), ..ListenerProfile::default() },
        ..ListenerSettings::default()
    }
}

fn build(settings: &ListenerSettings, services: &[&Service]) -> Listener {
    let (destinations, client) = (Destinations::new(), ListenerClient::default());
    let ports: Vec<OutboundPort<'_>> = services
        .iter()
        .map(|service| OutboundPort {
            service,
            listen: &service.ports[0],
            rule: None,
            virtual_services: &[],
            destinations: &destinations,
            client: &client,
        })
        .collect();
    let keys = listener_keys(settings, services[0], &services[0].ports[0], &BindAddress::default(), Some(&[]));
    build_outbound(settings, &keys[0], &ports).unwrap()
}

fn manager(filters: &[Filter]) -> Option<HttpConnectionManager> {
    filters.iter().find(|filter| filter.name == "envoy.filters.network.http_connection_manager").map(|filter| {
        match &filter.config_type {
            Some(ConfigType::TypedConfig(config)) => HttpConnectionManager::decode(config.value.as_slice()).unwrap(),
            other => panic!("no configuration: {other:?}"),
        }
    })
}

fn inspectors(listener: &Listener) -> Vec<&str> {
    listener.listener_filters.iter().filter_map(|filter| filter.name.rsplit('.').next()).collect()
}

#[test]
fn http_services_share_the_listener_of_a_port() {
    let listener = build(&settings(), &[&service("a", Some("10.0.0.1"), &[(80, Protocol::Http)])]);
    assert_eq!(listener.name, "0.0.0.0_80");
    assert_eq!(inspectors(&listener), ["http_inspector"]);
    assert_eq!(listener.default_filter_chain.as_ref().unwrap().name, "PassthroughFilterChain");
    let names: Vec<String> =
        manager(&listener.filter_chains[0].filters).unwrap().http_filters.into_iter().map(|f| f.name).collect();
    let expected = [
        "istio.metadata_exchange",
        "envoy.filters.http.grpc_stats",
        "istio.alpn",
        "envoy.filters.http.fault",
        "envoy.filters.http.cors",
        "envoy.filters.http.router",
    ];
    assert_eq!(names, expected);
}

#[test]
fn proxy_gets_no_filter_that_it_does_not_have() {
    let extensions = sluice_model::EnvoyExtensions(Some(["envoy.filters.http.router".into()].into()));
    let proxy = sluice_model::Proxy { extensions, cluster: "c".into(), ..sluice_model::Proxy::default() };
    let profile = ListenerProfile::of(&proxy, &sluice_model::ProxyConfig::default());
    let mut settings = ListenerSettings { profile, ..ListenerSettings::default() };
    let mut mesh = sluice_model::MeshConfig::default();
    mesh.default_providers.metrics = vec!["prometheus".into()];
    settings.mesh = Arc::new(mesh);
    let peers = PeerPolicy::default();
    let inputs = InboundInputs {
        settings: &settings,
        peers: &peers,
        ports: &[],
        policies: &PolicyFilters::default(),
        hbone: None,
    };
    let mut listeners = build_inbound(&inputs);
    listeners.push(build(&settings, &[&service("a", Some("10.0.0.1"), &[(80, Protocol::Http)])]));
    listeners.extend(build_virtual_outbound(&settings));
    for listener in listeners {
        for chain in listener.filter_chains.iter().chain(&listener.default_filter_chain) {
            let http = manager(&chain.filters).into_iter().flat_map(|manager| manager.http_filters);
            let names = chain.filters.iter().map(|filter| filter.name.clone()).chain(http.map(|filter| filter.name));
            for name in names {
                assert!(!name.starts_with("istio."), "{name} in {}", listener.name);
            }
        }
    }
}

#[test]
fn protocols_at_the_same_address_are_distinguished() {
    let shape = |services: &[&Service]| {
        let listener = build(&settings(), services);
        let http = listener.filter_chains.iter().filter(|chain| manager(&chain.filters).is_some()).count();
        (listener.filter_chains.len(), http, listener.default_filter_chain.is_some())
    };
    let at = |protocol| service("a", Some("10.0.0.1"), &[(80, protocol)]);
    let (tcp, auto, mongo) = (at(Protocol::Tcp), at(Protocol::Unsupported), at(Protocol::Mongo));
    assert_eq!(shape(&[&tcp]), (1, 0, false));
    assert_eq!(shape(&[&tcp, &tcp]), (1, 0, false), "the older one keeps the address");
    assert_eq!(shape(&[&tcp, &auto]), (1, 1, true), "the listener begins to sniff");
    assert_eq!(shape(&[&auto, &tcp]), (1, 1, true));
    assert_eq!(shape(&[&mongo, &auto]), (1, 0, false), "a protocol in which the server speaks first is never sniffed");
}

#[test]
fn headless_service_has_a_listener_per_pod() {
    let headless = service("a", None, &[(9000, Protocol::Tcp)]);
    let keys = |pods: &[Vec<Text>]| {
        let keys = listener_keys(&settings(), &headless, &headless.ports[0], &BindAddress::default(), Some(pods));
        keys.iter().map(ListenerKey::name).collect::<Vec<_>>()
    };
    assert!(keys(&[]).is_empty());
    let pods = [vec!["10.1.0.1".into()], vec!["web-0.example".into()], vec!["10.1.0.2".into()]];
    assert_eq!(keys(&pods), ["10.1.0.1_9000", "10.1.0.2_9000"]);
}

#[test]
fn ports_of_the_proxy_itself_have_no_listener() {
    let mut settings = settings();
    settings.profile.reserved_ports = vec![15021];
    let web = service("a", Some("10.0.0.1"), &[(15021, Protocol::Http)]);
    assert!(listener_keys(&settings, &web, &web.ports[0], &BindAddress::default(), Some(&[])).is_empty());
    let tcp = service("a", Some("10.0.0.1"), &[(15021, Protocol::Tcp)]);
    assert_eq!(listener_keys(&settings, &tcp, &tcp.ports[0], &BindAddress::default(), Some(&[])).len(), 1);
}

#[test]
fn http3_listener_of_a_gateway_uses_udp() {
    let tls = sluice_model::ServerTls {
        mode: sluice_model::ServerTlsMode::Simple,
        credential_name: "web".into(),
        ..sluice_model::ServerTls::default()
    };
    let chain = GatewayChain {
        server_names: vec!["a.example".into()],
        tls: Some(tls),
        port: GatewayPort { number: 443, name: "https".into(), protocol: Protocol::Https },
        action: GatewayAction::Http { route_name: "https.443".into(), stat_prefix: Text::default() },
    };
    let port =
        |quic: bool| GatewayListener { port: 443, chains: vec![chain.clone()], quic, ..GatewayListener::default() };
    let of = |quic: bool| build_gateway(&settings(), &port(quic), &PolicyFilters::default()).expect("a listener");
    let (plain, quic) = (of(false), of(true));
    assert_eq!((plain.name.as_str(), quic.name.as_str()), ("0.0.0.0_443", "udp_0.0.0.0_443"));
    assert_eq!((inspectors(&plain).len(), inspectors(&quic).len()), (1, 0));
    let socket = |listener: &Listener| listener.filter_chains[0].transport_socket.as_ref().map(|it| it.name.clone());
    assert_eq!(socket(&plain).as_deref(), Some("envoy.transport_sockets.tls"));
    assert_eq!(socket(&quic).as_deref(), Some("envoy.transport_sockets.quic"));
    assert!(plain.udp_listener_config.is_none() && quic.udp_listener_config.is_some());
    let manager = manager(&quic.filter_chains[0].filters).expect("a manager");
    assert!(manager.http3_protocol_options.is_some());
    assert_eq!(manager.stat_prefix, "outbound_udp_0.0.0.0_443;");
}

/// The inbound chains of port 8443, which a Sidecar declares with `tls`.
fn declared(switches: ListenerSwitches, mode: MtlsMode, protocol: Protocol) -> Vec<(String, Vec<String>, bool, bool)> {
    let mesh = MeshConfig { proxy_listen_port: 15001, proxy_inbound_listen_port: 15006, ..MeshConfig::default() };
    let settings = ListenerSettings { switches, mesh: Arc::new(mesh), ..settings() };
    let tls = ServerTls { server_certificate: "/c".into(), private_key: "/k".into(), ..ServerTls::default() };
    let ports =
        [InboundPort { target_port: 8443, port: 8443, protocol, tls: Some(Box::new(tls)), ..InboundPort::default() }];
    let peers = PeerPolicy { mode, ..PeerPolicy::default() };
    let policies = PolicyFilters::default();
    let built = build_inbound(&InboundInputs {
        settings: &settings,
        peers: &peers,
        ports: &ports,
        policies: &policies,
        hbone: None,
    });
    let chains = built[0].filter_chains.iter().filter_map(|chain| {
        let condition =
            chain.filter_chain_match.as_ref().filter(|m| m.destination_port.is_some_and(|p| p.value == 8443))?;
        let http = manager(&chain.filters).is_some();
        let (transport, names) = (condition.transport_protocol.clone(), condition.application_protocols.clone());
        Some((transport, names, http, chain.transport_socket.is_some()))
    });
    chains.collect()
}

#[test]
fn sidecar_tls_is_terminated_if_mutual_tls_is_disabled() {
    let switches = ListenerSwitches::default();
    let tls = |http| vec![("tls".to_owned(), Vec::new(), http, true)];
    assert_eq!(declared(switches, MtlsMode::Disable, Protocol::Http), tls(true));
    assert_eq!(declared(switches, MtlsMode::Disable, Protocol::Tcp), tls(false));
    assert_eq!(declared(switches, MtlsMode::Strict, Protocol::Tcp), tls(false), "that of the mesh");
    assert_eq!(declared(switches, MtlsMode::Permissive, Protocol::Http).len(), 2);
}

#[test]
fn http10_is_detected_if_it_is_accepted() {
    let switches = ListenerSwitches { http10: true, ..ListenerSwitches::default() };
    let names = |settings: &ListenerSettings| {
        let listener = build(settings, &[&service("a", Some("10.0.0.1"), &[(80, Protocol::Unsupported)])]);
        let chain = listener.filter_chains.iter().find(|chain| manager(&chain.filters).is_some()).unwrap();
        let accepts = manager(&chain.filters).unwrap().http_protocol_options.is_some_and(|own| own.accept_http_10);
        (chain.filter_chain_match.clone().unwrap().application_protocols, accepts)
    };
    let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&settings()), (text(&["http/1.1", "h2c"]), false));
    assert_eq!(names(&ListenerSettings { switches, ..settings() }), (text(&["http/1.0", "http/1.1", "h2c"]), true));
    let own = ListenerSettings { profile: ListenerProfile { http10: true, ..settings().profile }, ..settings() };
    assert_eq!(names(&own), (text(&["http/1.1", "h2c"]), true), "what is HTTP is the same for all");
    let sniffed = inbound_chain::transport_matches(MtlsMode::Disable, PortProtocol::Auto, switches);
    assert_eq!(sniffed[0].names, ["http/1.0", "http/1.1", "h2c"]);
}

#[test]
fn connections_of_an_event_and_handshakes_are_limited_as_the_server_says() {
    let limits = |connections_per_event, seconds| {
        let mut settings = settings();
        settings.switches.connections_per_event = connections_per_event;
        settings.switches.gateway_handshake_timeout = std::time::Duration::from_secs(seconds);
        let listener = build(&settings, &[&service("a", Some("10.0.0.1"), &[(80, Protocol::Http)])]);
        let chain = &listener.filter_chains[0];
        let handshake = chain.transport_socket_connect_timeout.as_ref().map(|timeout| timeout.seconds);
        (
            build_virtual_outbound(&settings).unwrap().max_connections_to_accept_per_socket_event.map(|n| n.value),
            handshake,
        )
    };
    assert_eq!(limits(1, 15), (Some(1), Some(15)));
    assert_eq!(limits(5, 7), (Some(5), Some(7)));
    assert_eq!(limits(0, 0), (None, None));
}

#[test]
fn headers_and_alpn_follow_the_switches_of_the_server() {
    let of = |switches| {
        let settings = ListenerSettings { switches, ..settings() };
        let listener = build(&settings, &[&service("a", Some("10.0.0.1"), &[(80, Protocol::Http)])]);
        let http = manager(&listener.filter_chains[0].filters).unwrap();
        let remote = http.use_remote_address.is_some_and(|uses| uses.value);
        let Some(SocketConfig::TypedConfig(config)) = mtls::mesh_tls(&settings, false).config_type else { panic!() };
        let tls = DownstreamTlsContext::decode(config.value.as_slice()).unwrap().common_tls_context.unwrap();
        (http.proxy_100_continue, remote, tls.alpn_protocols.len())
    };
    assert_eq!(of(ListenerSwitches::default()), (true, false, 3));
    let other = ListenerSwitches {
        continue_responses: false,
        sidecar_remote_address: true,
        peer_exchange: false,
        ..ListenerSwitches::default()
    };
    assert_eq!(of(other), (false, true, 2));
}

#[test]
fn tunnels_log_to_the_file_of_the_mesh_and_listeners_to_the_log_service_as_well() {
    let mesh = MeshConfig {
        access_log_file: "/dev/stdout".into(),
        enable_envoy_access_log_service: true,
        ..MeshConfig::default()
    };
    let names = |logs: &[AccessLog]| logs.iter().map(|log| log.name.clone()).collect::<Vec<_>>();
    let (file, service) = ("envoy.access_loggers.file".to_owned(), "envoy.tcp_grpc_access_log".to_owned());
    for proxy_type in [ProxyType::Sidecar, ProxyType::Router, ProxyType::Waypoint] {
        let profile = ListenerProfile { proxy_type, ..settings().profile };
        let listener = build_connect_originate(&ListenerSettings { profile, mesh: mesh.clone().into(), ..settings() });
        assert_eq!(names(&listener.access_log), [file.clone(), service.clone()], "{proxy_type:?}");
        let filter = listener.filter_chains[0].filters.last().expect("a filter");
        let Some(ConfigType::TypedConfig(config)) = &filter.config_type else { panic!("{filter:?}") };
        let tunnel = TcpProxy::decode(config.value.as_slice()).expect("a TCP proxy");
        assert_eq!(names(&tunnel.access_log), std::slice::from_ref(&file), "{proxy_type:?}");
    }
}
