//! Multi-network: gateways replace endpoints of other networks and get their weight (S20, A09).

use std::collections::BTreeMap;
use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::{Address, Metadata};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{Endpoint as EnvoyEndpoint, LbEndpoint};
use sluice_model::label::{is_east_west, is_ingress_gateway};
use sluice_model::{Endpoint, IpFamilies, NetworkGateway, OtherNetworks, Protocol, Proxy, ProxyType, TunnelSwitches};

use super::inputs::AssignmentInputs;
use super::metadata::gateway_metadata;
use crate::address::{address, internal_address, join_port};
use crate::cluster::ORIGINAL_DST;
use crate::name::INNER_CONNECT_ORIGINATE;
use crate::proxy_metadata::sends_no_hbone;
use crate::socket_match::{TRANSPORT_SOCKET_MATCH, by_hbone, selects_mtls};
use crate::wire::{string_value, struct_value, structure, uint32};

/// How a proxy sends to other networks. `sends_hbone`: sidecars and gateways send HBONE (`PILOT_ENABLE_SENDING_HBONE`).
///
/// Gateways that are neither ingress gateways nor waypoints have no listeners for two tunnels, so they send as sidecars.
#[must_use]
pub fn other_networks(proxy: &Proxy, tunnels: TunnelSwitches, sends_hbone: bool) -> OtherNetworks {
    let sends = match proxy.proxy_type {
        _ if !tunnels.multi_network => return OtherNetworks::MutualTls,
        // An east-west gateway leads into its network only.
        ProxyType::Waypoint => !tunnels.local_waypoints && !is_east_west(&proxy.labels),
        ProxyType::Router if is_ingress_gateway(&proxy.labels) => {
            tunnels.ingress && sends_hbone && !sends_no_hbone(proxy)
        }
        ProxyType::Router | ProxyType::Sidecar | ProxyType::Ztunnel | ProxyType::Agentgateway => {
            return OtherNetworks::MutualTls;
        }
    };
    if sends { OtherNetworks::Tunnels } else { OtherNetworks::Unreachable }
}

/// How a client reaches an endpoint.
pub(super) enum EndpointPath<'a> {
    /// At its own address.
    Direct,
    /// Not at all.
    Unreachable,
    /// Through gateways of its network, each with this weight.
    Through(Vec<&'a NetworkGateway>, u32),
}

/// How the client reaches an endpoint. If there are gateways, sets the weight of the endpoint's message: `scale` is that
/// of all gateways.
pub(super) fn reach<'a>(
    inputs: &AssignmentInputs<'a>,
    endpoint: &Endpoint,
    message: &mut LbEndpoint,
    scale: u32,
) -> EndpointPath<'a> {
    let way = match inputs.client.other_networks {
        // Envoy resolves the endpoints of the cluster by DNS, so they cannot be an internal listener.
        OtherNetworks::Tunnels if inputs.by_name => OtherNetworks::Unreachable,
        way => way,
    };
    if inputs.gateways.is_empty() && way == OtherNetworks::MutualTls {
        return EndpointPath::Direct;
    }
    let own = message.load_balancing_weight.as_ref().map_or(0, |weight| weight.value);
    let weight = own.max(1).saturating_mul(scale);
    message.load_balancing_weight = Some(uint32(weight));
    let gateways = leading_to(inputs, endpoint, way);
    let is_used = |gateway: &&NetworkGateway| is_reachable(inputs.client.ip_families, gateway);
    let reachable: Vec<_> = gateways.iter().copied().filter(is_used).collect();
    let is_local = same_network(&inputs.client.network, &endpoint.network);
    // With ambient networks, only gateways lead to another network.
    let gateways_only = inputs.settings.switches.tunnels.multi_network && !is_local;
    if gateways_only && (way == OtherNetworks::Unreachable || reachable.is_empty()) {
        return EndpointPath::Unreachable;
    }
    // A client without a known network also uses the gateway of an endpoint's network.
    let leaves = way != OtherNetworks::Unreachable && inputs.client.network.is_empty();
    let unknown = leaves && !endpoint.network.is_empty() && !gateways.is_empty();
    if !unknown && (is_local || gateways.is_empty()) {
        let addressed = endpoint.addresses.first().is_some_and(|address| !address.is_empty());
        return if addressed { EndpointPath::Direct } else { EndpointPath::Unreachable };
    }
    // Gateways relay connections, and no datagrams.
    if inputs.port.protocol == Protocol::Udp {
        return EndpointPath::Unreachable;
    }
    match u32::try_from(reachable.len()).ok().and_then(|count| weight.checked_div(count)) {
        // Without HBONE, the gateway routes by SNI, so only mutual TLS is supported.
        Some(share) if way == OtherNetworks::Tunnels || takes_mtls(message) => EndpointPath::Through(reachable, share),
        _ => EndpointPath::Unreachable,
    }
}

/// Whether the metadata of an endpoint selects mutual TLS.
pub(super) fn takes_mtls(endpoint: &LbEndpoint) -> bool {
    endpoint.metadata.as_ref().is_some_and(selects_mtls)
}

/// Whether two networks are equal. An unknown network is equal to any.
pub(super) fn same_network(a: &str, b: &str) -> bool {
    a.is_empty() || b.is_empty() || a == b
}

/// Gateways of the endpoint's network in its cluster, otherwise in any cluster.
fn leading_to<'a>(inputs: &AssignmentInputs<'a>, endpoint: &Endpoint, way: OtherNetworks) -> Vec<&'a NetworkGateway> {
    let of_network = inputs.gateways.iter().filter(|gateway| gateway.network == endpoint.network);
    let own: Vec<_> = of_network.clone().filter(|gateway| gateway.cluster == endpoint.cluster).collect();
    let chosen = if own.is_empty() { of_network.collect() } else { own };
    let accepts = |gateway: &&NetworkGateway| match way {
        OtherNetworks::MutualTls => gateway.port != 0,
        OtherNetworks::Tunnels | OtherNetworks::Unreachable => gateway.hbone_port != 0,
    };
    chosen.into_iter().filter(accepts).collect()
}

/// Whether a client with these address families can connect to a gateway; only dual-stack clients get host names.
fn is_reachable(families: IpFamilies, gateway: &NetworkGateway) -> bool {
    let Ok(address) = gateway.address.parse::<IpAddr>() else { return families == IpFamilies::Dual };
    match families {
        IpFamilies::Dual => true,
        IpFamilies::V4 => address.to_canonical().is_ipv4(),
        IpFamilies::V6 => address.to_canonical().is_ipv6(),
    }
}

/// Factor for all weights that makes them divisible by the number of gateways of any network or cluster.
pub(super) fn scale(gateways: &[NetworkGateway]) -> u32 {
    let mut counts: BTreeMap<(&str, Option<&str>), u32> = BTreeMap::new();
    for gateway in gateways {
        *counts.entry((&gateway.network, None)).or_default() += 1;
        *counts.entry((&gateway.network, Some(&gateway.cluster))).or_default() += 1;
    }
    counts.into_values().fold(1, |lcm: u32, count| (lcm / gcd(lcm, count)).saturating_mul(count))
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// The endpoint of a gateway, with the weight of the endpoints that it replaces.
pub(super) fn gateway_endpoint(gateway: &NetworkGateway, weight: u32) -> LbEndpoint {
    let at = address(&gateway.address, gateway.port);
    weighted(at, gateway_metadata(&gateway.cluster, true), weight)
}

/// Where the tunnels to gateways of other networks lead to.
pub(super) struct TunnelTarget {
    /// The host and port of the service.
    pub(super) service: String,
    /// The endpoint selects the transport socket for HBONE, of the several that its cluster has.
    pub(super) selects_socket: bool,
}

/// The endpoint of a gateway that the client reaches by a tunnel, with another one in it to the service.
pub(super) fn tunnel_endpoint(gateway: &NetworkGateway, target: &TunnelTarget, weight: u32) -> LbEndpoint {
    let at = join_port(&gateway.address, gateway.hbone_port);
    let mut metadata = gateway_metadata(&gateway.cluster, false);
    metadata.filter_metadata.insert(ORIGINAL_DST.to_owned(), structure([("local", string_value(&at))]));
    if target.selects_socket {
        metadata.filter_metadata.insert(TRANSPORT_SOCKET_MATCH.to_owned(), by_hbone());
    }
    let istio = metadata.filter_metadata.entry("istio".to_owned()).or_default();
    let service = struct_value([("hbone_target_address", string_value(&target.service))]);
    istio.fields.insert("double_hbone".to_owned(), service);
    weighted(internal_address(INNER_CONNECT_ORIGINATE, &at), metadata, weight)
}

fn weighted(address: Address, metadata: Metadata, weight: u32) -> LbEndpoint {
    LbEndpoint {
        load_balancing_weight: Some(uint32(weight)),
        metadata: Some(metadata),
        host_identifier: Some(HostIdentifier::Endpoint(EnvoyEndpoint {
            address: Some(address),
            ..EnvoyEndpoint::default()
        })),
        ..LbEndpoint::default()
    }
}
