//! Wildcard and loopback addresses of listeners, and those of UDP.

use envoy_types::pb::envoy::config::core::v3::UdpSocketConfig;
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::socket_address::Protocol as SocketProtocol;
use envoy_types::pb::envoy::config::listener::v3::{AdditionalAddress, Listener, UdpListenerConfig};
use sluice_model::{IpFamilies, Text};

use crate::address::address;

/// Wildcard addresses, the primary family first.
#[must_use]
pub fn wildcards(families: IpFamilies) -> Vec<Text> {
    by_family(families, "0.0.0.0", "::")
}

/// Loopback addresses, the primary family first.
#[must_use]
pub fn localhosts(families: IpFamilies) -> Vec<Text> {
    by_family(families, "127.0.0.1", "::1")
}

fn by_family(families: IpFamilies, v4: &str, v6: &str) -> Vec<Text> {
    match families {
        IpFamilies::V4 => vec![v4.into()],
        IpFamilies::V6 => vec![v6.into()],
        IpFamilies::Dual => vec![v4.into(), v6.into()],
    }
}

/// Sets the options of UDP, and UDP as the transport of all addresses.
pub(super) fn bind_over_udp(listener: &mut Listener, config: UdpListenerConfig) {
    listener.udp_listener_config =
        Some(UdpListenerConfig { downstream_socket_config: Some(UdpSocketConfig::default()), ..config });
    let more = listener.additional_addresses.iter_mut().filter_map(|more| more.address.as_mut());
    for address in listener.address.iter_mut().chain(more) {
        if let Some(AddressKind::SocketAddress(socket)) = &mut address.address {
            socket.protocol = SocketProtocol::Udp as i32;
        }
    }
}

pub(crate) fn additional(binds: &[Text], port: u32) -> Vec<AdditionalAddress> {
    binds
        .iter()
        .filter(|bind| !bind.is_empty())
        .map(|bind| AdditionalAddress { address: Some(address(bind, port)), ..AdditionalAddress::default() })
        .collect()
}
