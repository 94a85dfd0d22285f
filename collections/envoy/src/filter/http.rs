//! HTTP connection managers (N08).

use envoy_types::pb::envoy::config::core::v3::{
    Http1ProtocolOptions, Http2ProtocolOptions, Http3ProtocolOptions, HttpProtocolOptions, KeepaliveSettings,
    TypedExtensionConfig,
    http_protocol_options::HeadersWithUnderscoresAction,
    http1_protocol_options::{HeaderKeyFormat, header_key_format::HeaderFormat},
};
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, RequestIdExtension,
    http_connection_manager::{
        CodecType, ForwardClientCertDetails, PathWithEscapedSlashesAction, RouteSpecifier, ServerHeaderTransformation,
        SetCurrentClientCertDetails, UpgradeConfig,
    },
};
use envoy_types::pb::envoy::extensions::request_id::uuid::v3::UuidRequestIdConfig;
use envoy_types::pb::google::protobuf::Any;
use sluice_model::{
    ConnectionSettings, CurrentClientCert, EscapedSlashes, ForwardClientCert, HeadersWithUnderscores,
    PathNormalization, ProxyType,
};
use std::time::Duration;

use super::access_log::{http_access_logs, tunnel_access_logs};
use super::http_chain::{HttpChain, RouteSource};
use super::http_filters::http_filters;
use super::tracing::tracing;
use crate::config_source::ads_source;
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::wire::{any, boolean, duration, uint32};

/// Builds the connection manager of a chain.
pub(crate) fn build_http_manager(settings: &ListenerSettings, chain: &HttpChain) -> HttpConnectionManager {
    let (tracing, sample_by_request_id) = tracing(settings, chain.class);
    let mut manager = HttpConnectionManager {
        stat_prefix: chain.stat_prefix.clone(),
        http_filters: http_filters(settings, chain),
        tracing,
        http_protocol_options: http1_options(settings, chain),
        access_log: http_access_logs(settings, chain.class),
        use_remote_address: Some(boolean(uses_remote_address(settings, chain))),
        stream_idle_timeout: Some(duration(Duration::ZERO)),
        proxy_100_continue: settings.switches.continue_responses,
        upgrade_configs: vec![UpgradeConfig { upgrade_type: "websocket".to_owned(), ..UpgradeConfig::default() }],
        request_id_extension: Some(request_id(sample_by_request_id)),
        common_http_protocol_options: settings.profile.idle_timeout.map(|timeout| HttpProtocolOptions {
            idle_timeout: Some(duration(timeout)),
            ..HttpProtocolOptions::default()
        }),
        route_specifier: Some(routes(&chain.routes)),
        ..HttpConnectionManager::default()
    };
    // A waypoint terminates mutual TLS in another listener, so it knows no client certificate here.
    let tls = settings.profile.proxy_type != ProxyType::Waypoint;
    apply_headers(&mut manager, settings, chain.class, tls);
    if settings.profile.states_client_identity {
        // Otherwise the header would be removed.
        manager.forward_client_cert_details = ForwardClientCertDetails::AlwaysForwardOnly as i32;
    }
    apply_path_normalization(&mut manager, settings);
    if chain.class == ListenerClass::Inbound && chain.protocol.is_http2() {
        manager.http2_protocol_options = Some(Http2ProtocolOptions::default());
    }
    if chain.http3 {
        manager.codec_type = CodecType::Http3 as i32;
        manager.http3_protocol_options = Some(Http3ProtocolOptions::default());
    }
    if let Some(connection) = connection_settings(settings) {
        apply_connection_settings(&mut manager, &connection);
    }
    manager
}

/// Whether the remote address is the address of the client. An HTTP proxy keeps what its client states.
fn uses_remote_address(settings: &ListenerSettings, chain: &HttpChain) -> bool {
    let of_sidecar = chain.class == ListenerClass::Outbound && !chain.forward_proxy;
    chain.use_remote_address || of_sidecar && settings.switches.sidecar_remote_address
}

/// Keepalive of tunnels, as of ztunnel: the interval of pings, and the time limit of the answer.
const TUNNEL_KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));
/// Tunnels of one connection. All of them are on one worker thread.
const MAX_TUNNELS: u32 = 100;

/// Builds the connection manager of a waypoint that terminates tunnels (HBONE) and sends them to `routes`.
pub(crate) fn build_tunnel_manager(
    settings: &ListenerSettings,
    stat_prefix: &str,
    routes: RouteConfiguration,
    http_filters: Vec<HttpFilter>,
) -> HttpConnectionManager {
    let class = ListenerClass::Inbound;
    let mut manager = HttpConnectionManager {
        stat_prefix: stat_prefix.to_owned(),
        route_specifier: Some(RouteSpecifier::RouteConfig(routes)),
        http_filters,
        use_remote_address: Some(boolean(false)),
        access_log: tunnel_access_logs(settings, class),
        stream_idle_timeout: Some(duration(Duration::ZERO)),
        upgrade_configs: vec![UpgradeConfig { upgrade_type: "CONNECT".to_owned(), ..UpgradeConfig::default() }],
        http2_protocol_options: Some(Http2ProtocolOptions {
            allow_connect: true,
            max_concurrent_streams: Some(uint32(MAX_TUNNELS)),
            connection_keepalive: Some(KeepaliveSettings {
                interval: Some(duration(TUNNEL_KEEPALIVE.0)),
                timeout: Some(duration(TUNNEL_KEEPALIVE.1)),
                ..KeepaliveSettings::default()
            }),
            ..Http2ProtocolOptions::default()
        }),
        ..HttpConnectionManager::default()
    };
    apply_headers(&mut manager, settings, class, true);
    // Details of the certificate are always the same, and no port is appended: the tunnel is not the request.
    manager.set_current_client_cert_details = Some(client_cert_details(None));
    manager.append_x_forwarded_port = false;
    manager
}

fn routes(routes: &RouteSource) -> RouteSpecifier {
    match routes {
        RouteSource::Inline(config) => RouteSpecifier::RouteConfig((**config).clone()),
        RouteSource::Named(name) => {
            RouteSpecifier::Rds(Rds { config_source: Some(ads_source()), route_config_name: name.clone() })
        }
    }
}

fn request_id(sample_by_request_id: bool) -> RequestIdExtension {
    let config = UuidRequestIdConfig {
        use_request_id_for_trace_sampling: Some(boolean(sample_by_request_id)),
        ..UuidRequestIdConfig::default()
    };
    RequestIdExtension { typed_config: Some(any(&config)) }
}

fn http1_options(settings: &ListenerSettings, chain: &HttpChain) -> Option<Http1ProtocolOptions> {
    let headers = settings.config().proxy_headers.as_ref();
    let keep_case = headers.is_some_and(|headers| headers.preserve_http1_header_case == Some(true));
    if !chain.forward_proxy && !settings.accepts_http10() && !keep_case && chain.class != ListenerClass::Gateway {
        return None;
    }
    let formatter = || {
        TypedExtensionConfig {
        name: "preserve_case".to_owned(),
        typed_config: Some(Any {
            type_url: "type.googleapis.com/envoy.extensions.http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig".to_owned(),
            value: Vec::new(),
        }),
    }
    };
    Some(Http1ProtocolOptions {
        allow_absolute_url: chain.forward_proxy.then(|| boolean(true)),
        accept_http_10: settings.accepts_http10(),
        header_key_format: keep_case
            .then(|| HeaderKeyFormat { header_format: Some(HeaderFormat::StatefulFormatter(formatter())) }),
        ..Http1ProtocolOptions::default()
    })
}

/// Applies the settings of headers that the proxy adds or changes. Without `tls`, clients have no certificate.
fn apply_headers(manager: &mut HttpConnectionManager, settings: &ListenerSettings, class: ListenerClass, tls: bool) {
    let configured = settings.config().proxy_headers.clone().unwrap_or_default();
    // On outbound traffic, the server name is Envoy's default.
    manager.server_name = if class == ListenerClass::Outbound { String::new() } else { "istio-envoy".to_owned() };
    if configured.server_disabled == Some(true) {
        manager.server_name = String::new();
        manager.server_header_transformation = ServerHeaderTransformation::PassThrough as i32;
    } else if !configured.server_value.is_empty() {
        manager.server_name = configured.server_value.to_string();
    }
    if configured.request_id_disabled == Some(true) {
        manager.generate_request_id = Some(boolean(false));
    }
    manager.append_x_forwarded_port = configured.x_forwarded_port_enabled == Some(true);
    let details = configured.set_current_client_cert_details.as_ref();
    match class {
        ListenerClass::Outbound => {}
        ListenerClass::Inbound if !tls => {}
        ListenerClass::Inbound => {
            let forward = match configured.forwarded_client_cert {
                ForwardClientCert::Undefined => ForwardClientCert::AppendForward,
                set => set,
            };
            manager.forward_client_cert_details = forward_client_cert(forward) as i32;
            manager.set_current_client_cert_details = Some(client_cert_details(details));
        }
        ListenerClass::Gateway => {
            let topology = &settings.config().gateway_topology;
            manager.xff_num_trusted_hops = topology.num_trusted_proxies;
            let forward = match topology.forward_client_cert {
                ForwardClientCert::Undefined => ForwardClientCert::SanitizeSet,
                set => set,
            };
            manager.forward_client_cert_details = forward_client_cert(forward) as i32;
            // Envoy accepts details only in modes that write the header.
            if matches!(forward, ForwardClientCert::AppendForward | ForwardClientCert::SanitizeSet) {
                manager.set_current_client_cert_details = Some(SetCurrentClientCertDetails {
                    subject: Some(boolean(true)),
                    cert: true,
                    dns: true,
                    uri: true,
                    ..SetCurrentClientCertDetails::default()
                });
            }
        }
    }
}

fn forward_client_cert(forward: ForwardClientCert) -> ForwardClientCertDetails {
    match forward {
        ForwardClientCert::Undefined | ForwardClientCert::Sanitize => ForwardClientCertDetails::Sanitize,
        ForwardClientCert::ForwardOnly => ForwardClientCertDetails::ForwardOnly,
        ForwardClientCert::AppendForward => ForwardClientCertDetails::AppendForward,
        ForwardClientCert::SanitizeSet => ForwardClientCertDetails::SanitizeSet,
        ForwardClientCert::AlwaysForwardOnly => ForwardClientCertDetails::AlwaysForwardOnly,
    }
}

fn client_cert_details(configured: Option<&CurrentClientCert>) -> SetCurrentClientCertDetails {
    let configured = configured.cloned().unwrap_or_default();
    SetCurrentClientCertDetails {
        subject: Some(boolean(configured.subject.unwrap_or(true))),
        uri: configured.uri.unwrap_or(true),
        dns: configured.dns.unwrap_or(true),
        cert: configured.cert.unwrap_or(false),
        chain: configured.chain.unwrap_or(false),
        ..SetCurrentClientCertDetails::default()
    }
}

fn apply_path_normalization(manager: &mut HttpConnectionManager, settings: &ListenerSettings) {
    let normalization = settings.mesh.path_normalization;
    manager.normalize_path = Some(boolean(normalization != PathNormalization::None));
    manager.merge_slashes =
        matches!(normalization, PathNormalization::MergeSlashes | PathNormalization::DecodeAndMergeSlashes);
    let action = if normalization == PathNormalization::DecodeAndMergeSlashes {
        PathWithEscapedSlashesAction::UnescapeAndForward
    } else {
        PathWithEscapedSlashesAction::KeepUnchanged
    };
    manager.path_with_escaped_slashes_action = action as i32;
}

/// Applies the connection limits of the proxy. An edge gateway has stricter defaults.
pub(crate) fn connection_settings(settings: &ListenerSettings) -> Option<ConnectionSettings> {
    let configured = settings.config().connection_settings.as_ref();
    let mut limits = configured.or(settings.mesh.default_config.connection_settings.as_ref())?.clone();
    if limits.edge && settings.profile.proxy_type == ProxyType::Router {
        let minutes = |count: u64| Some(Duration::from_secs(60 * count));
        limits.listener_buffer_limit_bytes = limits.listener_buffer_limit_bytes.or(Some(32 * 1024));
        limits.http_idle_timeout = limits.http_idle_timeout.or(minutes(60));
        limits.http_stream_idle_timeout = limits.http_stream_idle_timeout.or(minutes(5));
        limits.http_request_timeout = limits.http_request_timeout.or(minutes(5));
        limits.http_request_headers_timeout = limits.http_request_headers_timeout.or(minutes(1));
        limits.http_max_concurrent_streams = limits.http_max_concurrent_streams.or(Some(100));
        limits.http2_initial_stream_window_bytes = limits.http2_initial_stream_window_bytes.or(Some(64 * 1024));
        limits.http2_initial_connection_window_bytes =
            limits.http2_initial_connection_window_bytes.or(Some(1024 * 1024));
        if limits.headers_with_underscores == HeadersWithUnderscores::Unspecified {
            limits.headers_with_underscores = HeadersWithUnderscores::RejectRequest;
        }
        limits.merge_slashes = limits.merge_slashes.or(Some(true));
        if limits.escaped_slashes == EscapedSlashes::Unspecified {
            limits.escaped_slashes = EscapedSlashes::UnescapeAndRedirect;
        }
    }
    Some(limits)
}

fn apply_connection_settings(manager: &mut HttpConnectionManager, limits: &ConnectionSettings) {
    let underscores = match limits.headers_with_underscores {
        HeadersWithUnderscores::Unspecified => None,
        HeadersWithUnderscores::Allow => Some(HeadersWithUnderscoresAction::Allow),
        HeadersWithUnderscores::RejectRequest => Some(HeadersWithUnderscoresAction::RejectRequest),
        HeadersWithUnderscores::DropHeader => Some(HeadersWithUnderscoresAction::DropHeader),
    };
    let of_connections =
        [limits.http_idle_timeout, limits.http_max_connection_duration, limits.http_max_stream_duration];
    if of_connections.iter().any(Option::is_some) || underscores.is_some() {
        let common = manager.common_http_protocol_options.get_or_insert_default();
        if let Some(timeout) = limits.http_idle_timeout {
            common.idle_timeout = Some(duration(timeout));
        }
        common.max_connection_duration = limits.http_max_connection_duration.map(duration);
        common.max_stream_duration = limits.http_max_stream_duration.map(duration);
        common.headers_with_underscores_action = underscores.map_or(0, |action| action as i32);
    }
    if let Some(timeout) = limits.http_stream_idle_timeout {
        manager.stream_idle_timeout = Some(duration(timeout));
    }
    manager.request_timeout = limits.http_request_timeout.map(duration);
    manager.request_headers_timeout = limits.http_request_headers_timeout.map(duration);
    manager.drain_timeout = limits.http_drain_timeout.map(duration);
    let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok()).map(uint32);
    let of_http2 = [
        limits.http_max_concurrent_streams,
        limits.http2_initial_stream_window_bytes,
        limits.http2_initial_connection_window_bytes,
    ];
    if of_http2.iter().any(Option::is_some) {
        let http2 = manager.http2_protocol_options.get_or_insert_default();
        http2.max_concurrent_streams = number(limits.http_max_concurrent_streams);
        http2.initial_stream_window_size = number(limits.http2_initial_stream_window_bytes);
        http2.initial_connection_window_size = number(limits.http2_initial_connection_window_bytes);
    }
    if let Some(merge) = limits.merge_slashes {
        manager.merge_slashes = merge;
    }
    let action = match limits.escaped_slashes {
        EscapedSlashes::Unspecified => return,
        EscapedSlashes::KeepUnchanged => PathWithEscapedSlashesAction::KeepUnchanged,
        EscapedSlashes::RejectRequest => PathWithEscapedSlashesAction::RejectRequest,
        EscapedSlashes::UnescapeAndRedirect => PathWithEscapedSlashesAction::UnescapeAndRedirect,
        EscapedSlashes::UnescapeAndForward => PathWithEscapedSlashesAction::UnescapeAndForward,
    };
    manager.path_with_escaped_slashes_action = action as i32;
}
