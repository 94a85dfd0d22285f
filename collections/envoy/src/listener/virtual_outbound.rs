//! The listener for redirected outbound traffic, and the handling of unknown hosts (N02).

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain, FilterChainMatch, Listener};
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::{TcpProxy, tcp_proxy::ClusterSpecifier};
use sluice_model::{InterceptionMode, OutboundPolicy, Protocol};

use super::address::{additional, wildcards};
use super::protocol_detection::plain_http;
use super::{dynamic_dns, inspector};
use crate::address::address;
use crate::filter::{
    HttpChain, RouteSource, build_http_manager, hcm_filter, listener_access_log, tcp_access_logs, tcp_proxy_filter,
    tcp_stats,
};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name;
use crate::route::{CatchAll, TableKind, build_catch_all, build_header};
use crate::wire::{boolean, duration, uint32};

/// The listener for redirected outbound traffic; `None` if traffic is not redirected.
#[must_use]
pub fn build_virtual_outbound(settings: &ListenerSettings) -> Option<Listener> {
    let interception = settings.profile.interception;
    if interception == InterceptionMode::None || settings.mesh.proxy_listen_port == 0 {
        return None;
    }
    let port = u32::from(settings.mesh.proxy_listen_port);
    let addresses = wildcards(settings.profile.families);
    let mut chains = vec![black_hole(settings, port)];
    let dynamic = settings.outbound_policy() == OutboundPolicy::AllowAnyDynamicDns;
    if dynamic {
        chains.push(dynamic_dns_chain(settings));
    }
    chains.push(FilterChain {
        name: "virtualOutbound-catchall-tcp".to_owned(),
        filters: catch_all_filters(settings),
        ..FilterChain::default()
    });
    Some(Listener {
        name: name::VIRTUAL_OUTBOUND.to_owned(),
        address: Some(address(addresses.first()?, port)),
        additional_addresses: if settings.dual_stack { additional(&addresses[1..], port) } else { Vec::new() },
        transparent: (interception == InterceptionMode::Tproxy).then(|| boolean(true)),
        use_original_dst: Some(boolean(true)),
        filter_chains: chains,
        traffic_direction: TrafficDirection::Outbound as i32,
        max_connections_to_accept_per_socket_event: settings.switches.connections_per_event(),
        listener_filters: if dynamic { vec![inspector::http_inspector()] } else { Vec::new() },
        access_log: listener_access_log(settings, ListenerClass::Outbound),
        ..Listener::default()
    })
}

/// The chain that blocks traffic to the listener's own port, which would otherwise loop.
fn black_hole(settings: &ListenerSettings, port: u32) -> FilterChain {
    let mut filters = tcp_stats(settings, ListenerClass::Outbound);
    filters.push(tcp_proxy_filter(&to_cluster(name::BLACK_HOLE)));
    FilterChain {
        name: "virtualOutbound-blackhole".to_owned(),
        filter_chain_match: Some(FilterChainMatch {
            destination_port: Some(uint32(port)),
            ..FilterChainMatch::default()
        }),
        filters,
        ..FilterChain::default()
    }
}

pub(super) fn to_cluster(cluster: &str) -> TcpProxy {
    TcpProxy {
        stat_prefix: cluster.to_owned(),
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
        ..TcpProxy::default()
    }
}

/// The filter chain of connections that nothing else matches.
pub(super) fn catch_all_filters(settings: &ListenerSettings) -> Vec<Filter> {
    let egress_proxy = settings.egress_proxy();
    let cluster = match (settings.outbound_policy(), &egress_proxy) {
        (OutboundPolicy::RegistryOnly, _) => name::BLACK_HOLE,
        (_, Some(cluster)) => cluster.as_str(),
        (_, None) => name::PASSTHROUGH,
    };
    let proxy = TcpProxy {
        idle_timeout: settings.profile.idle_timeout.map(duration),
        access_log: tcp_access_logs(settings, ListenerClass::Outbound),
        ..to_cluster(cluster)
    };
    let mut filters = tcp_stats(settings, ListenerClass::Outbound);
    filters.push(tcp_proxy_filter(&proxy));
    filters
}

/// Whether unknown hosts are resolved by DNS.
fn dynamic_dns_chain(settings: &ListenerSettings) -> FilterChain {
    let headers = settings.config().proxy_headers.clone().unwrap_or_default();
    let catch_all = build_catch_all(
        &CatchAll::AllowDynamicDns,
        headers.attempt_count_disabled != Some(true),
        headers.x_forwarded_host_enabled == Some(true),
    );
    let mut routes = build_header(name::ALLOW_ANY_DYNAMIC_DNS, TableKind::Full);
    routes.virtual_hosts = vec![catch_all];
    let prefix = name::stat_prefix("outbound_virtualOutbound_allow_any_dynamic_dns");
    let mut chain =
        HttpChain::new(ListenerClass::Outbound, Protocol::Http, 0, RouteSource::Inline(Box::new(routes)), prefix);
    add_forward_filter(settings, &mut chain);
    FilterChain {
        name: "virtualOutbound-catchall-tcp-http".to_owned(),
        filter_chain_match: Some(FilterChainMatch {
            application_protocols: plain_http(settings.switches).iter().map(|name| (*name).to_owned()).collect(),
            ..FilterChainMatch::default()
        }),
        filters: vec![hcm_filter(&build_http_manager(settings, &chain))],
        ..FilterChain::default()
    }
}

/// The filter that resolves unknown hosts. Every outbound route configuration ends in the catch-all virtual host, so every
/// connection manager needs it.
pub(super) fn add_forward_filter(settings: &ListenerSettings, chain: &mut HttpChain) {
    if settings.outbound_policy() == OutboundPolicy::AllowAnyDynamicDns {
        chain.forward_filters.push(dynamic_dns::allow_any_filter(settings));
    }
}
