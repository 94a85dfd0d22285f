//! Defaults and overrides of one proxy (C18, C19).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{ClientTls, Decimal, TcpKeepalive, Text};

/// The part of the configuration of a proxy that affects its xDS resources. Its bootstrap uses the rest.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ProxyConfig {
    /// Drain time of listeners.
    pub drain_duration: Duration,
    /// Service name in its traces.
    pub tracing_service_name: TracingServiceName,
    /// Tracing, if set.
    pub tracing: Option<Tracing>,
    /// Old form of a Zipkin tracer's address.
    pub zipkin_address: Text,
    /// Access log service.
    pub envoy_access_log_service: Option<RemoteService>,
    /// Metadata and environment of the proxy.
    pub proxy_metadata: BTreeMap<Text, Text>,
    /// Maximum length of names in statistics.
    pub stat_name_length: i32,
    /// Status port of the agent: health and metrics.
    pub status_port: u16,
    /// Trusted proxies in front of a gateway.
    pub gateway_topology: Topology,
    /// Id of the mesh.
    pub mesh_id: Text,
    /// Headers that the proxy adds or changes.
    pub proxy_headers: Option<ProxyHeaders>,
    /// Provider of private-key operations.
    pub private_key_provider: Option<PrivateKeyProvider>,
    /// Limits of connections, if set.
    pub connection_settings: Option<ConnectionSettings>,
    /// Interval of flushing access logs.
    pub file_flush_interval: Option<Duration>,
    /// Size at which access logs are flushed, in KiB.
    pub file_flush_min_size_kib: u32,
    /// Additional root certificates, in PEM.
    pub ca_certificates_pem: Vec<Text>,
    /// Additional tags of statistics.
    pub extra_stat_tags: Vec<Text>,
    /// Number of worker threads, if set.
    pub concurrency: Option<i32>,
    /// Address of the control plane.
    pub discovery_address: Text,
}

impl Default for ProxyConfig {
    /// The defaults of C19.
    fn default() -> Self {
        Self {
            drain_duration: Duration::from_secs(45),
            tracing_service_name: TracingServiceName::AppLabelAndNamespace,
            tracing: None,
            zipkin_address: Text::default(),
            envoy_access_log_service: None,
            proxy_metadata: BTreeMap::new(),
            stat_name_length: 189,
            status_port: 15020,
            gateway_topology: Topology::default(),
            mesh_id: Text::default(),
            proxy_headers: None,
            private_key_provider: None,
            connection_settings: None,
            file_flush_interval: None,
            file_flush_min_size_kib: 0,
            ca_certificates_pem: Vec::new(),
            extra_stat_tags: Vec::new(),
            concurrency: None,
            discovery_address: "istiod.istio-system.svc:15012".into(),
        }
    }
}

impl ProxyConfig {
    /// Only the fields that the resources of a proxy depend on. The others have their defaults.
    #[must_use]
    pub fn of_resources(&self) -> Self {
        let tracing = self.tracing.as_ref().map(|tracing| Tracing {
            custom_tags: tracing.custom_tags.clone(),
            max_path_tag_length: tracing.max_path_tag_length,
            sampling: tracing.sampling,
            enable_istio_tags: tracing.enable_istio_tags,
            ..Tracing::default()
        });
        Self {
            tracing: tracing.filter(|tracing| *tracing != Tracing::default()),
            gateway_topology: self.gateway_topology.clone(),
            proxy_headers: self.proxy_headers.clone().filter(|headers| *headers != ProxyHeaders::default()),
            private_key_provider: self.private_key_provider.clone(),
            connection_settings: self.connection_settings.clone(),
            ..Self::default()
        }
    }
}

/// Format of the service name in traces.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum TracingServiceName {
    /// `app` label and namespace.
    #[default]
    AppLabelAndNamespace,
    /// Canonical name.
    CanonicalNameOnly,
    /// Canonical name and namespace.
    CanonicalNameAndNamespace,
}

/// Tracing by the proxy's own configuration.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Tracing {
    /// The tracer, if set.
    pub tracer: Option<Tracer>,
    /// Tags by name.
    pub custom_tags: BTreeMap<Text, CustomTag>,
    /// Maximum length of the path tag, 0 if unset.
    pub max_path_tag_length: u32,
    /// Share of requests that are traced, in percent; zero is the default.
    pub sampling: Decimal,
    /// TLS to the tracer.
    pub tls_settings: Option<ClientTls>,
    /// Whether spans have tags about the mesh; unset is true.
    pub enable_istio_tags: Option<bool>,
}

/// A tracer of [`Tracing`].
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum Tracer {
    /// Address of a Zipkin collector.
    Zipkin(Text),
    /// Address and access token of Lightstep.
    Lightstep(Text, Text),
    /// Address of a Datadog agent.
    Datadog(Text),
    /// Stackdriver.
    Stackdriver,
    /// Address of an OpenCensus agent.
    OpenCensusAgent(Text),
}

/// A tag of every span.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum CustomTag {
    /// A constant.
    Literal(Text),
    /// An environment variable of the proxy: name and default.
    Environment(Text, Text),
    /// A request header: name and default.
    Header(Text, Text),
}

/// Address of a service outside the mesh.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RemoteService {
    /// `host:port`.
    pub address: Text,
    /// TLS to it.
    pub tls_settings: Option<ClientTls>,
    /// Keepalive probes.
    pub tcp_keepalive: Option<TcpKeepalive>,
}

/// What a proxy does with client certificates in `x-forwarded-client-cert`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "Envoy's own names")]
pub enum ForwardClientCert {
    /// The default of the listener.
    #[default]
    Undefined,
    Sanitize,
    ForwardOnly,
    AppendForward,
    SanitizeSet,
    AlwaysForwardOnly,
}

/// The network topology in front of a gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Topology {
    /// Number of proxies in front whose `x-forwarded-for` is trusted.
    pub num_trusted_proxies: u32,
    /// Client certificate header.
    pub forward_client_cert: ForwardClientCert,
    /// Whether connections start with the PROXY protocol.
    pub proxy_protocol: bool,
}

/// Headers that a proxy adds or changes. `None` keeps the default.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ProxyHeaders {
    /// Client certificate header.
    pub forwarded_client_cert: ForwardClientCert,
    /// Parts of the certificate in it, if set.
    pub set_current_client_cert_details: Option<CurrentClientCert>,
    /// `x-request-id` is not generated.
    pub request_id_disabled: Option<bool>,
    /// The `server` header is not changed.
    pub server_disabled: Option<bool>,
    /// Value of the `server` header, empty for the default.
    pub server_value: Text,
    /// `x-envoy-attempt-count` is not added.
    pub attempt_count_disabled: Option<bool>,
    /// `x-envoy-*` debug headers are not added.
    pub envoy_debug_headers_disabled: Option<bool>,
    /// Metadata exchange headers are sent within the mesh only.
    pub metadata_exchange_in_mesh: bool,
    /// HTTP/1.1 header names keep their case.
    pub preserve_http1_header_case: Option<bool>,
    /// `x-forwarded-host` is added.
    pub x_forwarded_host_enabled: Option<bool>,
    /// `x-forwarded-port` is added.
    pub x_forwarded_port_enabled: Option<bool>,
}

/// Parts of a client certificate to forward.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct CurrentClientCert {
    /// Subject.
    pub subject: Option<bool>,
    /// The certificate.
    pub cert: Option<bool>,
    /// Its chain.
    pub chain: Option<bool>,
    /// DNS names.
    pub dns: Option<bool>,
    /// URI names.
    pub uri: Option<bool>,
}

/// Hardware acceleration of private-key operations.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct PrivateKeyProvider {
    /// QAT instead of CryptoMB.
    pub qat: bool,
    /// Maximum time to collect operations for a batch.
    pub poll_delay: Option<Duration>,
    /// Use software if the hardware is absent.
    pub fallback: Option<bool>,
}

/// Action for header names with underscores.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "Envoy's own names")]
pub enum HeadersWithUnderscores {
    #[default]
    Unspecified,
    Allow,
    RejectRequest,
    DropHeader,
}

/// Action for paths with escaped slashes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "Envoy's own names")]
pub enum EscapedSlashes {
    #[default]
    Unspecified,
    KeepUnchanged,
    RejectRequest,
    UnescapeAndRedirect,
    UnescapeAndForward,
}

/// Limits of the connections of a proxy; `None` is the default.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ConnectionSettings {
    /// The defaults of an edge rather than of a sidecar.
    pub edge: bool,
    /// Buffer of a listener's connection.
    pub listener_buffer_limit_bytes: Option<i32>,
    /// Buffer of a cluster's connection.
    pub cluster_buffer_limit_bytes: Option<i32>,
    /// Longest time without streams.
    pub http_idle_timeout: Option<Duration>,
    /// Longest life of a connection.
    pub http_max_connection_duration: Option<Duration>,
    /// Time between the notice and the end of a connection.
    pub http_drain_timeout: Option<Duration>,
    /// Longest time for a request to arrive whole.
    pub http_request_timeout: Option<Duration>,
    /// Longest time for request headers to arrive.
    pub http_request_headers_timeout: Option<Duration>,
    /// Longest time without bytes on a stream.
    pub http_stream_idle_timeout: Option<Duration>,
    /// Longest life of a stream.
    pub http_max_stream_duration: Option<Duration>,
    /// Most streams on a connection.
    pub http_max_concurrent_streams: Option<i32>,
    /// HTTP/2 window of a stream, in bytes.
    pub http2_initial_stream_window_bytes: Option<i32>,
    /// HTTP/2 window of a connection, in bytes.
    pub http2_initial_connection_window_bytes: Option<i32>,
    /// Header names with underscores.
    pub headers_with_underscores: HeadersWithUnderscores,
    /// Adjacent slashes of paths are merged.
    pub merge_slashes: Option<bool>,
    /// Paths with escaped slashes.
    pub escaped_slashes: EscapedSlashes,
    /// Most connections of a listener.
    pub listener_connection_limit: Option<i32>,
    /// Most connections of the proxy.
    pub global_downstream_connection_limit: Option<i32>,
}
