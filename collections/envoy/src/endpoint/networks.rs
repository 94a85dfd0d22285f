//! Multi-network: gateways replace endpoints of other networks and get their weight (S20).

use std::collections::BTreeMap;
use std::net::IpAddr;

use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{Endpoint as EnvoyEndpoint, LbEndpoint};
use sluice_model::{Endpoint, IpFamilies, NetworkGateway};

use super::inputs::AssignmentInputs;
use super::metadata::gateway_metadata;
use crate::address::address;
use crate::socket_match::selects_mtls;
use crate::wire::uint32;

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
    if inputs.gateways.is_empty() {
        return EndpointPath::Direct;
    }
    let own = message.load_balancing_weight.as_ref().map_or(0, |weight| weight.value);
    let weight = own.max(1).saturating_mul(scale);
    message.load_balancing_weight = Some(uint32(weight));
    let gateways = leading_to(inputs, endpoint);
    // A client without a known network also uses the gateway of an endpoint's network.
    let unknown = inputs.client.network.is_empty() && !endpoint.network.is_empty() && !gateways.is_empty();
    if !unknown && (same_network(&inputs.client.network, &endpoint.network) || gateways.is_empty()) {
        let addressed = endpoint.addresses.first().is_some_and(|address| !address.is_empty());
        return if addressed { EndpointPath::Direct } else { EndpointPath::Unreachable };
    }
    let reachable: Vec<_> =
        gateways.into_iter().filter(|gateway| is_reachable(inputs.client.ip_families, gateway)).collect();
    match u32::try_from(reachable.len()).ok().and_then(|count| weight.checked_div(count)) {
        // The gateway routes by SNI, so only mutual TLS is supported.
        Some(share) if takes_mtls(message) => EndpointPath::Through(reachable, share),
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
fn leading_to<'a>(inputs: &AssignmentInputs<'a>, endpoint: &Endpoint) -> Vec<&'a NetworkGateway> {
    let of_network = inputs.gateways.iter().filter(|gateway| gateway.network == endpoint.network);
    let own: Vec<_> = of_network.clone().filter(|gateway| gateway.cluster == endpoint.cluster).collect();
    let chosen = if own.is_empty() { of_network.collect() } else { own };
    // A gateway without a port for mutual TLS accepts only HBONE.
    chosen.into_iter().filter(|gateway| gateway.port != 0).collect()
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
    LbEndpoint {
        load_balancing_weight: Some(uint32(weight)),
        metadata: Some(gateway_metadata(&gateway.cluster)),
        host_identifier: Some(HostIdentifier::Endpoint(EnvoyEndpoint {
            address: Some(address(&gateway.address, gateway.port)),
            ..EnvoyEndpoint::default()
        })),
        ..LbEndpoint::default()
    }
}
