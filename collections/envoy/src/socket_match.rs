//! Metadata by which an endpoint selects a transport socket of its cluster (N12).

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::google::protobuf::{Struct, value::Kind};

use crate::wire::{string_value, structure};

/// Namespace of the metadata.
pub(crate) const TRANSPORT_SOCKET_MATCH: &str = "envoy.transport_socket_match";

/// Name of the match for mutual TLS.
pub(crate) const MTLS_MATCH: &str = "tlsMode-istio";

const TLS_MODE: &str = "tlsMode";
const MTLS: &str = "istio";

/// Selects mutual TLS.
pub(crate) fn by_mtls() -> Struct {
    structure([(TLS_MODE, string_value(MTLS))])
}

/// Selects HBONE.
pub(crate) fn by_hbone() -> Struct {
    structure([("tunnel", string_value("http"))])
}

/// Whether the metadata of an endpoint selects mutual TLS.
pub(crate) fn selects_mtls(metadata: &Metadata) -> bool {
    let mode = metadata.filter_metadata.get(TRANSPORT_SOCKET_MATCH).and_then(|socket| socket.fields.get(TLS_MODE));
    mode.is_some_and(|mode| matches!(&mode.kind, Some(Kind::StringValue(text)) if text == MTLS))
}
