//! Route tables, less their virtual hosts.

use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::google::protobuf::BoolValue;

use crate::wire::uint32;

/// Whether a table has virtual hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TableKind {
    /// An ordinary one.
    Full,
    /// One that was asked for but does not exist.
    Absent,
}

/// Bodies of direct responses may be this long, the limit VirtualServices are checked against.
const MAX_DIRECT_RESPONSE_BODY_BYTES: u32 = 1 << 20;

/// A route table without virtual hosts.
#[must_use]
pub fn build_header(name: &str, kind: TableKind) -> RouteConfiguration {
    let full = kind == TableKind::Full;
    RouteConfiguration {
        name: name.into(),
        validate_clusters: Some(BoolValue { value: false }),
        max_direct_response_body_size_bytes: full.then(|| uint32(MAX_DIRECT_RESPONSE_BODY_BYTES)),
        ignore_port_in_host_matching: full,
        ..RouteConfiguration::default()
    }
}
