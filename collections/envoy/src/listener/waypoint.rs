//! Listeners of waypoints: the one that terminates tunnels, and the one that dispatches connections (N23).
//!
//! The chains of a service are built apart from the listener, so that a change of one service costs only its own
//! chains.

use std::collections::BTreeMap;
use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::listener::v3::listener::{InternalListenerConfig, ListenerSpecifier};
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener, ListenerFilter};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::upgrade_config::ConnectConfig;
use envoy_types::pb::envoy::config::route::v3::route_action::{ClusterSpecifier, UpgradeConfig};
use envoy_types::pb::envoy::config::route::v3::route_match::{ConnectMatcher, PathSpecifier};
use envoy_types::pb::envoy::config::route::v3::{Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost};
use envoy_types::pb::envoy::extensions::filters::common::set_filter_state::v3::filter_state_value::SharedWithUpstream;
use envoy_types::pb::envoy::extensions::filters::http::set_filter_state::v3::Config as HttpFilterState;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::DownstreamTlsContext;
use sluice_model::HBONE_PORT;

use super::address::{additional, wildcards};
use super::inspector::{any_of, http_inspector, original_dst, tls_inspector};
use super::outbound::exact_balance;
use super::protocol_detection::PortProtocol;
use super::waypoint_chains::{CONNECT_AUTHORITY_FILTER, WaypointPort, direct_chains};
use super::waypoint_matcher::{dispatch_by_address, workload_ranges};
use crate::address::address;
use crate::cluster::{HboneSettings, mutual_tls};
use crate::filter::{build_tunnel_manager, hcm_filter, listener_access_log, router, waypoint_peer_metadata};
use crate::filter_config::http_filter;
use crate::filter_state::{
    CONNECT_AUTHORITY, LOCAL_PRINCIPAL, ORIGINAL_DESTINATION, ORIGINAL_SOURCE, PEER_PRINCIPAL, filter_state,
    text_factory,
};
use crate::listener_settings::{HTTP_METADATA_EXCHANGE, ListenerClass, ListenerSettings};
use crate::name::{CONNECT_TERMINATE, MAIN_INTERNAL};
use crate::security::PolicyFilters;
use crate::wire::{any, boolean};

/// The listener of a waypoint or sidecar that terminates tunnels, and sends the connections in them to the listener
/// `main_internal` (N23, N25).
#[must_use]
pub fn build_connect_terminate(settings: &ListenerSettings) -> Listener {
    let trust_domains = match settings.security.any_trust_domain {
        true => Vec::new(),
        false => HboneSettings::new(&settings.mesh).trust_domains,
    };
    let tls = DownstreamTlsContext {
        common_tls_context: Some(mutual_tls(settings.security.compliance, &trust_domains, None)),
        require_client_certificate: Some(boolean(true)),
        ..DownstreamTlsContext::default()
    };
    let mut filters = Vec::new();
    if settings.profile.has(HTTP_METADATA_EXCHANGE) {
        filters.push(http_filter("waypoint_downstream_peer_metadata", waypoint_peer_metadata(true)));
    }
    filters.extend([http_filter(CONNECT_AUTHORITY_FILTER, any(&tunnel_state(settings))), router(settings)]);
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

/// Inputs of the listener `main_internal`, without the chains of services.
#[derive(Clone, Copy, Debug)]
pub struct DispatchInputs<'a> {
    /// Settings of mesh and proxy.
    pub settings: &'a ListenerSettings,
    /// Policies of the waypoint itself.
    pub policies: &'a PolicyFilters,
    /// The matchers of the services' addresses, each in the form of [`WaypointChains::matcher`], in order.
    ///
    /// [`WaypointChains::matcher`]: super::WaypointChains::matcher
    pub matchers: &'a [u8],
    /// The ports of all services, in the order of the services.
    pub ports: &'a [(u16, WaypointPort)],
    /// Addresses of the workloads behind the waypoint, in order.
    pub workloads: &'a [IpAddr],
    /// Whether there are workloads, even without an address.
    pub has_workloads: bool,
}

/// The listener that dispatches connections by destination, without the chains of services.
#[must_use]
pub fn build_main_internal(inputs: &DispatchInputs<'_>) -> Listener {
    let settings = inputs.settings;
    let mut matchers = inputs.matchers.to_vec();
    matchers.extend(workload_ranges(settings, inputs.workloads));
    Listener {
        name: MAIN_INTERNAL.to_owned(),
        listener_specifier: Some(ListenerSpecifier::InternalListener(InternalListenerConfig {})),
        listener_filters: inspectors(inputs.ports, inputs.has_workloads),
        traffic_direction: TrafficDirection::Inbound as i32,
        filter_chains: direct_chains(settings, inputs.policies),
        filter_chain_matcher: Some(dispatch_by_address(matchers)),
        access_log: listener_access_log(settings, ListenerClass::Inbound),
        ..Listener::default()
    }
}

/// The listener filters. A port whose protocol is declared needs no detection, which would delay protocols in which the
/// server speaks first; workloads may have any port.
fn inspectors(ports: &[(u16, WaypointPort)], has_workloads: bool) -> Vec<ListenerFilter> {
    let mut protocols: BTreeMap<u32, PortProtocol> = BTreeMap::new();
    let mut tls: BTreeMap<u32, bool> = BTreeMap::new();
    for (port, used) in ports {
        let port = u32::from(*port);
        *tls.entry(port).or_default() |= used.tls;
        if used.accepted {
            let known = protocols.entry(port).or_insert(used.protocol);
            if *known != used.protocol {
                *known = PortProtocol::Auto;
            }
        }
    }
    let declared = protocols.iter().filter(|(_, protocol)| **protocol != PortProtocol::Auto);
    let declared: Vec<u32> = declared.map(|(port, _)| *port).filter(|_| !has_workloads).collect();
    let without = |ports: &[u32]| (!ports.is_empty()).then(|| any_of(ports));
    let mut filters = vec![original_dst(), ListenerFilter { filter_disabled: without(&declared), ..http_inspector() }];
    if tls.values().any(|tls| *tls) {
        let others: Vec<u32> = tls.iter().filter(|(_, tls)| !**tls).map(|(port, _)| *port).collect();
        filters.push(ListenerFilter { filter_disabled: without(&others), ..tls_inspector() });
    }
    filters
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::listener::v3::listener_filter_chain_match_predicate::Rule;

    use super::*;

    fn port(protocol: PortProtocol, tls: bool) -> WaypointPort {
        WaypointPort { protocol, tls, accepted: true }
    }

    /// The name of each filter, and the number of ports that it is disabled for.
    fn filters(ports: &[(u16, WaypointPort)], has_workloads: bool) -> Vec<(String, usize)> {
        let disabled = |filter: &ListenerFilter| match filter.filter_disabled.as_ref().and_then(|p| p.rule.as_ref()) {
            None => 0,
            Some(Rule::OrMatch(set)) => set.rules.len(),
            Some(_) => 1,
        };
        let name = |filter: &ListenerFilter| filter.name.replace("envoy.filters.listener.", "");
        inspectors(ports, has_workloads).iter().map(|filter| (name(filter), disabled(filter))).collect()
    }

    #[test]
    fn only_ports_with_an_unknown_protocol_are_inspected() {
        let http = port(PortProtocol::Http, false);
        let tcp = port(PortProtocol::Tcp, false);
        let found = |ports: &[(u16, WaypointPort)], workloads| {
            filters(ports, workloads).into_iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>()
        };
        assert_eq!(found(&[(80, http), (70, tcp)], false), ["original_dst 0", "http_inspector 2"]);
        assert_eq!(found(&[(80, http), (80, tcp)], false), ["original_dst 0", "http_inspector 0"]);
        assert_eq!(found(&[(80, http)], true), ["original_dst 0", "http_inspector 0"]);
        let tls = port(PortProtocol::Tcp, true);
        let all = found(&[(443, tls), (80, http), (81, http)], false);
        assert_eq!(all, ["original_dst 0", "http_inspector 3", "tls_inspector 2"]);
    }
}
