//! Extension providers of the mesh config (C16).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Text;

/// A provider that Telemetry, AuthorizationPolicy or the default providers refer to.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ExtensionProvider {
    /// Its name.
    pub name: Text,
    /// Its kind and settings.
    pub kind: ProviderKind,
}

/// A service and one of its ports: `[namespace/]host`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ProviderService {
    /// Host as configured, may have a namespace prefix.
    pub service: Text,
    /// Port.
    pub port: u32,
}

/// Format of a log.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum LogFormat {
    /// A line of text.
    Text(Text),
    /// A JSON object: its canonical text.
    Labels(Text),
}

/// The request body in checks.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ExtAuthzRequestBody {
    /// Maximum size in bytes.
    pub max_request_bytes: u32,
    /// For a longer body, the check gets the beginning.
    pub allow_partial_message: bool,
    /// As bytes instead of text.
    pub pack_as_bytes: bool,
}

/// Settings of external authorization, over HTTP and gRPC.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ExtAuthz {
    /// The authorization service.
    pub service: ProviderService,
    /// Timeout.
    pub timeout: Option<Duration>,
    /// Requests are allowed when the service does not respond.
    pub fail_open: bool,
    /// The route cache is cleared after the check.
    pub clear_route_cache: bool,
    /// HTTP status when the service does not respond, empty for the default.
    pub status_on_error: Text,
    /// The request body that the service gets.
    pub include_request_body: Option<ExtAuthzRequestBody>,
}

/// Headers of external authorization over HTTP.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ExtAuthzHttp {
    /// Path prefix of check requests.
    pub path_prefix: Text,
    /// Old form of `include_request_headers`.
    pub include_headers: Vec<Text>,
    /// Request headers that the service gets.
    pub include_request_headers: Vec<Text>,
    /// Headers added to the check request.
    pub include_additional_headers: BTreeMap<Text, Text>,
    /// Headers of the response that are forwarded upstream.
    pub headers_to_upstream_on_allow: Vec<Text>,
    /// Headers of a deny response that are forwarded to the client.
    pub headers_to_downstream_on_deny: Vec<Text>,
    /// Headers of an allow response that are forwarded to the client.
    pub headers_to_downstream_on_allow: Vec<Text>,
}

/// A header in requests to a tracer.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ProviderHeader {
    /// Name.
    pub name: Text,
    /// Its value, or the name of an environment variable of the control plane.
    pub value: HeaderValue,
}

/// Value of a header.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum HeaderValue {
    /// The text.
    Value(Text),
    /// An environment variable of the control plane: its name, and its value, which the reader of the mesh config fills
    /// in. The value is a secret, so it is not part of the mesh config.
    Environment(Text, Text),
}

impl HeaderValue {
    /// The value to send.
    #[must_use]
    pub fn value(&self) -> &Text {
        match self {
            Self::Value(value) | Self::Environment(_, value) => value,
        }
    }
}

impl fmt::Debug for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Environment(name, _) => f.debug_tuple("Environment").field(name).finish(),
        }
    }
}

/// The form in which the value of a variable is not shown.
#[derive(Serialize, Deserialize)]
enum PublicHeaderValue {
    Value(Text),
    Environment(Text),
}

impl Serialize for HeaderValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let public = match self {
            Self::Value(value) => PublicHeaderValue::Value(value.clone()),
            Self::Environment(name, _) => PublicHeaderValue::Environment(name.clone()),
        };
        public.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HeaderValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PublicHeaderValue::deserialize(deserializer).map(|public| match public {
            PublicHeaderValue::Value(value) => Self::Value(value),
            PublicHeaderValue::Environment(name) => Self::Environment(name, Text::default()),
        })
    }
}

/// OTLP over HTTP.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpExporter {
    /// Path of requests.
    pub path: Text,
    /// Timeout.
    pub timeout: Option<Duration>,
    /// Additional headers.
    pub headers: Vec<ProviderHeader>,
}

/// OTLP over gRPC.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GrpcExporter {
    /// Timeout.
    pub timeout: Option<Duration>,
    /// Additional metadata.
    pub initial_metadata: Vec<ProviderHeader>,
}

/// The Dynatrace sampler.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct DynatraceSampler {
    /// Tenant.
    pub tenant: Text,
    /// Cluster of the tenant.
    pub cluster_id: i32,
    /// Maximum number of root spans per minute, 0 for the default.
    pub root_spans_per_minute: u32,
    /// Service with its configuration, if not the tracing service.
    pub api: Option<(ProviderService, HttpExporter)>,
}

/// OpenTelemetry tracing.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct OpenTelemetryTracing {
    /// The collector.
    pub service: ProviderService,
    /// Maximum tag length, 0 for the default.
    pub max_tag_length: u32,
    /// Export over HTTP.
    pub http: Option<HttpExporter>,
    /// Export over gRPC.
    pub grpc: Option<GrpcExporter>,
    /// Resource attributes from the environment variables.
    pub detect_environment: bool,
    /// Resource attributes from Dynatrace's files.
    pub detect_dynatrace: bool,
    /// Service attributes by OpenTelemetry's conventions instead of canonical names.
    pub otel_semantic_conventions: bool,
    /// Sampler, if not the default.
    pub dynatrace_sampler: Option<DynatraceSampler>,
}

/// Kind and settings of a provider.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ProviderKind {
    /// External authorization over HTTP.
    ExtAuthzHttp(Box<(ExtAuthz, ExtAuthzHttp)>),
    /// External authorization over gRPC.
    ExtAuthzGrpc(Box<ExtAuthz>),
    /// Zipkin tracing.
    Zipkin {
        /// The collector.
        service: ProviderService,
        /// Maximum tag length, 0 for the default.
        max_tag_length: u32,
        /// Trace ids of 64 instead of 128 bits.
        enable_64bit_trace_id: bool,
        /// Path of requests, empty for the default.
        path: Text,
        /// W3C trace context in addition to B3.
        with_w3c: bool,
        /// Timeout.
        timeout: Option<Duration>,
        /// Additional headers.
        headers: Vec<ProviderHeader>,
    },
    /// Lightstep tracing.
    Lightstep {
        /// The collector.
        service: ProviderService,
        /// Maximum tag length, 0 for the default.
        max_tag_length: u32,
        /// Its token.
        access_token: Text,
    },
    /// Datadog tracing.
    Datadog {
        /// The agent.
        service: ProviderService,
        /// Maximum tag length, 0 for the default.
        max_tag_length: u32,
    },
    /// Skywalking tracing.
    SkyWalking {
        /// The collector.
        service: ProviderService,
        /// Its token.
        access_token: Text,
    },
    /// OpenCensus tracing, which proxies no longer support.
    OpenCensusAgent {
        /// The agent.
        service: ProviderService,
        /// Maximum tag length, 0 for the default.
        max_tag_length: u32,
    },
    /// OpenTelemetry tracing.
    OpenTelemetry(Box<OpenTelemetryTracing>),
    /// Stackdriver metrics, logs and traces.
    Stackdriver {
        /// Maximum tag length, 0 for the default.
        max_tag_length: u32,
        /// Labels of log entries, if logging is configured.
        logging_labels: Option<BTreeMap<Text, Text>>,
    },
    /// Prometheus metrics.
    Prometheus,
    /// Access log to a file.
    FileAccessLog {
        /// Its path.
        path: Text,
        /// Its format, if not that of the mesh.
        format: Option<LogFormat>,
        /// Empty values are omitted from JSON.
        omit_empty_values: bool,
    },
    /// HTTP access log to a gRPC service.
    HttpAccessLogService {
        /// The service.
        service: ProviderService,
        /// Name of the log, empty for the default.
        log_name: Text,
        /// Filter state to log.
        filter_state: Vec<Text>,
        /// Request headers to log.
        request_headers: Vec<Text>,
        /// Response headers to log.
        response_headers: Vec<Text>,
        /// Response trailers to log.
        response_trailers: Vec<Text>,
    },
    /// TCP access log to a gRPC service.
    TcpAccessLogService {
        /// The service.
        service: ProviderService,
        /// Name of the log, empty for the default.
        log_name: Text,
        /// Filter state to log.
        filter_state: Vec<Text>,
    },
    /// Access log to an OpenTelemetry collector.
    OpenTelemetryLog {
        /// The collector.
        service: ProviderService,
        /// Name of the log, empty for the default.
        log_name: Text,
        /// Body of entries, if not the default.
        text: Option<Text>,
        /// Attributes of entries: canonical JSON text of the object, if any.
        labels: Option<Text>,
    },
    /// Secrets from an SDS server.
    Sds {
        /// Name of the secret source.
        name: Text,
        /// The server.
        service: ProviderService,
    },
    /// Unset, or a kind that is not supported.
    Unknown,
}

impl ProviderKind {
    /// Headers in requests to a tracer.
    pub fn headers_mut(&mut self) -> Vec<&mut ProviderHeader> {
        match self {
            Self::Zipkin { headers, .. } => headers.iter_mut().collect(),
            Self::OpenTelemetry(otel) => {
                let http = otel.http.iter_mut().flat_map(|http| &mut http.headers);
                let grpc = otel.grpc.iter_mut().flat_map(|grpc| &mut grpc.initial_metadata);
                let sampler = otel.dynatrace_sampler.iter_mut().flat_map(|sampler| &mut sampler.api);
                http.chain(grpc).chain(sampler.flat_map(|(_, api)| &mut api.headers)).collect()
            }
            _ => Vec::new(),
        }
    }
}
