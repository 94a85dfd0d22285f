//! Upstream HTTP protocol.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::http1_protocol_options::HeaderKeyFormat;
use envoy_types::pb::envoy::config::core::v3::http1_protocol_options::header_key_format::HeaderFormat;
use envoy_types::pb::envoy::config::core::v3::{
    Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions as CommonOptions, TypedExtensionConfig,
};
use envoy_types::pb::envoy::extensions::http::header_formatters::preserve_case::v3::PreserveCaseFormatterConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions, UseDownstreamHttpConfig,
};
use sluice_model::Protocol;

use super::draft::{Draft, explicit};
use super::{ClusterProfile, ClusterSettings};
use crate::wire::{any, duration};

/// Idle timeout of connections to original destinations.
const PASSTHROUGH_IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Sets the protocol by the declared protocol of a port.
pub(super) fn apply_protocol(
    draft: &mut Draft,
    protocol: Protocol,
    profile: &ClusterProfile,
    settings: &ClusterSettings,
) {
    if protocol.is_http2() {
        set_http2(draft);
        return;
    }
    if (protocol.is_http() || protocol.is_unsupported()) && profile.preserves_header_case(settings) {
        draft.http().upstream_protocol_options = Some(explicit(ProtocolConfig::HttpProtocolOptions(preserve_case())));
    }
    // A gateway does not use the downstream protocol: its clients negotiate HTTP/2, which the server may not support.
    if profile.follows_downstream_protocol() && protocol.is_unsupported() {
        use_client_protocol(draft);
    }
}

/// Sets HTTP/2, unless a protocol is already set.
pub(super) fn set_http2(draft: &mut Draft) {
    draft
        .http()
        .upstream_protocol_options
        .get_or_insert_with(|| explicit(ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions::default())));
}

/// Uses the downstream protocol and keeps the options of HTTP/1.1.
pub(super) fn use_client_protocol(draft: &mut Draft) {
    let http = draft.http();
    let http1 = match http.upstream_protocol_options.take() {
        Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(ProtocolConfig::HttpProtocolOptions(options)),
        })) => options,
        _ => Http1ProtocolOptions::default(),
    };
    http.upstream_protocol_options = Some(as_client(http1));
}

/// Options of clusters for original destinations.
pub(super) fn passthrough_options(profile: &ClusterProfile, settings: &ClusterSettings) -> HttpProtocolOptions {
    let http1 = if profile.preserves_header_case(settings) { preserve_case() } else { Http1ProtocolOptions::default() };
    HttpProtocolOptions {
        common_http_protocol_options: Some(CommonOptions {
            idle_timeout: Some(duration(PASSTHROUGH_IDLE_TIMEOUT)),
            ..CommonOptions::default()
        }),
        upstream_protocol_options: Some(as_client(http1)),
        ..HttpProtocolOptions::default()
    }
}

fn as_client(http1: Http1ProtocolOptions) -> UpstreamProtocolOptions {
    UpstreamProtocolOptions::UseDownstreamProtocolConfig(UseDownstreamHttpConfig {
        http_protocol_options: Some(http1),
        http2_protocol_options: Some(Http2ProtocolOptions::default()),
        ..UseDownstreamHttpConfig::default()
    })
}

fn preserve_case() -> Http1ProtocolOptions {
    Http1ProtocolOptions {
        header_key_format: Some(HeaderKeyFormat {
            header_format: Some(HeaderFormat::StatefulFormatter(TypedExtensionConfig {
                name: "preserve_case".to_owned(),
                typed_config: Some(any(&PreserveCaseFormatterConfig::default())),
            })),
        }),
        ..Http1ProtocolOptions::default()
    }
}
