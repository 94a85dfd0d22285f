//! `ProxyConfig` (C13, C18).

mod check;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_model::{
    ConnectionSettings, CurrentClientCert, CustomTag, EscapedSlashes, ForwardClientCert, HeadersWithUnderscores,
    PrivateKeyProvider, ProxyConfig, ProxyHeaders, RemoteService, Text, Topology, Tracer, Tracing, TracingServiceName,
};

use crate::fields::set;
use crate::traffic_policy::{client_tls, tcp_keepalive};
use crate::{Fields, Findings};

/// Fields that only the agent reads.
const UNUSED: [&str; 24] = [
    "availabilityZone",
    "binaryPath",
    "configPath",
    "controlPlaneAuthPolicy",
    "customConfigFile",
    "discoveryRefreshDelay",
    "envoyMetricsService",
    "envoyMetricsServiceAddress",
    "holdApplicationUntilProxyStarts",
    "image",
    "interceptionMode",
    "parentShutdownDuration",
    "proxyAdminPort",
    "proxyBootstrapTemplatePath",
    "proxyStatsMatcher",
    "readinessProbe",
    "runtimeValues",
    "sds",
    "serviceCluster",
    "statsCompression",
    "statsdUdpAddress",
    "terminationDrainDuration",
    "connectTimeout",
    "clusterName",
];

/// Istio's defaults of the fields that proxies and injected pods start with (C19).
#[must_use]
pub fn default_proxy_config() -> Value {
    json!({
        "configPath": "./etc/istio/proxy",
        "binaryPath": "/usr/local/bin/envoy",
        "serviceCluster": "istio-proxy",
        "drainDuration": "45s",
        "terminationDrainDuration": "5s",
        "proxyAdminPort": 15000,
        "controlPlaneAuthPolicy": "MUTUAL_TLS",
        "discoveryAddress": "istiod.istio-system.svc:15012",
        "statNameLength": 189,
        "statusPort": 15020,
    })
}

/// Merges the `ProxyConfig` in `value` into `base`. A field that is present replaces that of `base`; `proxyMetadata` is
/// joined, and `proxyHeaders` is merged field by field.
///
/// Findings have paths below `path`. For an invalid field, the value of `base` stays.
#[must_use]
pub fn merge_proxy_config(base: ProxyConfig, value: &Value, path: &str, findings: &Findings) -> ProxyConfig {
    match Fields::new(value, path, findings) {
        Some(fields) => merge_proxy_fields(base, &fields),
        None => base,
    }
}

pub(crate) fn merge_proxy_fields(base: ProxyConfig, fields: &Fields<'_>) -> ProxyConfig {
    let mut config = base;
    for name in UNUSED {
        fields.has(name);
    }
    let names = [
        ("APP_LABEL_AND_NAMESPACE", TracingServiceName::AppLabelAndNamespace),
        ("CANONICAL_NAME_ONLY", TracingServiceName::CanonicalNameOnly),
        ("CANONICAL_NAME_AND_NAMESPACE", TracingServiceName::CanonicalNameAndNamespace),
    ];
    set(&mut config.drain_duration, fields.opt_duration("drainDuration"));
    set(&mut config.tracing_service_name, fields.choice("tracingServiceName", &names));
    set(&mut config.tracing, fields.read("tracing", tracing).map(Some));
    set(&mut config.zipkin_address, fields.opt_text("zipkinAddress"));
    set(&mut config.envoy_access_log_service, fields.read("envoyAccessLogService", remote_service).map(Some));
    config.proxy_metadata.extend(fields.text_map("proxyMetadata"));
    set(&mut config.stat_name_length, fields.opt_integer("statNameLength"));
    set(&mut config.status_port, fields.opt_integer("statusPort"));
    set(&mut config.gateway_topology, fields.read("gatewayTopology", topology));
    set(&mut config.mesh_id, fields.opt_text("meshId"));
    if let Some(headers) = fields.read("proxyHeaders", proxy_headers) {
        config.proxy_headers = Some(merge_headers(config.proxy_headers.take().unwrap_or_default(), headers));
    }
    set(&mut config.private_key_provider, fields.read("privateKeyProvider", private_key_provider));
    set(&mut config.connection_settings, fields.read("connectionSettings", connection_settings).map(Some));
    set(&mut config.file_flush_interval, fields.opt_duration("fileFlushInterval").map(Some));
    set(&mut config.file_flush_min_size_kib, fields.opt_integer("fileFlushMinSizeKb"));
    if fields.has("caCertificatesPem") {
        config.ca_certificates_pem = fields.texts("caCertificatesPem");
    }
    if fields.has("extraStatTags") {
        config.extra_stat_tags = fields.texts("extraStatTags");
    }
    set(&mut config.concurrency, fields.opt_integer("concurrency").map(Some));
    set(&mut config.discovery_address, fields.opt_text("discoveryAddress"));
    check::check(fields, &config);
    config
}

fn remote_service(fields: &Fields<'_>) -> RemoteService {
    RemoteService {
        address: fields.text("address"),
        tls_settings: fields.read("tlsSettings", client_tls),
        tcp_keepalive: fields.read("tcpKeepalive", tcp_keepalive),
    }
}

/// `Tracing`.
pub(crate) fn tracing(fields: &Fields<'_>) -> Tracing {
    let address = |name: &'static str| fields.read(name, |tracer| tracer.text("address"));
    let tracer = if let Some(address) = address("zipkin") {
        Some(Tracer::Zipkin(address))
    } else if let Some(lightstep) = fields.object("lightstep") {
        Some(Tracer::Lightstep(lightstep.text("address"), lightstep.text("accessToken")))
    } else if let Some(address) = address("datadog") {
        Some(Tracer::Datadog(address))
    } else if let Some(stackdriver) = fields.object("stackdriver") {
        stackdriver.ignore_rest();
        Some(Tracer::Stackdriver)
    } else {
        fields.object("openCensusAgent").map(|agent| {
            agent.has("context");
            Tracer::OpenCensusAgent(agent.text("address"))
        })
    };
    let tags: BTreeMap<Text, CustomTag> = custom_tags(fields);
    Tracing {
        tracer,
        custom_tags: tags,
        max_path_tag_length: fields.integer("maxPathTagLength"),
        sampling: fields.opt_decimal("sampling").unwrap_or_default(),
        tls_settings: fields.read("tlsSettings", client_tls),
        enable_istio_tags: fields.opt_bool("enableIstioTags"),
    }
}

fn custom_tags(fields: &Fields<'_>) -> BTreeMap<Text, CustomTag> {
    let Some(tags) = fields.object("customTags") else { return BTreeMap::new() };
    let tag = |tag: &Fields<'_>| {
        let pair = |of: &Fields<'_>| (of.text("name"), of.text("defaultValue"));
        if let Some(literal) = tag.read("literal", |literal| literal.text("value")) {
            return Some(CustomTag::Literal(literal));
        }
        if let Some((name, default)) = tag.read("environment", pair) {
            return Some(CustomTag::Environment(name, default));
        }
        tag.read("header", pair).map(|(name, default)| CustomTag::Header(name, default))
    };
    tags.names().filter_map(|name| Some((name.into(), tags.read(name, tag)??))).collect()
}

const FORWARD: [(&str, ForwardClientCert); 6] = [
    ("UNDEFINED", ForwardClientCert::Undefined),
    ("SANITIZE", ForwardClientCert::Sanitize),
    ("FORWARD_ONLY", ForwardClientCert::ForwardOnly),
    ("APPEND_FORWARD", ForwardClientCert::AppendForward),
    ("SANITIZE_SET", ForwardClientCert::SanitizeSet),
    ("ALWAYS_FORWARD_ONLY", ForwardClientCert::AlwaysForwardOnly),
];

fn topology(fields: &Fields<'_>) -> Topology {
    Topology {
        num_trusted_proxies: fields.integer("numTrustedProxies"),
        forward_client_cert: fields.choice("forwardClientCertDetails", &FORWARD).unwrap_or_default(),
        proxy_protocol: fields.has("proxyProtocol"),
    }
}

fn proxy_headers(fields: &Fields<'_>) -> ProxyHeaders {
    // An object that is present counts even if it is empty.
    let switch = |name: &'static str, word: &str| fields.object(name).map(|object| object.bool(word));
    let server = fields.object("server");
    let in_mesh = fields.read("metadataExchangeHeaders", |exchange| {
        exchange.choice("mode", &[("UNDEFINED", false), ("IN_MESH", true)]).unwrap_or_default()
    });
    ProxyHeaders {
        forwarded_client_cert: fields.choice("forwardedClientCert", &FORWARD).unwrap_or_default(),
        set_current_client_cert_details: fields.read("setCurrentClientCertDetails", |details| CurrentClientCert {
            subject: details.opt_bool("subject"),
            cert: details.opt_bool("cert"),
            chain: details.opt_bool("chain"),
            dns: details.opt_bool("dns"),
            uri: details.opt_bool("uri"),
        }),
        request_id_disabled: switch("requestId", "disabled"),
        server_disabled: server.as_ref().map(|server| server.bool("disabled")),
        server_value: server.as_ref().map(|server| server.text("value")).unwrap_or_default(),
        attempt_count_disabled: switch("attemptCount", "disabled"),
        envoy_debug_headers_disabled: switch("envoyDebugHeaders", "disabled"),
        metadata_exchange_in_mesh: in_mesh.unwrap_or_default(),
        preserve_http1_header_case: fields.opt_bool("preserveHttp1HeaderCase"),
        x_forwarded_host_enabled: switch("xForwardedHost", "enabled"),
        x_forwarded_port_enabled: switch("xForwardedPort", "enabled"),
    }
}

/// Five of the headers keep the value of `base` if they are unset; all others come from `headers`.
fn merge_headers(base: ProxyHeaders, mut headers: ProxyHeaders) -> ProxyHeaders {
    if headers.forwarded_client_cert == ForwardClientCert::Undefined {
        headers.forwarded_client_cert = base.forwarded_client_cert;
    }
    if headers.server_disabled.is_none() {
        headers.server_disabled = base.server_disabled;
        headers.server_value = base.server_value;
    }
    headers.request_id_disabled = headers.request_id_disabled.or(base.request_id_disabled);
    headers.attempt_count_disabled = headers.attempt_count_disabled.or(base.attempt_count_disabled);
    headers.envoy_debug_headers_disabled = headers.envoy_debug_headers_disabled.or(base.envoy_debug_headers_disabled);
    headers
}

fn private_key_provider(fields: &Fields<'_>) -> Option<PrivateKeyProvider> {
    let provider = |qat: bool| {
        move |provider: &Fields<'_>| PrivateKeyProvider {
            qat,
            poll_delay: provider.opt_duration("pollDelay"),
            fallback: provider.opt_bool("fallback"),
        }
    };
    fields.read("cryptomb", provider(false)).or_else(|| fields.read("qat", provider(true)))
}

fn connection_settings(fields: &Fields<'_>) -> ConnectionSettings {
    let underscores = [
        ("HEADERS_WITH_UNDERSCORES_UNSPECIFIED", HeadersWithUnderscores::Unspecified),
        ("HEADERS_WITH_UNDERSCORES_ALLOW", HeadersWithUnderscores::Allow),
        ("HEADERS_WITH_UNDERSCORES_REJECT_REQUEST", HeadersWithUnderscores::RejectRequest),
        ("HEADERS_WITH_UNDERSCORES_DROP_HEADER", HeadersWithUnderscores::DropHeader),
    ];
    let slashes = [
        ("PATH_WITH_ESCAPED_SLASHES_UNSPECIFIED", EscapedSlashes::Unspecified),
        ("KEEP_UNCHANGED", EscapedSlashes::KeepUnchanged),
        ("REJECT_REQUEST", EscapedSlashes::RejectRequest),
        ("UNESCAPE_AND_REDIRECT", EscapedSlashes::UnescapeAndRedirect),
        ("UNESCAPE_AND_FORWARD", EscapedSlashes::UnescapeAndForward),
    ];
    ConnectionSettings {
        edge: fields.choice("profile", &[("SIDECAR", false), ("EDGE", true)]).unwrap_or_default(),
        listener_buffer_limit_bytes: fields.opt_integer("listenerPerConnectionBufferLimitBytes"),
        cluster_buffer_limit_bytes: fields.opt_integer("clusterPerConnectionBufferLimitBytes"),
        http_idle_timeout: fields.opt_duration("httpIdleTimeout"),
        http_max_connection_duration: fields.opt_duration("httpMaxConnectionDuration"),
        http_drain_timeout: fields.opt_duration("httpDrainTimeout"),
        http_request_timeout: fields.opt_duration("httpRequestTimeout"),
        http_request_headers_timeout: fields.opt_duration("httpRequestHeadersTimeout"),
        http_stream_idle_timeout: fields.opt_duration("httpStreamIdleTimeout"),
        http_max_stream_duration: fields.opt_duration("httpMaxStreamDuration"),
        http_max_concurrent_streams: fields.opt_integer("httpMaxConcurrentStreams"),
        http2_initial_stream_window_bytes: fields.opt_integer("http2InitialStreamWindowSize"),
        http2_initial_connection_window_bytes: fields.opt_integer("http2InitialConnectionWindowSize"),
        headers_with_underscores: fields.choice("httpHeadersWithUnderscoresAction", &underscores).unwrap_or_default(),
        merge_slashes: fields.opt_bool("httpMergeSlashes"),
        escaped_slashes: fields.choice("httpPathWithEscapedSlashesAction", &slashes).unwrap_or_default(),
        listener_connection_limit: fields.opt_integer("listenerConnectionLimit"),
        global_downstream_connection_limit: fields.opt_integer("globalDownstreamConnectionLimit"),
    }
}
