//! Extension providers of the mesh config (C16).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::Text;

/// A provider that Telemetry, AuthorizationPolicy or defaults name.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ExtensionProvider {
    /// Its name.
    pub name: Text,
    /// What it is.
    pub kind: ProviderKind,
}

/// A service and one of its ports: `[namespace/]host`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ProviderService {
    /// Host as written, may have a namespace in front.
    pub service: Text,
    /// Port.
    pub port: u32,
}

/// Format of a log.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum LogFormat {
    /// A line of text.
    Text(Text),
    /// A JSON object: its canonical text.
    Labels(Text),
}

/// Body of a request that is checked.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ExtAuthzRequestBody {
    /// Most bytes of it.
    pub max_request_bytes: u32,
    /// A longer body is checked by its beginning.
    pub allow_partial_message: bool,
    /// As bytes rather than as text.
    pub pack_as_bytes: bool,
}

/// What external authorization over HTTP and gRPC share.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ExtAuthz {
    /// The service that decides.
    pub service: ProviderService,
    /// Longest time for an answer.
    pub timeout: Option<Duration>,
    /// Requests pass when it does not answer.
    pub fail_open: bool,
    /// Routes are chosen again afterwards.
    pub clear_route_cache: bool,
    /// HTTP status when it does not answer, empty for the default.
    pub status_on_error: Text,
    /// The body it sees.
    pub include_request_body: Option<ExtAuthzRequestBody>,
}

/// Headers of external authorization over HTTP.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ExtAuthzHttp {
    /// Prefix of the path asked.
    pub path_prefix: Text,
    /// Old form of `include_request_headers`.
    pub include_headers: Vec<Text>,
    /// Request headers it sees.
    pub include_request_headers: Vec<Text>,
    /// Headers added for it.
    pub include_additional_headers: BTreeMap<Text, Text>,
    /// Headers of its answer for the upstream.
    pub headers_to_upstream_on_allow: Vec<Text>,
    /// Headers of its refusal for the client.
    pub headers_to_downstream_on_deny: Vec<Text>,
    /// Headers of its answer for the client.
    pub headers_to_downstream_on_allow: Vec<Text>,
}

/// A header a tracer is sent.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ProviderHeader {
    /// Name.
    pub name: Text,
    /// Its value, or the name of an environment variable of the control plane.
    pub value: HeaderValue,
}

/// Where a header's value comes from.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum HeaderValue {
    /// The text.
    Value(Text),
    /// An environment variable of the control plane: its name, and its value, which whoever reads the mesh config fills
    /// in. It is kept out of the mesh config because it is secret.
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

impl Serialize for HeaderValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

/// OTLP over HTTP.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpExporter {
    /// Path posted to.
    pub path: Text,
    /// Longest time for an answer.
    pub timeout: Option<Duration>,
    /// Headers added.
    pub headers: Vec<ProviderHeader>,
}

/// OTLP over gRPC.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct GrpcExporter {
    /// Longest time for an answer.
    pub timeout: Option<Duration>,
    /// Metadata added.
    pub initial_metadata: Vec<ProviderHeader>,
}

/// Sampling as Dynatrace does it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct DynatraceSampler {
    /// Tenant.
    pub tenant: Text,
    /// Cluster of the tenant.
    pub cluster_id: i32,
    /// Most root spans a minute, 0 for the default.
    pub root_spans_per_minute: u32,
    /// Where its configuration comes from, if not from the tracing service.
    pub api: Option<(ProviderService, HttpExporter)>,
}

/// OpenTelemetry tracing.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct OpenTelemetryTracing {
    /// The collector.
    pub service: ProviderService,
    /// Longest tag, 0 for the default.
    pub max_tag_length: u32,
    /// Export over HTTP.
    pub http: Option<HttpExporter>,
    /// Export over gRPC.
    pub grpc: Option<GrpcExporter>,
    /// Resource attributes from the environment.
    pub detect_environment: bool,
    /// Resource attributes from Dynatrace's files.
    pub detect_dynatrace: bool,
    /// Service attributes by OpenTelemetry's conventions rather than by canonical names.
    pub otel_semantic_conventions: bool,
    /// Sampler, if not the usual one.
    pub dynatrace_sampler: Option<DynatraceSampler>,
}

/// What a provider is.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ProviderKind {
    /// External authorization over HTTP.
    ExtAuthzHttp(Box<(ExtAuthz, ExtAuthzHttp)>),
    /// External authorization over gRPC.
    ExtAuthzGrpc(Box<ExtAuthz>),
    /// Zipkin tracing.
    Zipkin {
        /// The collector.
        service: ProviderService,
        /// Longest tag, 0 for the default.
        max_tag_length: u32,
        /// Trace ids of 64 rather than 128 bits.
        enable_64bit_trace_id: bool,
        /// Path posted to, empty for the default.
        path: Text,
        /// W3C trace context beside B3.
        with_w3c: bool,
        /// Longest time for an answer.
        timeout: Option<Duration>,
        /// Headers added.
        headers: Vec<ProviderHeader>,
    },
    /// Lightstep tracing.
    Lightstep {
        /// The collector.
        service: ProviderService,
        /// Longest tag, 0 for the default.
        max_tag_length: u32,
        /// Its token.
        access_token: Text,
    },
    /// Datadog tracing.
    Datadog {
        /// The agent.
        service: ProviderService,
        /// Longest tag, 0 for the default.
        max_tag_length: u32,
    },
    /// Skywalking tracing.
    SkyWalking {
        /// The collector.
        service: ProviderService,
        /// Its token.
        access_token: Text,
    },
    /// OpenCensus tracing, which proxies no longer have.
    OpenCensusAgent {
        /// The agent.
        service: ProviderService,
        /// Longest tag, 0 for the default.
        max_tag_length: u32,
    },
    /// OpenTelemetry tracing.
    OpenTelemetry(Box<OpenTelemetryTracing>),
    /// Stackdriver metrics, logs and traces.
    Stackdriver {
        /// Longest tag, 0 for the default.
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
        /// Its format, if not the mesh's.
        format: Option<LogFormat>,
        /// Empty values are left out of JSON.
        omit_empty_values: bool,
    },
    /// Access log of HTTP to a gRPC service.
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
    /// Access log of TCP to a gRPC service.
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
    /// Secrets from another server.
    Sds {
        /// Name of the secret source.
        name: Text,
        /// The server.
        service: ProviderService,
    },
    /// Nothing is said, or something this version does not know.
    Unknown,
}

impl ProviderKind {
    /// Headers that a tracer is sent.
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
