//! Listeners of gateways (N22).

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{
    FilterChain, Listener, ListenerFilter, listener_filter::ConfigType,
};
use envoy_types::pb::envoy::extensions::filters::listener::proxy_protocol::v3::ProxyProtocol;
use sluice_model::{Protocol, Text};

use super::address::{additional, wildcards};
use super::outbound::exact_balance;
use super::settings::Settings;
use super::virtual_outbound::HANDSHAKE_TIMEOUT;
use crate::address::address;
use crate::filter::{
    Class, HttpChain, Routes, build_http_manager, connection_settings, hcm_filter, listener_access_log,
};
use crate::name;
use crate::wire::{any, duration, uint32};

/// A port of a gateway with plain HTTP servers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GatewayHttp {
    /// Port listened on.
    pub port: u32,
    /// Address to listen on, empty for any.
    pub bind: Text,
    /// Protocol of the first server.
    pub protocol: Protocol,
    /// Route table of all of them.
    pub route_name: Text,
}

/// The listener of a port with plain HTTP servers; `None` if the gateway may not bind to it.
#[must_use]
pub fn build_gateway_http(settings: &Settings, server: &GatewayHttp) -> Option<Listener> {
    if settings.facts.unprivileged && server.port < 1024 {
        return None;
    }
    let wildcards = wildcards(settings.facts.families);
    let (primary, extra) = if server.bind.is_empty() {
        (wildcards.first()?, if settings.dual_stack { &wildcards[1..] } else { &[] })
    } else {
        (&server.bind, &[][..])
    };
    let name = name::listener(primary, server.port);
    let prefix = name::stat_prefix(&format!("outbound_{name}"));
    let routes = Routes::Named(server.route_name.to_string());
    let mut chain = HttpChain::new(Class::Gateway, server.protocol, routes, prefix);
    chain.use_remote_address = true;
    let limit = connection_settings(settings).and_then(|limits| limits.listener_buffer_limit_bytes);
    let proxy_protocol = settings.config().gateway_topology.proxy_protocol;
    Some(Listener {
        address: Some(address(primary, server.port)),
        additional_addresses: additional(extra, server.port),
        name,
        traffic_direction: TrafficDirection::Outbound as i32,
        listener_filters: proxy_protocol.then(proxy_protocol_filter).into_iter().collect(),
        filter_chains: vec![FilterChain {
            filters: vec![hcm_filter(&build_http_manager(settings, &chain))],
            transport_socket_connect_timeout: Some(duration(HANDSHAKE_TIMEOUT)),
            ..FilterChain::default()
        }],
        per_connection_buffer_limit_bytes: limit.and_then(|limit| u32::try_from(limit).ok()).map(uint32),
        connection_balance_config: exact_balance(settings.facts.outbound_exact_balance),
        max_connections_to_accept_per_socket_event: Some(uint32(1)),
        access_log: listener_access_log(settings, Class::Gateway),
        ..Listener::default()
    })
}

fn proxy_protocol_filter() -> ListenerFilter {
    ListenerFilter {
        name: "envoy.filters.listener.proxy_protocol".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(&ProxyProtocol::default()))),
        ..ListenerFilter::default()
    }
}
