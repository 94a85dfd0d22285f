//! Resources of ztunnel, the node proxy of ambient mode: workloads, services and policies (A02 to A04).

mod authorization;
mod peer_authentication;
mod ports;
mod service;
mod split_horizon;
mod workload;

use std::net::IpAddr;

use bytes::Bytes;
use sluice_model::{DEFAULT_TRUST_DOMAIN, HboneAddress, HboneDestination};
use sluice_proto::istio::workload::address::Type;
use sluice_proto::istio::workload::{
    Address, GatewayAddress, NamespacedHostname, NetworkAddress, TunnelProtocol, Workload, gateway_address::Destination,
};

pub use authorization::{PolicyAcceptance, build_authorization, build_waypoint_authorization, policy_acceptance};
pub use peer_authentication::{
    InheritedModes, STRICT_POLICY, build_peer_authorization, build_strict_authorization, peer_policy_name,
};
pub use ports::{PortPair, entry_ports, pod_ports, slice_ports};
pub use service::build_service;
pub use split_horizon::{SplitHorizonInputs, build_split_horizon_workload};
pub use workload::{WorkloadDetails, WorkloadInputs, build_workload};

/// The address of a workload: encoded as type `Address`, and the part of it that is the type `Workload`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WorkloadAddress {
    /// The encoded `Address`.
    pub address: Bytes,
    /// The encoded `Workload`, which is part of the `Address`.
    pub workload: Bytes,
    /// Its waypoint, and the addresses that the waypoint serves.
    pub waypoint: Option<(HboneDestination, Vec<IpAddr>)>,
    /// A sidecar accepts its connections: with mutual TLS, and not with HBONE.
    pub has_sidecar: bool,
}

/// The encoded `Address` of a workload that clients reach with the mutual TLS of sidecars. ztunnel does not use it; agentgateway
/// does. `None` if the bytes are not those of a `Workload`.
#[must_use]
pub fn with_sidecar_mtls(workload: &[u8]) -> Option<Bytes> {
    let mut workload: Workload = prost::Message::decode(workload).ok()?;
    workload.tunnel_protocol = TunnelProtocol::LegacyIstioMtls.into();
    Some(workload_address(workload, None).address)
}

fn workload_address(workload: Workload, waypoint: Option<(HboneDestination, Vec<IpAddr>)>) -> WorkloadAddress {
    let size = prost::Message::encoded_len(&workload);
    let address = crate::wire::encode(&Address { r#type: Some(Type::Workload(workload)) });
    // The message is the only field, so it is at the end.
    let workload = address.slice(address.len().saturating_sub(size)..);
    WorkloadAddress { address, workload, waypoint, has_sidecar: false }
}

/// The bytes of an IP address, four or sixteen.
fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The network address of a host.
/// The trust domain as workloads state it: the default is omitted.
fn stated_trust_domain(trust_domain: &str) -> &str {
    if trust_domain == DEFAULT_TRUST_DOMAIN { "" } else { trust_domain }
}

fn gateway(gateway: &HboneAddress) -> GatewayAddress {
    let destination = match &gateway.destination {
        HboneDestination::Service(key) => Destination::Hostname(NamespacedHostname {
            namespace: key.namespace.to_string(),
            hostname: key.host.to_string(),
        }),
        HboneDestination::Address { network, address } => Destination::Address(NetworkAddress {
            network: network.to_string(),
            address: octets(*address),
            length: None,
        }),
    };
    GatewayAddress { destination: Some(destination), hbone_mtls_port: gateway.port }
}

#[cfg(test)]
mod tests;
