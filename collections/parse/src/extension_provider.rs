//! Extension providers of the mesh config (C16).

use serde_json::Value;
use sluice_model::{
    DynatraceSampler, ExtAuthz, ExtAuthzHttp, ExtAuthzRequestBody, ExtensionProvider, GrpcExporter, HeaderValue,
    HttpExporter, LogFormat, OpenTelemetryTracing, ProviderHeader, ProviderKind, ProviderService, Text,
};

use crate::Fields;

/// One entry of `extensionProviders`.
pub(crate) fn extension_provider(fields: &Fields<'_>) -> ExtensionProvider {
    let name = fields.text("name");
    let kind = authorization(fields).or_else(|| tracing(fields)).or_else(|| metrics_and_logs(fields));
    if name.is_empty() {
        fields.reject("name", "the name of a provider is required");
    }
    if kind.is_none() {
        fields.warn("", "unknown provider type; the provider is ignored");
    }
    ExtensionProvider { name, kind: kind.unwrap_or(ProviderKind::Unknown) }
}

fn service(fields: &Fields<'_>) -> ProviderService {
    ProviderService { service: fields.text("service"), port: fields.integer("port") }
}

fn authorization(fields: &Fields<'_>) -> Option<ProviderKind> {
    let shared = |of: &Fields<'_>| ExtAuthz {
        service: service(of),
        timeout: of.opt_duration("timeout"),
        fail_open: of.bool("failOpen"),
        clear_route_cache: of.bool("clearRouteCache"),
        status_on_error: of.text("statusOnError"),
        include_request_body: of.read("includeRequestBodyInCheck", |body| ExtAuthzRequestBody {
            max_request_bytes: body.integer("maxRequestBytes"),
            allow_partial_message: body.bool("allowPartialMessage"),
            pack_as_bytes: body.bool("packAsBytes"),
        }),
    };
    if let Some(http) = fields.object("envoyExtAuthzHttp") {
        let own = ExtAuthzHttp {
            path_prefix: http.text("pathPrefix"),
            include_headers: http.texts("includeHeadersInCheck"),
            include_request_headers: http.texts("includeRequestHeadersInCheck"),
            include_additional_headers: http.text_map("includeAdditionalHeadersInCheck"),
            headers_to_upstream_on_allow: http.texts("headersToUpstreamOnAllow"),
            headers_to_downstream_on_deny: http.texts("headersToDownstreamOnDeny"),
            headers_to_downstream_on_allow: http.texts("headersToDownstreamOnAllow"),
        };
        return Some(ProviderKind::ExtAuthzHttp(Box::new((shared(&http), own))));
    }
    fields.read("envoyExtAuthzGrpc", |grpc| ProviderKind::ExtAuthzGrpc(Box::new(shared(grpc))))
}

fn tracing(fields: &Fields<'_>) -> Option<ProviderKind> {
    if let Some(zipkin) = fields.object("zipkin") {
        let contexts = [("USE_B3", false), ("USE_B3_WITH_W3C_PROPAGATION", true)];
        return Some(ProviderKind::Zipkin {
            service: service(&zipkin),
            max_tag_length: zipkin.integer("maxTagLength"),
            enable_64bit_trace_id: zipkin.bool("enable64bitTraceId"),
            path: zipkin.text("path"),
            with_w3c: zipkin.choice("traceContextOption", &contexts).unwrap_or_default(),
            timeout: zipkin.opt_duration("timeout"),
            headers: zipkin.list("headers", header),
        });
    }
    if let Some(lightstep) = fields.object("lightstep") {
        return Some(ProviderKind::Lightstep {
            service: service(&lightstep),
            max_tag_length: lightstep.integer("maxTagLength"),
            access_token: lightstep.text("accessToken"),
        });
    }
    if let Some(datadog) = fields.object("datadog") {
        let max_tag_length = datadog.integer("maxTagLength");
        return Some(ProviderKind::Datadog { service: service(&datadog), max_tag_length });
    }
    if let Some(skywalking) = fields.object("skywalking") {
        let access_token = skywalking.text("accessToken");
        return Some(ProviderKind::SkyWalking { service: service(&skywalking), access_token });
    }
    if let Some(agent) = fields.object("opencensus") {
        agent.has("context");
        let max_tag_length = agent.integer("maxTagLength");
        return Some(ProviderKind::OpenCensusAgent { service: service(&agent), max_tag_length });
    }
    fields.read("opentelemetry", |otel| ProviderKind::OpenTelemetry(Box::new(opentelemetry(otel))))
}

fn opentelemetry(fields: &Fields<'_>) -> OpenTelemetryTracing {
    let enrichments = [("ISTIO_CANONICAL", false), ("OTEL_SEMANTIC_CONVENTIONS", true)];
    let detectors = fields.object("resourceDetectors");
    let detects = |name: &str| detectors.as_ref().is_some_and(|detectors| detectors.has(name));
    OpenTelemetryTracing {
        service: service(fields),
        max_tag_length: fields.integer("maxTagLength"),
        http: fields.read("http", http_exporter),
        grpc: fields.read("grpc", |grpc| GrpcExporter {
            timeout: grpc.opt_duration("timeout"),
            initial_metadata: grpc.list("initialMetadata", header),
        }),
        detect_environment: detects("environment"),
        detect_dynatrace: detects("dynatrace"),
        otel_semantic_conventions: fields.choice("serviceAttributeEnrichment", &enrichments).unwrap_or_default(),
        dynatrace_sampler: fields.read("dynatraceSampler", |sampler| DynatraceSampler {
            tenant: sampler.text("tenant"),
            cluster_id: sampler.integer("clusterId"),
            root_spans_per_minute: sampler.integer("rootSpansPerMinute"),
            api: sampler.read("httpService", |api| (service(api), api.read("http", http_exporter).unwrap_or_default())),
        }),
    }
}

fn http_exporter(fields: &Fields<'_>) -> HttpExporter {
    HttpExporter {
        path: fields.text("path"),
        timeout: fields.opt_duration("timeout"),
        headers: fields.list("headers", header),
    }
}

fn header(fields: &Fields<'_>) -> ProviderHeader {
    let value = match fields.opt_text("envName") {
        Some(variable) => HeaderValue::Environment(variable, Text::default()),
        None => HeaderValue::Value(fields.text("value")),
    };
    ProviderHeader { name: fields.text("name"), value }
}

fn metrics_and_logs(fields: &Fields<'_>) -> Option<ProviderKind> {
    if let Some(stackdriver) = fields.object("stackdriver") {
        for name in ["debug", "maxNumberOfAttributes", "maxNumberOfAnnotations", "maxNumberOfMessageEvents"] {
            stackdriver.has(name);
        }
        return Some(ProviderKind::Stackdriver {
            max_tag_length: stackdriver.integer("maxTagLength"),
            logging_labels: stackdriver.read("logging", |logging| logging.text_map("labels")),
        });
    }
    if fields.has("prometheus") {
        return Some(ProviderKind::Prometheus);
    }
    if let Some(file) = fields.object("envoyFileAccessLog") {
        let format = file.object("logFormat").and_then(|format| match format.opt_text("text") {
            Some(text) => Some(LogFormat::Text(text)),
            None => canonical(&format, "labels").map(LogFormat::Labels),
        });
        return Some(ProviderKind::FileAccessLog {
            path: file.text("path"),
            format,
            omit_empty_values: file.bool("omitEmptyValues"),
        });
    }
    if let Some(http) = fields.object("envoyHttpAls") {
        return Some(ProviderKind::HttpAccessLogService {
            service: service(&http),
            log_name: http.text("logName"),
            filter_state: http.texts("filterStateObjectsToLog"),
            request_headers: http.texts("additionalRequestHeadersToLog"),
            response_headers: http.texts("additionalResponseHeadersToLog"),
            response_trailers: http.texts("additionalResponseTrailersToLog"),
        });
    }
    if let Some(tcp) = fields.object("envoyTcpAls") {
        return Some(ProviderKind::TcpAccessLogService {
            service: service(&tcp),
            log_name: tcp.text("logName"),
            filter_state: tcp.texts("filterStateObjectsToLog"),
        });
    }
    if let Some(otel) = fields.object("envoyOtelAls") {
        let format = otel.object("logFormat");
        return Some(ProviderKind::OpenTelemetryLog {
            service: service(&otel),
            log_name: otel.text("logName"),
            text: format.as_ref().and_then(|format| format.opt_text("text")),
            labels: format.as_ref().and_then(|format| canonical(format, "labels")),
        });
    }
    fields.read("sds", |sds| ProviderKind::Sds { name: sds.text("name"), service: service(sds) })
}

/// Maximum nesting of the labels of a log format. Envoy rejects messages that are nested deeper than 100 levels, and one
/// level here is three levels of the message.
const MAX_LABEL_DEPTH: usize = 16;

/// The JSON text of a field, with sorted keys.
fn canonical(fields: &Fields<'_>, name: &str) -> Option<Text> {
    let value = fields.value(name)?;
    is_log_format(fields, name, value).then(|| value.to_string().into())
}

/// Whether Envoy can decode a JSON log format. Records an error of the field if it cannot.
pub(crate) fn is_log_format(fields: &Fields<'_>, name: &str, value: &Value) -> bool {
    let fits = depth(value) <= MAX_LABEL_DEPTH;
    if !fits {
        fields.reject(name, format!("nested deeper than {MAX_LABEL_DEPTH} levels; the format is ignored"));
    }
    fits
}

/// Nesting of maps and lists. The recursion is bounded: the reader of the value limits its depth.
fn depth(value: &Value) -> usize {
    let inner = match value {
        Value::Object(map) => map.values().map(depth).max(),
        Value::Array(list) => list.iter().map(depth).max(),
        _ => return 0,
    };
    1 + inner.unwrap_or(0)
}
