//! Services (A03).

use bytes::Bytes;
use ipnet::IpNet;
use sluice_model::{
    AmbientLoadBalancing, AmbientPort, AmbientService, IpFamilies, Protocol, Text, TrafficDistribution,
};
use sluice_proto::istio::workload::address::Type;
use sluice_proto::istio::workload::load_balancing::{HealthPolicy, Mode, Scope};
use sluice_proto::istio::workload::service::Visibility;
use sluice_proto::istio::workload::{
    Address, AppProtocol, IpFamilies as Families, LoadBalancing, NetworkAddress, Port, Service, WeightedWaypoint,
};

use super::{gateway, octets};

/// The encoded `Address` of a service.
#[must_use]
pub fn build_service(service: &AmbientService) -> Bytes {
    let weighted = service.waypoints.weighted.iter();
    let message = Service {
        name: service.object.name.to_string(),
        namespace: service.object.namespace.to_string(),
        hostname: service.host.to_string(),
        addresses: addresses(service),
        ports: service.ports.iter().map(port).collect(),
        subject_alt_names: service.subject_alt_names.iter().map(ToString::to_string).collect(),
        waypoint: service.waypoints.address.as_ref().map(gateway),
        load_balancing: balancing(service),
        ip_families: families(service.ip_families).into(),
        extensions: Vec::new(),
        canonical: service.canonical,
        ingress_use_waypoint: service.waypoints.for_ingress,
        weighted_waypoints: weighted
            .map(|(address, weight)| WeightedWaypoint { destination: Some(gateway(address)), weight: *weight })
            .collect(),
        visibility: if service.private { Visibility::Namespace } else { Visibility::Public }.into(),
    };
    crate::wire::encode(&Address { r#type: Some(Type::Service(message)) })
}

/// Its addresses in declared order; those of several clusters are sorted by network.
fn addresses(service: &AmbientService) -> Vec<NetworkAddress> {
    let own = service.addresses.iter().map(|block| (&service.network, block));
    let mut all: Vec<(&Text, &IpNet)> =
        own.chain(service.other_addresses.iter().map(|(at, block)| (at, block))).collect();
    if !service.other_addresses.is_empty() {
        all.sort_by_key(|(network, block)| format!("{network}/{block}"));
    }
    all.into_iter().map(|(network, block)| network_address(network, block)).collect()
}

fn network_address(network: &Text, block: &IpNet) -> NetworkAddress {
    let single = block.prefix_len() == block.max_prefix_len();
    NetworkAddress {
        network: network.to_string(),
        address: octets(block.addr()),
        length: (!single).then(|| u32::from(block.prefix_len())),
    }
}

pub(super) fn port(port: &AmbientPort) -> Port {
    let protocol = match port.protocol {
        Protocol::Http => AppProtocol::Http11,
        Protocol::Http2 => AppProtocol::Http2,
        Protocol::Grpc => AppProtocol::Grpc,
        Protocol::Tls | Protocol::Https => AppProtocol::Tls,
        Protocol::Tcp => AppProtocol::Tcp,
        _ => AppProtocol::Unknown,
    };
    Port { service_port: port.port, target_port: port.target, app_protocol: protocol.into() }
}

fn families(declared: Option<IpFamilies>) -> Families {
    match declared {
        None => Families::Automatic,
        Some(IpFamilies::V4) => Families::Ipv4Only,
        Some(IpFamilies::V6) => Families::Ipv6Only,
        Some(IpFamilies::Dual) => Families::Dual,
    }
}

/// Load balancing of endpoints; `None` for any endpoint.
fn balancing(service: &AmbientService) -> Option<LoadBalancing> {
    const ZONE: &[Scope] = &[Scope::Network, Scope::Region, Scope::Zone];
    const NODE: &[Scope] = &[Scope::Network, Scope::Region, Scope::Zone, Scope::Subzone, Scope::Node];
    let (mode, near): (Mode, &[Scope]) = match service.balancing {
        AmbientLoadBalancing::Any | AmbientLoadBalancing::Prefer(TrafficDistribution::Any) => {
            (Mode::UnspecifiedMode, &[])
        }
        AmbientLoadBalancing::Prefer(TrafficDistribution::PreferSameZone) => (Mode::Failover, ZONE),
        AmbientLoadBalancing::Prefer(TrafficDistribution::PreferSameNode) => (Mode::Failover, NODE),
        AmbientLoadBalancing::SameNode => (Mode::Strict, &[Scope::Node]),
        AmbientLoadBalancing::Passthrough => (Mode::Passthrough, &[]),
    };
    let all = service.publish_not_ready || mode == Mode::Passthrough;
    let health = if all { HealthPolicy::AllowAll } else { HealthPolicy::OnlyHealthy };
    (mode != Mode::UnspecifiedMode || all).then(|| LoadBalancing {
        routing_preference: near.iter().map(|scope| (*scope).into()).collect(),
        mode: mode.into(),
        health_policy: health.into(),
    })
}
