//! Listeners of east-west gateways: they end the outer of two HBONE tunnels from another network, and forward the inner one
//! without ending it (A09).

use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener};
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::OnMatch;
use sluice_model::{Host, Protocol, Service};

use super::connect_originate::{internal_listener, logged};
use super::inspector::original_dst;
use super::protocol_detection::PortProtocol;
use super::service_address::vip_addresses;
use super::tcp_filters::Destinations;
use super::virtual_outbound::to_cluster;
use super::waypoint_chains::{WaypointChains, WaypointPort, chain, stat_prefix, tcp_inputs};
use super::waypoint_matcher::{by_request_source, host_names, service_ranges, to_chain};
use crate::filter::{connection_failure_logs, tcp_proxy_filter};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name::{BLACK_HOLE, FORWARD_INNER_CONNECT, inbound_vip_cluster};
use crate::security::PolicySteps;

/// Name of the chain of a gateway without services.
const BLACK_HOLE_CHAIN: &str = "virtualInbound-blackhole";

/// The waypoint of a service behind an east-west gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WaypointHop {
    /// Host of the waypoint's own service.
    pub host: Host,
    /// Its port for HBONE.
    pub port: u32,
    /// Requests of gateways pass it too (`istio.io/ingress-use-waypoint`).
    pub for_ingress: bool,
}

/// The listener that forwards the inner tunnel to the proxy that ends it.
#[must_use]
pub fn build_forward_inner_connect(settings: &ListenerSettings) -> Listener {
    let class = ListenerClass::Inbound;
    let proxy = TcpProxy { access_log: connection_failure_logs(settings, class), ..to_cluster(FORWARD_INNER_CONNECT) };
    let listener = internal_listener(FORWARD_INNER_CONNECT, vec![original_dst()], vec![tcp_proxy_filter(&proxy)]);
    logged(settings, class, listener)
}

/// The chain of a gateway without services: Envoy rejects a listener without chains.
pub(super) fn black_hole_chain() -> FilterChain {
    chain(BLACK_HOLE_CHAIN, vec![tcp_proxy_filter(&to_cluster(BLACK_HOLE))])
}

/// The chains of a service, one for each port: connections are opaque. `waypoint` is that of the service.
#[must_use]
pub fn build_east_west_chains(
    settings: &ListenerSettings,
    service: &Service,
    more_addresses: &[sluice_model::Text],
    waypoint: Option<&WaypointHop>,
) -> WaypointChains {
    let (destinations, policies) = (Destinations::default(), PolicySteps::default());
    let addresses = vip_addresses(settings, service, more_addresses);
    let mut built = WaypointChains::default();
    let (mut ports, mut hosts) = (Vec::new(), Vec::new());
    let served = service.ports.iter().filter(|port| port.protocol != Protocol::Udp && !service.is_dynamic_dns());
    for port in served {
        let number = u32::from(port.port);
        let name = inbound_vip_cluster(number, "tcp", service.host.as_str());
        let inputs = tcp_inputs((port.protocol, port.port, &port.name), &destinations, &policies, &[]);
        let prefix = stat_prefix(settings, &name, Some((service, port)));
        built.chains.push(chain(&name, inputs.to_cluster(settings, prefix, name.clone(), "", None)));
        let used = WaypointPort { protocol: PortProtocol::Tcp, tls: port.protocol.is_tls(), accepted: true };
        built.ports.push((port.port, used));
        let selected = || selects(&name, waypoint);
        ports.push((port.port, selected()));
        if !addresses.is_empty() {
            hosts.push((format!("{}:{number}", service.host), selected()));
        }
    }
    built.matcher = service_ranges(&addresses, ports);
    built.host_names = host_names(hosts);
    built
}

/// To the service, or to its waypoint unless a proxy of the client's network has done what the waypoint does.
fn selects(service: &str, waypoint: Option<&WaypointHop>) -> OnMatch {
    let Some(waypoint) = waypoint else { return to_chain(service) };
    let through = inbound_vip_cluster(waypoint.port, "tcp", waypoint.host.as_str());
    let of_gateways = if waypoint.for_ingress { &through } else { service };
    by_request_source([("waypoint", service), ("gateway", of_gateways)], &through)
}
