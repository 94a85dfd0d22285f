//! The listener that terminates tunnels of waypoints and sidecars (N23, N25).

use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::upgrade_config::ConnectConfig;
use envoy_types::pb::envoy::config::route::v3::route_action::{ClusterSpecifier, UpgradeConfig};
use envoy_types::pb::envoy::config::route::v3::route_match::{ConnectMatcher, PathSpecifier};
use envoy_types::pb::envoy::config::route::v3::{Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost};
use envoy_types::pb::envoy::extensions::filters::common::set_filter_state::v3::filter_state_value::SharedWithUpstream;
use envoy_types::pb::envoy::extensions::filters::http::set_filter_state::v3::Config as HttpFilterState;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::DownstreamTlsContext;
use sluice_model::HBONE_PORT;

use super::address::{additional, wildcards};
use super::connect_originate::ISTIO_SOURCE;
use super::outbound::exact_balance;
use crate::address::address;
use crate::cluster::{mutual_tls, tunnel_trust_domains};
use crate::filter::{build_tunnel_manager, hcm_filter, listener_access_log, router, waypoint_peer_metadata};
use crate::filter_config::http_filter;
use crate::filter_state::{
    CONNECT_AUTHORITY, LOCAL_PRINCIPAL, ORIGINAL_DESTINATION, ORIGINAL_SOURCE, PEER_PRINCIPAL, REQUEST_SOURCE,
    filter_state, text_factory,
};
use crate::listener_settings::{HTTP_METADATA_EXCHANGE, ListenerClass, ListenerSettings};
use crate::name::{CONNECT_TERMINATE, MAIN_INTERNAL};
use crate::wire::{any, boolean};

/// Name of the filter that keeps the destination of a tunnel.
pub(super) const CONNECT_AUTHORITY_FILTER: &str = "connect_authority";

/// The listener of a waypoint or sidecar that terminates tunnels, and sends the connections in them to the listener
/// `main_internal` (N23, N25).
#[must_use]
pub fn build_connect_terminate(settings: &ListenerSettings) -> Listener {
    let trust_domains = match settings.security.any_trust_domain {
        true => Vec::new(),
        false => tunnel_trust_domains(&settings.mesh),
    };
    let tls = DownstreamTlsContext {
        common_tls_context: Some(mutual_tls(settings.security.compliance, &trust_domains, None)),
        require_client_certificate: Some(boolean(true)),
        ..DownstreamTlsContext::default()
    };
    let mut filters = Vec::new();
    if settings.profile.has(HTTP_METADATA_EXCHANGE) {
        filters.push(http_filter(
            "waypoint_downstream_peer_metadata",
            waypoint_peer_metadata(true, settings.switches.tunnels.baggage),
        ));
    }
    filters.push(http_filter(CONNECT_AUTHORITY_FILTER, any(&tunnel_state(settings))));
    if settings.is_east_west() {
        filters.push(request_source(settings));
    }
    filters.push(router(settings));
    let manager = build_tunnel_manager(settings, CONNECT_TERMINATE, connect_routes(), filters);
    let addresses = wildcards(settings.profile.families);
    let port = u32::from(HBONE_PORT);
    Listener {
        name: CONNECT_TERMINATE.to_owned(),
        address: addresses.first().map(|first| address(first, port)),
        additional_addresses: additional(addresses.get(1..).unwrap_or_default(), port),
        filter_chains: vec![FilterChain {
            name: "default".to_owned(),
            transport_socket: Some(TransportSocket {
                name: "tls".to_owned(),
                config_type: Some(ConfigType::TypedConfig(any(&tls))),
            }),
            filters: vec![hcm_filter(&manager)],
            ..FilterChain::default()
        }],
        // ztunnel has few connections with many tunnels each, which must not be on one worker thread.
        connection_balance_config: exact_balance(true),
        access_log: listener_access_log(settings, ListenerClass::Inbound),
        ..Listener::default()
    }
}

/// The route of CONNECT requests.
fn connect_routes() -> RouteConfiguration {
    let upgrade = UpgradeConfig {
        upgrade_type: "CONNECT".to_owned(),
        connect_config: Some(ConnectConfig::default()),
        ..UpgradeConfig::default()
    };
    let action = RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(MAIN_INTERNAL.to_owned())),
        upgrade_configs: vec![upgrade],
        ..RouteAction::default()
    };
    let route = Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(PathSpecifier::ConnectMatcher(ConnectMatcher {})),
            ..RouteMatch::default()
        }),
        action: Some(Action::Route(action)),
        ..Route::default()
    };
    RouteConfiguration {
        name: "default".to_owned(),
        virtual_hosts: vec![VirtualHost {
            name: "default".to_owned(),
            domains: vec!["*".to_owned()],
            routes: vec![route],
            ..VirtualHost::default()
        }],
        ..RouteConfiguration::default()
    }
}

/// The facts of a tunnel that the listeners behind it read.
fn tunnel_state(settings: &ListenerSettings) -> HttpFilterState {
    let text = text_factory(settings);
    let values = [
        (ORIGINAL_DESTINATION, "%REQ(:AUTHORITY)%", ""),
        (CONNECT_AUTHORITY, "%REQ(:AUTHORITY)%", text),
        (ORIGINAL_SOURCE, "%DOWNSTREAM_REMOTE_ADDRESS%", ""),
        (PEER_PRINCIPAL, "%DOWNSTREAM_PEER_URI_SAN%", text),
        (LOCAL_PRINCIPAL, "%DOWNSTREAM_LOCAL_URI_SAN%", text),
    ];
    let value = |(key, format, factory)| filter_state(key, format, factory, SharedWithUpstream::Once);
    HttpFilterState { on_request_headers: values.into_iter().map(value).collect(), ..HttpFilterState::default() }
}

/// The filter that keeps which kind of proxy sent the request: a waypoint has applied the policies of the service already.
fn request_source(settings: &ListenerSettings) -> HttpFilter {
    let format = format!("%REQ({ISTIO_SOURCE})%");
    let value = filter_state(REQUEST_SOURCE, &format, text_factory(settings), SharedWithUpstream::Once);
    let state = HttpFilterState { on_request_headers: vec![value], ..HttpFilterState::default() };
    http_filter("request_source", any(&state))
}
