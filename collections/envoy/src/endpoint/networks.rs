//! Multi-network: gateways replace endpoints of other networks and get their weight (S20).

use std::collections::BTreeMap;
use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::{Address, Metadata};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{Endpoint as EnvoyEndpoint, LbEndpoint};
use sluice_model::{Endpoint, IpFamilies, NetworkGateway};

use super::inputs::AssignmentInputs;
use super::metadata::gateway_metadata;
use crate::address::{address, internal_address, join_port};
use crate::cluster::ORIGINAL_DST;
use crate::name::INNER_CONNECT_ORIGINATE;
use crate::socket_match::selects_mtls;
use crate::wire::{string_value, struct_value, structure, uint32};

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
    let tunnels = inputs.settings.switches.tunnels;
    let by_hbone = inputs.client.waypoint && tunnels.multi_network;
    if inputs.gateways.is_empty() && !by_hbone {
        return EndpointPath::Direct;
    }
    let own = message.load_balancing_weight.as_ref().map_or(0, |weight| weight.value);
    let weight = own.max(1).saturating_mul(scale);
    message.load_balancing_weight = Some(uint32(weight));
    let gateways = leading_to(inputs, endpoint, by_hbone);
    let is_local = same_network(&inputs.client.network, &endpoint.network);
    // An east-west gateway leads into its network only.
    if by_hbone && !is_local && (tunnels.local_waypoints || inputs.client.east_west || gateways.is_empty()) {
        return EndpointPath::Unreachable;
    }
    // A client without a known network also uses the gateway of an endpoint's network.
    let unknown = inputs.client.network.is_empty() && !endpoint.network.is_empty() && !gateways.is_empty();
    if !unknown && (is_local || gateways.is_empty()) {
        let addressed = endpoint.addresses.first().is_some_and(|address| !address.is_empty());
        return if addressed { EndpointPath::Direct } else { EndpointPath::Unreachable };
    }
    let reachable: Vec<_> =
        gateways.into_iter().filter(|gateway| is_reachable(inputs.client.ip_families, gateway)).collect();
    match u32::try_from(reachable.len()).ok().and_then(|count| weight.checked_div(count)) {
        // Without HBONE, the gateway routes by SNI, so only mutual TLS is supported.
        Some(share) if by_hbone || takes_mtls(message) => EndpointPath::Through(reachable, share),
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
fn leading_to<'a>(inputs: &AssignmentInputs<'a>, endpoint: &Endpoint, by_hbone: bool) -> Vec<&'a NetworkGateway> {
    let of_network = inputs.gateways.iter().filter(|gateway| gateway.network == endpoint.network);
    let own: Vec<_> = of_network.clone().filter(|gateway| gateway.cluster == endpoint.cluster).collect();
    let chosen = if own.is_empty() { of_network.collect() } else { own };
    // A gateway without a port for mutual TLS accepts only HBONE.
    chosen.into_iter().filter(|gateway| if by_hbone { gateway.hbone_port != 0 } else { gateway.port != 0 }).collect()
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

/// The endpoint of a gateway that a waypoint reaches by a tunnel, with another one in it to `target`, the host and port of the
/// service.
pub(super) fn tunnel_endpoint(gateway: &NetworkGateway, target: &str, weight: u32) -> LbEndpoint {
    let at = join_port(&gateway.address, gateway.hbone_port);
    let mut metadata = gateway_metadata(&gateway.cluster, false);
    metadata.filter_metadata.insert(ORIGINAL_DST.to_owned(), structure([("local", string_value(&at))]));
    let istio = metadata.filter_metadata.entry("istio".to_owned()).or_default();
    let target = struct_value([("hbone_target_address", string_value(target))]);
    istio.fields.insert("double_hbone".to_owned(), target);
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
