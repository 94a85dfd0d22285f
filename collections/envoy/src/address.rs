//! Addresses, address blocks and address families.

use envoy_types::pb::envoy::config::cluster::v3::cluster::DnsLookupFamily;
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::envoy_internal_address::AddressNameSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{Address, CidrRange, EnvoyInternalAddress, Pipe, SocketAddress};
use ipnet::IpNet;
use sluice_model::{IpFamilies, UNIX_PREFIX};

use crate::wire::uint32;

/// A TCP address. The port is set even if it is 0.
#[must_use]
pub fn socket_address(address: &str, port: u32) -> SocketAddress {
    SocketAddress {
        address: address.to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(port)),
        ..SocketAddress::default()
    }
}

/// A TCP address, or the path of a Unix domain socket if the port is 0.
#[must_use]
pub fn address(address: &str, port: u32) -> Address {
    let kind = if port == 0 {
        let path = address.strip_prefix(UNIX_PREFIX).unwrap_or(address);
        AddressKind::Pipe(Pipe { path: path.to_owned(), mode: 0 })
    } else {
        AddressKind::SocketAddress(socket_address(address, port))
    };
    Address { address: Some(kind) }
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn join_port(host: &str, port: u32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The address of an internal listener. The ID distinguishes the endpoints behind it.
#[must_use]
pub(crate) fn internal_address(listener: &str, id: &str) -> Address {
    let address = EnvoyInternalAddress {
        endpoint_id: id.to_owned(),
        address_name_specifier: Some(AddressNameSpecifier::ServerListenerName(listener.to_owned())),
    };
    Address { address: Some(AddressKind::EnvoyInternalAddress(address)) }
}

/// An IP address or a CIDR block.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse().ok().map(|address: std::net::IpAddr| address.into()))
}

/// The range of an IP address or a CIDR block; `None` if the text is neither.
pub(crate) fn cidr(text: &str) -> Option<CidrRange> {
    let network = parse_network(text)?;
    Some(CidrRange {
        address_prefix: network.addr().to_string(),
        prefix_len: Some(uint32(u32::from(network.prefix_len()))),
    })
}

/// The DNS lookup family for the address families of a proxy.
pub(crate) fn dns_family(families: IpFamilies, dual_stack: bool) -> DnsLookupFamily {
    match families {
        IpFamilies::V6 => DnsLookupFamily::V6Only,
        IpFamilies::Dual if dual_stack => DnsLookupFamily::All,
        IpFamilies::V4 | IpFamilies::Dual => DnsLookupFamily::V4Only,
    }
}
