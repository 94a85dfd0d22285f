//! An endpoint of an assignment.

use envoy_types::pb::envoy::config::core::v3::{HealthStatus, Metadata};
use envoy_types::pb::envoy::config::endpoint::v3::endpoint::AdditionalAddress;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{Endpoint as EnvoyEndpoint, LbEndpoint};
use envoy_types::pb::google::protobuf::Struct;
use sluice_model::{Endpoint, Health, Protocol, TlsMode};

use super::client::EndpointClient;
use super::inputs::AssignmentInputs;
use super::{metadata, networks};
use crate::address::{address, internal_address, join_port};
use crate::cluster::ORIGINAL_DST;
use crate::name::{CONNECT_ORIGINATE, FORWARD_INNER_CONNECT};
use crate::socket_match::{TRANSPORT_SOCKET_MATCH, by_hbone};
use crate::wire::{string_value, structure, uint32};

/// Whether the client uses an endpoint. `unhealthy`: also one that is not ready.
pub(super) fn is_usable(inputs: &AssignmentInputs<'_>, endpoint: &Endpoint, unhealthy: bool) -> bool {
    let (service, client) = (inputs.service, inputs.client);
    let first = endpoint.addresses.first().map_or("", |address| address.as_str());
    // EDS does not support host names. An address may be missing if a gateway replaces it, or be a Unix domain socket.
    if !inputs.by_name && !first.is_empty() && endpoint.port != 0 && first.parse::<std::net::IpAddr>().is_err() {
        return false;
    }
    if first.is_empty() && (inputs.gateways.is_empty() || networks::same_network(&client.network, &endpoint.network)) {
        return false;
    }
    // Only services with cluster-local or node-local traffic depend on the cluster or node of the client.
    let elsewhere = endpoint.cluster != client.cluster;
    if service.node_local && (endpoint.node != client.node || (elsewhere && !inputs.by_name)) {
        return false;
    }
    if (service.cluster_local || endpoint.cluster_local) && elsewhere {
        return false;
    }
    if !visible(client, endpoint) {
        return false;
    }
    match health(inputs, endpoint) {
        Health::Unknown | Health::Healthy => true,
        Health::Unhealthy => unhealthy,
        Health::Terminating => false,
        Health::Draining => inputs.settings.sessions.by_cookie(&service.labels),
    }
}

/// Whether the network of an endpoint is visible to the client.
fn visible(client: &EndpointClient, endpoint: &Endpoint) -> bool {
    client.network_view.is_empty() || endpoint.network.is_empty() || client.network_view.contains(&endpoint.network)
}

fn health(inputs: &AssignmentInputs<'_>, endpoint: &Endpoint) -> Health {
    let drained = inputs.settings.sessions.is_draining(&endpoint.labels);
    if drained && endpoint.health != Health::Terminating { Health::Draining } else { endpoint.health }
}

/// The message of an endpoint.
pub(super) fn lb_endpoint(inputs: &AssignmentInputs<'_>, endpoint: &Endpoint, mtls: bool) -> LbEndpoint {
    let status = health_status(inputs, endpoint);
    let settings = inputs.settings;
    let waypoint = inputs.client.waypoint;
    if (settings.sends_hbone || waypoint)
        && endpoint.hbone
        && inputs.port.protocol != Protocol::Udp
        && !inputs.client.no_hbone
        // Mutual TLS has precedence if the endpoint accepts both, except at a waypoint.
        && (waypoint || endpoint.tls_mode != TlsMode::Istio || settings.prefers_hbone)
    {
        let first = endpoint.addresses.first().map_or("", |address| address.as_str());
        let local = join_port(first, endpoint.port);
        let metadata = metadata::metadata(endpoint, mtls && waypoint);
        let matched = if waypoint { None } else { Some(by_hbone()) };
        // The east-west gateway forwards the tunnel that the client has put into its own.
        let listener = if inputs.client.east_west { FORWARD_INNER_CONNECT } else { CONNECT_ORIGINATE };
        let tunnel = Tunnel { listener, local: &local, waypoint: None };
        return over_hbone(endpoint, status, &tunnel, metadata, matched);
    }
    let mut addresses = endpoint.addresses.iter();
    let first = addresses.next().map_or("", |address| address.as_str());
    let others = if inputs.settings.dual_stack { addresses.as_slice() } else { &[] };
    LbEndpoint {
        health_status: status as i32,
        load_balancing_weight: Some(uint32(endpoint.weight.max(1))),
        metadata: Some(metadata::metadata(endpoint, mtls)),
        host_identifier: Some(HostIdentifier::Endpoint(EnvoyEndpoint {
            address: Some(address(first, endpoint.port)),
            additional_addresses: others
                .iter()
                .map(|other| AdditionalAddress { address: Some(address(other, endpoint.port)) })
                .collect(),
            ..EnvoyEndpoint::default()
        })),
    }
}

fn health_status(inputs: &AssignmentInputs<'_>, endpoint: &Endpoint) -> HealthStatus {
    match health(inputs, endpoint) {
        Health::Unknown => HealthStatus::Unknown,
        Health::Healthy => HealthStatus::Healthy,
        Health::Unhealthy => HealthStatus::Unhealthy,
        Health::Draining | Health::Terminating => HealthStatus::Draining,
    }
}

/// Where a connection over HBONE leads to.
struct Tunnel<'a> {
    /// The internal listener that the connection goes through.
    listener: &'a str,
    /// The address and port that the connection in the tunnel is for.
    local: &'a str,
    /// The address and port of the waypoint that ends the tunnel, if it is not `local` itself.
    waypoint: Option<&'a str>,
}

/// An instance of a waypoint, which ends the tunnel of connections to a service at `local`.
pub(super) fn through_waypoint(inputs: &AssignmentInputs<'_>, endpoint: &Endpoint, local: &str) -> LbEndpoint {
    let first = endpoint.addresses.first().map_or("", |address| address.as_str());
    let waypoint = join_port(first, endpoint.port);
    let tunnel = Tunnel { listener: CONNECT_ORIGINATE, local, waypoint: Some(&waypoint) };
    let metadata = metadata::metadata(endpoint, false);
    over_hbone(endpoint, health_status(inputs, endpoint), &tunnel, metadata, Some(by_hbone()))
}

/// An endpoint behind the internal listener for HBONE. The transport socket is selected by `matched`, if the cluster
/// has several.
fn over_hbone(
    endpoint: &Endpoint,
    status: HealthStatus,
    tunnel: &Tunnel<'_>,
    mut metadata: Metadata,
    matched: Option<Struct>,
) -> LbEndpoint {
    let waypoint = tunnel.waypoint.map(|waypoint| ("waypoint", string_value(waypoint)));
    let original_dst = structure([("local", string_value(tunnel.local))].into_iter().chain(waypoint));
    metadata.filter_metadata.insert(ORIGINAL_DST.to_owned(), original_dst);
    let target = tunnel.waypoint.unwrap_or(tunnel.local);
    if let Some(matched) = matched {
        metadata.filter_metadata.insert(TRANSPORT_SOCKET_MATCH.to_owned(), matched);
    }
    LbEndpoint {
        health_status: status as i32,
        load_balancing_weight: Some(uint32(endpoint.weight.max(1))),
        metadata: Some(metadata),
        host_identifier: Some(HostIdentifier::Endpoint(EnvoyEndpoint {
            address: Some(internal_address(tunnel.listener, target)),
            ..EnvoyEndpoint::default()
        })),
    }
}
