//! Filter chains of AUTO_PASSTHROUGH gateways: one per cluster, whose name is the SNI (N01, N22).

use envoy_types::pb::envoy::config::listener::v3::FilterChain;
use sluice_model::{DestinationRule, Protocol, Resolution, Service, ServicePort, Text};

use super::chain::{Action, Chain};
use super::inbound_chain::MESH_ALL;
use super::tcp_filters::{Destinations, TcpFilterInputs};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name::sni_cluster;
use crate::stat_name::StatNameValues;

/// The chains of a mesh service, one per port and subset.
#[must_use]
pub fn build_auto_passthrough(
    settings: &ListenerSettings,
    service: &Service,
    rule: Option<&DestinationRule>,
) -> Vec<FilterChain> {
    if service.mesh_external || service.resolution == Resolution::Alias {
        return Vec::new();
    }
    let subsets = rule.iter().flat_map(|rule| &rule.subsets).map(|subset| subset.name.as_str());
    let subsets: Vec<&str> = std::iter::once("").chain(subsets).collect();
    let ports = service.ports.iter().filter(|port| port.protocol != Protocol::Udp);
    ports.flat_map(|port| subsets.iter().map(move |subset| chain(settings, service, port, subset, rule))).collect()
}

fn chain(
    settings: &ListenerSettings,
    service: &Service,
    port: &ServicePort,
    subset: &str,
    rule: Option<&DestinationRule>,
) -> FilterChain {
    let host = service.host.as_str();
    let cluster = sni_cluster(u32::from(port.port), subset, host);
    let pattern = &settings.mesh.outbound_cluster_stat_name;
    let stat_prefix = if pattern.is_empty() {
        cluster.clone()
    } else {
        StatNameValues::outbound(service, subset, u32::from(port.port), &port.name).expand(pattern)
    };
    let carrier = TcpFilterInputs {
        class: ListenerClass::Gateway,
        protocol: port.protocol,
        port: port.port,
        port_name: &port.name,
        destinations: &Destinations::new(),
        exchanges_metadata: false,
        tunnels: false,
        // The destination proxy authorizes the connection. The gateway does not see an identity.
        policies: None,
        before_proxy: &[],
    };
    let matching = Chain {
        server_names: vec![Text::from(cluster.as_str())],
        // Connections with other ALPN names are not mesh mTLS and would fail behind the gateway.
        application_protocols: MESH_ALL.to_vec(),
        ..Chain::new(Action::Network(Vec::new()))
    };
    FilterChain {
        filter_chain_match: matching.to_match(),
        filters: carrier.to_cluster(settings, stat_prefix, cluster, subset, rule),
        transport_socket_connect_timeout: settings.switches.gateway_handshake_timeout(),
        ..FilterChain::default()
    }
}
