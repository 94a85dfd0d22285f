//! Gateway listeners (N22, N32): one per port and address, with a filter chain per server or route.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType as SocketConfig;
use envoy_types::pb::envoy::config::core::v3::{TrafficDirection, TransportSocket};
use envoy_types::pb::envoy::config::listener::v3::{
    FilterChain, Listener, ListenerFilter, QuicProtocolOptions, UdpListenerConfig, listener_filter::ConfigType,
};
use envoy_types::pb::envoy::extensions::filters::listener::proxy_protocol::v3::ProxyProtocol;
use envoy_types::pb::envoy::extensions::transport_sockets::quic::v3::QuicDownstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::DownstreamTlsContext;
use sluice_model::{Protocol, RouteDestination, ServerTls, ServerTlsMode, Text, VirtualService};

use super::address::{additional, bind_over_udp, wildcards};
use super::chain::{Action, Chain};
use super::inspector::tls_inspector;
use super::mtls::socket;
use super::outbound::exact_balance;
use super::server_tls::{TlsPayload, server_tls};
use super::tcp_filters::{Destinations, TcpFilterInputs};
use crate::address::address;
use crate::filter::{
    Extensions, HttpChain, RouteSource, build_http_manager, connection_settings, hcm_filter, listener_access_log,
};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name;
use crate::security::PolicyFilters;
use crate::wire::{any, uint32};

/// A port of a gateway and its filter chains.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GatewayListener {
    /// Port number.
    pub port: u32,
    /// Address to bind to; empty for all addresses.
    pub bind: Text,
    /// Its chains.
    pub chains: Vec<GatewayChain>,
    /// Whether SNI chains follow that are built elsewhere.
    pub more_chains: bool,
    /// Whether it serves HTTP/3. All its chains are HTTPS.
    pub quic: bool,
    /// Whether its routes may call endpoint pickers.
    pub calls_pickers: bool,
}

/// A filter chain of a gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayChain {
    /// Server names that it matches; empty for all.
    pub server_names: Vec<Text>,
    /// TLS it terminates.
    pub tls: Option<ServerTls>,
    /// Port of its server.
    pub port: GatewayPort,
    /// Its action.
    pub action: GatewayAction,
}

/// The port of a server in the Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GatewayPort {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: Text,
    /// Its protocol.
    pub protocol: Protocol,
}

/// Action of a gateway filter chain.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GatewayAction {
    /// HTTP routing.
    Http {
        /// Name of the route configuration.
        route_name: Text,
        /// Prefix of statistics; empty for that of the listener.
        stat_prefix: Text,
    },
    /// TCP proxying by the route of a VirtualService.
    Tcp {
        /// The VirtualService.
        virtual_service: Arc<VirtualService>,
        /// The route.
        route: Vec<RouteDestination>,
        /// Its destinations.
        destinations: Destinations,
    },
}

/// The primary and additional addresses of a gateway listener; `None` if the gateway may not bind to the port.
#[must_use]
pub fn gateway_addresses(settings: &ListenerSettings, port: u32, bind: &Text) -> Option<Vec<Text>> {
    if settings.profile.unprivileged && port < 1024 {
        return None;
    }
    if !bind.is_empty() {
        return Some(vec![bind.clone()]);
    }
    let mut addresses = wildcards(settings.profile.families);
    addresses.truncate(if settings.dual_stack { addresses.len() } else { 1 });
    Some(addresses)
}

/// The listener of a port; `None` without filter chains or if the gateway may not bind to the port. That of an east-west
/// gateway of ambient mode (A09) is inbound, and neither limited nor behind a proxy that states the client (PROXY protocol).
#[must_use]
pub fn build_gateway(
    settings: &ListenerSettings,
    port: &GatewayListener,
    policies: &PolicyFilters,
) -> Option<Listener> {
    let addresses = gateway_addresses(settings, port.port, &port.bind)?;
    let (primary, extra) = addresses.split_first()?;
    if port.chains.is_empty() && !port.more_chains {
        return None;
    }
    let name = if port.quic { name::udp_listener(primary, port.port) } else { name::listener(primary, port.port) };
    let east_west = settings.profile.east_west;
    let limits = connection_settings(settings).filter(|_| !east_west);
    let limit = limits.and_then(|limits| limits.listener_buffer_limit_bytes);
    let direction = if east_west { TrafficDirection::Inbound } else { TrafficDirection::Outbound };
    let chains = port.chains.iter().map(|chain| filter_chain(settings, &name, port, chain, policies));
    let mut listener = Listener {
        address: Some(address(primary, port.port)),
        additional_addresses: additional(extra, port.port),
        traffic_direction: direction as i32,
        filter_chains: chains.collect(),
        per_connection_buffer_limit_bytes: limit.and_then(|limit| u32::try_from(limit).ok()).map(uint32),
        max_connections_to_accept_per_socket_event: settings.switches.connections_per_event(),
        access_log: listener_access_log(settings, ListenerClass::Gateway),
        name,
        ..Listener::default()
    };
    if port.quic {
        // HTTP/3 is served over QUIC.
        let quic =
            UdpListenerConfig { quic_options: Some(QuicProtocolOptions::default()), ..UdpListenerConfig::default() };
        bind_over_udp(&mut listener, quic);
        return Some(listener);
    }
    listener.connection_balance_config = exact_balance(settings.profile.outbound_exact_balance);
    if settings.config().gateway_topology.proxy_protocol && !east_west {
        listener.listener_filters.push(proxy_protocol_filter());
    }
    let looks_inside = |chain: &GatewayChain| chain.tls.is_some() || !chain.server_names.is_empty();
    if port.more_chains || port.chains.iter().any(looks_inside) {
        listener.listener_filters.push(tls_inspector());
    }
    Some(listener)
}

fn filter_chain(
    settings: &ListenerSettings,
    listener: &str,
    of: &GatewayListener,
    chain: &GatewayChain,
    policies: &PolicyFilters,
) -> FilterChain {
    let GatewayPort { number, name: port_name, protocol } = &chain.port;
    let filters = match &chain.action {
        GatewayAction::Http { route_name, stat_prefix } => {
            let prefix = if stat_prefix.is_empty() {
                name::stat_prefix(&format!("outbound_{listener}"))
            } else {
                stat_prefix.to_string()
            };
            let routes = RouteSource::Named(route_name.to_string());
            let mut http = HttpChain::new(ListenerClass::Gateway, *protocol, of.port, routes, prefix);
            http.use_remote_address = true;
            http.http3 = of.quic;
            http.calls_pickers = of.calls_pickers;
            http.policies.clone_from(&policies.http);
            let manager = hcm_filter(&build_http_manager(settings, &http));
            if of.quic {
                vec![manager]
            } else {
                let extensions = Extensions::on(settings, ListenerClass::Gateway, of.port).all_network();
                extensions.chain([manager]).collect()
            }
        }
        GatewayAction::Tcp { virtual_service, route, destinations } => {
            let carrier = TcpFilterInputs {
                class: ListenerClass::Gateway,
                protocol: *protocol,
                port: *number,
                port_name,
                destinations,
                exchanges_metadata: chain.tls.as_ref().is_some_and(|tls| tls.mode == ServerTlsMode::IstioMutual),
                tunnels: true,
                policies: Some(&policies.tcp),
                before_proxy: &[],
            };
            carrier.for_route(settings, virtual_service, route)
        }
    };
    let transport_socket = chain.tls.as_ref().map(|tls| {
        let is_http = protocol.is_http() || *protocol == Protocol::Https;
        match (of.quic, is_http) {
            (true, _) => quic_socket(server_tls(settings, tls, TlsPayload::Http3)),
            (false, true) => socket(&server_tls(settings, tls, TlsPayload::Http)),
            (false, false) => socket(&server_tls(settings, tls, TlsPayload::Bytes)),
        }
    });
    let matching = Chain { server_names: chain.server_names.clone(), ..Chain::new(Action::Network(Vec::new())) };
    FilterChain {
        filter_chain_match: matching.to_match(),
        filters,
        transport_socket,
        transport_socket_connect_timeout: settings.switches.gateway_handshake_timeout(),
        ..FilterChain::default()
    }
}

fn quic_socket(context: DownstreamTlsContext) -> TransportSocket {
    let transport =
        QuicDownstreamTransport { downstream_tls_context: Some(context), ..QuicDownstreamTransport::default() };
    TransportSocket {
        name: "envoy.transport_sockets.quic".to_owned(),
        config_type: Some(SocketConfig::TypedConfig(any(&transport))),
    }
}

fn proxy_protocol_filter() -> ListenerFilter {
    ListenerFilter {
        name: "envoy.filters.listener.proxy_protocol".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(&ProxyProtocol::default()))),
        ..ListenerFilter::default()
    }
}
