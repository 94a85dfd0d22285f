//! Transport sockets for plain text, and transport socket matches by the metadata of endpoints (N12).

use envoy_types::pb::envoy::config::cluster::v3::cluster::TransportSocketMatch;
use envoy_types::pb::envoy::config::core::v3::{TransportSocket, transport_socket::ConfigType};
use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;

use crate::socket_match::{MTLS_MATCH, by_mtls};
use crate::wire::{any, structure};

/// Name of the transport socket for plain text in matches.
pub(super) const RAW_BUFFER: &str = "envoy.transport_sockets.raw_buffer";

/// Match of endpoints that accept mutual TLS.
pub(super) fn by_tls_mode(socket: TransportSocket) -> TransportSocketMatch {
    TransportSocketMatch { name: MTLS_MATCH.to_owned(), r#match: Some(by_mtls()), transport_socket: Some(socket) }
}

/// Match of all other endpoints: plain text.
pub(super) fn plain_match() -> TransportSocketMatch {
    TransportSocketMatch {
        name: "tlsMode-disabled".to_owned(),
        r#match: Some(structure([])),
        transport_socket: Some(raw_buffer(RAW_BUFFER)),
    }
}

/// A transport socket for plain text, with this name.
pub(super) fn raw_buffer(name: &str) -> TransportSocket {
    TransportSocket { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(any(&RawBuffer::default()))) }
}
