//! Listeners of gateways (N22, N32): one a port and address, a filter chain a server or route.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{
    FilterChain, Listener, ListenerFilter, listener_filter::ConfigType,
};
use envoy_types::pb::envoy::extensions::filters::listener::proxy_protocol::v3::ProxyProtocol;
use sluice_model::{Protocol, RouteDestination, ServerTls, ServerTlsMode, Text, VirtualService};

use super::address::{additional, wildcards};
use super::chain::{Action, Chain};
use super::inspector::tls_inspector;
use super::mtls::socket;
use super::outbound::exact_balance;
use super::server_tls::server_tls;
use super::settings::Settings;
use super::tcp_filters::{Carrier, Destinations};
use super::virtual_outbound::HANDSHAKE_TIMEOUT;
use crate::address::address;
use crate::filter::{
    Class, Extensions, HttpChain, Routes, build_http_manager, connection_settings, hcm_filter, listener_access_log,
};
use crate::name;
use crate::wire::{any, duration, uint32};

/// A port of a gateway, and what it does with what arrives there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GatewayListener {
    /// Port listened on.
    pub port: u32,
    /// Address to listen on, empty for any.
    pub bind: Text,
    /// Its chains.
    pub chains: Vec<GatewayChain>,
    /// Chains by server name follow that are built elsewhere.
    pub more_chains: bool,
}

/// A filter chain of a gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayChain {
    /// Server names it is for; empty is all.
    pub server_names: Vec<Text>,
    /// TLS it terminates.
    pub tls: Option<ServerTls>,
    /// Port of its server.
    pub port: GatewayPort,
    /// What it does.
    pub action: GatewayAction,
}

/// The port of a server, as its Gateway has it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GatewayPort {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: Text,
    /// Its protocol.
    pub protocol: Protocol,
}

/// What a chain of a gateway does with traffic.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GatewayAction {
    /// Routes requests.
    Http {
        /// Route table.
        route_name: Text,
        /// Prefix of statistics, empty for that of the listener.
        stat_prefix: Text,
    },
    /// Carries bytes along the route of a VirtualService.
    Tcp {
        /// The VirtualService.
        virtual_service: Arc<VirtualService>,
        /// The route.
        route: Vec<RouteDestination>,
        /// Its destinations.
        destinations: Destinations,
    },
}

/// The address a listener of a gateway has, and further ones; nothing if the gateway may not bind to its port.
#[must_use]
pub fn gateway_addresses(settings: &Settings, port: u32, bind: &Text) -> Option<Vec<Text>> {
    if settings.facts.unprivileged && port < 1024 {
        return None;
    }
    if !bind.is_empty() {
        return Some(vec![bind.clone()]);
    }
    let mut addresses = wildcards(settings.facts.families);
    addresses.truncate(if settings.dual_stack { addresses.len() } else { 1 });
    Some(addresses)
}

/// The listener of a port; `None` if it would have no chain or the gateway may not bind to it.
#[must_use]
pub fn build_gateway(settings: &Settings, port: &GatewayListener) -> Option<Listener> {
    let addresses = gateway_addresses(settings, port.port, &port.bind)?;
    let (primary, extra) = addresses.split_first()?;
    if port.chains.is_empty() && !port.more_chains {
        return None;
    }
    let name = name::listener(primary, port.port);
    let limit = connection_settings(settings).and_then(|limits| limits.listener_buffer_limit_bytes);
    let mut listener_filters = Vec::new();
    if settings.config().gateway_topology.proxy_protocol {
        listener_filters.push(proxy_protocol_filter());
    }
    let looks_inside = |chain: &GatewayChain| chain.tls.is_some() || !chain.server_names.is_empty();
    if port.more_chains || port.chains.iter().any(looks_inside) {
        listener_filters.push(tls_inspector());
    }
    Some(Listener {
        address: Some(address(primary, port.port)),
        additional_addresses: additional(extra, port.port),
        traffic_direction: TrafficDirection::Outbound as i32,
        listener_filters,
        filter_chains: port.chains.iter().map(|chain| filter_chain(settings, &name, port.port, chain)).collect(),
        per_connection_buffer_limit_bytes: limit.and_then(|limit| u32::try_from(limit).ok()).map(uint32),
        connection_balance_config: exact_balance(settings.facts.outbound_exact_balance),
        max_connections_to_accept_per_socket_event: Some(uint32(1)),
        access_log: listener_access_log(settings, Class::Gateway),
        name,
        ..Listener::default()
    })
}

fn filter_chain(settings: &Settings, listener: &str, listen_port: u32, chain: &GatewayChain) -> FilterChain {
    let GatewayPort { number, name: port_name, protocol } = &chain.port;
    let filters = match &chain.action {
        GatewayAction::Http { route_name, stat_prefix } => {
            let prefix = if stat_prefix.is_empty() {
                name::stat_prefix(&format!("outbound_{listener}"))
            } else {
                stat_prefix.to_string()
            };
            let routes = Routes::Named(route_name.to_string());
            let mut http = HttpChain::new(Class::Gateway, *protocol, listen_port, routes, prefix);
            http.use_remote_address = true;
            let extensions = Extensions::on(settings, Class::Gateway, listen_port).all_network();
            extensions.chain([hcm_filter(&build_http_manager(settings, &http))]).collect()
        }
        GatewayAction::Tcp { virtual_service, route, destinations } => {
            let carrier = Carrier {
                class: Class::Gateway,
                protocol: *protocol,
                port: *number,
                port_name,
                destinations,
                exchanges_metadata: chain.tls.as_ref().is_some_and(|tls| tls.mode == ServerTlsMode::IstioMutual),
                tunnels: true,
                before_proxy: &[],
            };
            carrier.along(settings, virtual_service, route)
        }
    };
    let bytes = !protocol.is_http() && *protocol != Protocol::Https;
    let matching = Chain { server_names: chain.server_names.clone(), ..Chain::new(Action::Network(Vec::new())) };
    FilterChain {
        filter_chain_match: matching.to_match(),
        filters,
        transport_socket: chain.tls.as_ref().map(|tls| socket(&server_tls(settings, tls, bytes))),
        transport_socket_connect_timeout: Some(duration(HANDSHAKE_TIMEOUT)),
        ..FilterChain::default()
    }
}

fn proxy_protocol_filter() -> ListenerFilter {
    ListenerFilter {
        name: "envoy.filters.listener.proxy_protocol".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(&ProxyProtocol::default()))),
        ..ListenerFilter::default()
    }
}
