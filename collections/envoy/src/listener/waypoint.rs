//! The listener of waypoints that dispatches connections (N23).
//!
//! The chains of a service are built apart from the listener, so that a change of one service costs only its own
//! chains.

use std::collections::BTreeMap;
use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::listener::{InternalListenerConfig, ListenerSpecifier};
use envoy_types::pb::envoy::config::listener::v3::{Listener, ListenerFilter};

use super::east_west::black_hole_chain;
use super::inspector::{any_of, http_inspector, original_dst, tls_inspector};
use super::protocol_detection::PortProtocol;
use super::waypoint_chains::{WaypointPort, direct_chains};
use super::waypoint_matcher::{dispatch_by_address, dispatch_by_host, workload_ranges};
use crate::filter::listener_access_log;
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name::MAIN_INTERNAL;
use crate::security::PolicyFilters;

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
    /// The encoded matches of the host names of all services, concatenated.
    pub host_names: &'a [u8],
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
        filter_chains: match settings.is_east_west() {
            true if inputs.ports.is_empty() => vec![black_hole_chain()],
            // It leads to no workloads.
            true => Vec::new(),
            false => direct_chains(settings, inputs.policies),
        },
        filter_chain_matcher: Some(dispatch_by_host(inputs.host_names, dispatch_by_address(matchers))),
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
