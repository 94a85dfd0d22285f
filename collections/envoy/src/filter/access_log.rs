//! Access logs (T03).

use envoy_types::pb::envoy::config::accesslog::v3::{
    AccessLog, AccessLogFilter, AndFilter, ComparisonFilter, ExtensionFilter, ResponseFlagFilter, StatusCodeFilter,
    access_log::ConfigType, access_log_filter::FilterSpecifier, comparison_filter, extension_filter,
};
use envoy_types::pb::envoy::config::core::v3::{
    ApiVersion, DataSource, JsonFormatOptions, RuntimeUInt32, SubstitutionFormatString, TypedExtensionConfig,
    data_source::Specifier, substitution_format_string::Format,
};
use envoy_types::pb::envoy::extensions::access_loggers::{
    file::v3::{FileAccessLog, file_access_log::AccessLogFormat},
    filters::cel::v3::ExpressionFilter,
    grpc::v3::{CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig, TcpGrpcAccessLogConfig},
    open_telemetry::v3::OpenTelemetryAccessLogConfig,
};
use envoy_types::pb::envoy::extensions::formatter::req_without_query::v3::ReqWithoutQuery;
use envoy_types::pb::google::protobuf::{Any, Struct, value::Kind};
use envoy_types::pb::opentelemetry::proto::common::v1::{AnyValue, KeyValue, KeyValueList, any_value};
use sluice_model::{AccessLogEncoding, ExtensionProvider, LogFormat, ProviderKind, Text};

use crate::listener_settings::{Collector, ListenerClass, ListenerSettings, LogSpec};
use crate::wire::{any, json_value, string_value, structure};

/// Cluster of the access log service, which the bootstrap declares.
const SERVICE_CLUSTER: &str = "envoy_accesslog_service";

const TEXT_FORMAT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
    %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
    \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
    %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
    \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% \
    %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n";

/// Fields of the default JSON format.
const JSON_FIELDS: [(&str, &str); 24] = [
    ("start_time", "%START_TIME%"),
    ("route_name", "%ROUTE_NAME%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    ("connection_termination_details", "%CONNECTION_TERMINATION_DETAILS%"),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("duration", "%DURATION%"),
    ("upstream_service_time", "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"),
    ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("authority", "%REQ(:AUTHORITY)%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER_RAW%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("requested_server_name", "%REQUESTED_SERVER_NAME%"),
    ("upstream_transport_failure_reason", "%UPSTREAM_TRANSPORT_FAILURE_REASON%"),
];

/// Filter state that is sent to a log service.
const PEER_STATE: [&str; 2] = ["upstream_peer", "downstream_peer"];
/// The same, including the names in older proxies.
const ALL_PEER_STATE: [&str; 6] = [
    "upstream_peer",
    "downstream_peer",
    "wasm.upstream_peer",
    "wasm.upstream_peer_id",
    "wasm.downstream_peer",
    "wasm.downstream_peer_id",
];

pub(super) fn http_access_logs(settings: &ListenerSettings, class: ListenerClass) -> Vec<AccessLog> {
    logs(settings, class, Some("http_envoy_accesslog"), None)
}

pub(crate) fn tcp_access_logs(settings: &ListenerSettings, class: ListenerClass) -> Vec<AccessLog> {
    logs(settings, class, Some("tcp_envoy_accesslog"), None)
}

/// Access logs of a listener that makes tunnels: only failures to connect, because the listener before it logs the
/// rest.
pub(crate) fn connection_failure_logs(settings: &ListenerSettings, class: ListenerClass) -> Vec<AccessLog> {
    logs(settings, class, None, Some(&with_flags(&["UF"])))
}

/// Access logs of a listener that terminates tunnels: only refused ones, because the listener behind it logs the rest.
pub(super) fn tunnel_access_logs(settings: &ListenerSettings, class: ListenerClass) -> Vec<AccessLog> {
    let refused = StatusCodeFilter {
        comparison: Some(ComparisonFilter {
            op: comparison_filter::Op::Ge as i32,
            // Envoy requires a runtime key. No runtime has this one.
            value: Some(RuntimeUInt32 { default_value: 400, runtime_key: "istio.io/unset".to_owned() }),
        }),
    };
    let filter = AccessLogFilter { filter_specifier: Some(FilterSpecifier::StatusCodeFilter(refused)) };
    logs(settings, class, None, Some(&filter))
}

fn with_flags(flags: &[&str]) -> AccessLogFilter {
    let flags = ResponseFlagFilter { flags: flags.iter().map(|flag| (*flag).to_owned()).collect() };
    AccessLogFilter { filter_specifier: Some(FilterSpecifier::ResponseFlagFilter(flags)) }
}

/// Access logs of a listener: connections that match no filter chain appear only here.
pub(crate) fn listener_access_log(settings: &ListenerSettings, class: ListenerClass) -> Vec<AccessLog> {
    if settings.mesh.disable_envoy_listener_log {
        return Vec::new();
    }
    logs(settings, class, Some("listener_envoy_accesslog"), Some(&with_flags(&["NR"])))
}

/// Access logs of the effective providers; if none is usable, by the settings of `MeshConfig`: a file, and the log service
/// under the name `service_log`. As in Istio, the log service gets none of tunnels.
fn logs(
    settings: &ListenerSettings,
    class: ListenerClass,
    service_log: Option<&str>,
    filter: Option<&AccessLogFilter>,
) -> Vec<AccessLog> {
    let specs = settings.observed(class).logging.iter().flatten();
    let mut known: Vec<(&ExtensionProvider, AccessLog, &LogSpec)> = specs
        .filter_map(|(name, spec)| {
            let provider = settings.provider(name)?;
            Some((provider, provider_log(settings, provider)?, spec))
        })
        .collect();
    if known.is_empty() {
        return legacy(settings, service_log, filter);
    }
    known.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    let enabled = known.into_iter().filter(|(_, _, spec)| !spec.disabled);
    let filtered = enabled.map(|(_, log, spec)| {
        let filters = filter.cloned().into_iter().chain(spec.filter.as_deref().map(expression));
        AccessLog { filter: all_of(filters.collect()), ..log }
    });
    filtered.collect()
}

/// Access logs by the settings of `MeshConfig`.
fn legacy(settings: &ListenerSettings, service_log: Option<&str>, filter: Option<&AccessLogFilter>) -> Vec<AccessLog> {
    let mesh = &settings.mesh;
    let mut logs = Vec::new();
    if !mesh.access_log_file.is_empty() {
        logs.push(file_log(&mesh.access_log_file, mesh_format(settings)));
    }
    if let Some(service_log) = service_log
        && mesh.enable_envoy_access_log_service
    {
        let collector = Collector { host: Text::default(), cluster: SERVICE_CLUSTER.into() };
        let common = common_config(service_log, &collector, &ALL_PEER_STATE.map(Text::from));
        logs.push(if service_log.starts_with("http") {
            access_log("envoy.access_loggers.http_grpc", any(&http_log(common)))
        } else {
            access_log("envoy.tcp_grpc_access_log", any(&TcpGrpcAccessLogConfig { common_config: Some(common) }))
        });
    }
    for log in &mut logs {
        log.filter = filter.cloned();
    }
    logs
}

fn all_of(mut filters: Vec<AccessLogFilter>) -> Option<AccessLogFilter> {
    if filters.len() < 2 {
        return filters.pop();
    }
    Some(AccessLogFilter { filter_specifier: Some(FilterSpecifier::AndFilter(AndFilter { filters })) })
}

fn expression(text: &str) -> AccessLogFilter {
    let cel = ExpressionFilter { expression: text.to_owned(), ..ExpressionFilter::default() };
    let extension = ExtensionFilter {
        name: "envoy.access_loggers.extension_filters.cel".to_owned(),
        config_type: Some(extension_filter::ConfigType::TypedConfig(any(&cel))),
    };
    AccessLogFilter { filter_specifier: Some(FilterSpecifier::ExtensionFilter(extension)) }
}

fn provider_log(settings: &ListenerSettings, provider: &ExtensionProvider) -> Option<AccessLog> {
    match &provider.kind {
        ProviderKind::FileAccessLog { path, format, omit_empty_values } => {
            let is_default = provider.name == *"envoy" && format.is_none() && !omit_empty_values;
            let mut format = match format {
                _ if is_default => mesh_format(settings),
                None => text_format(""),
                Some(LogFormat::Text(text)) => text_format(text),
                Some(LogFormat::Labels(json)) => json_format(parse_fields(json)),
            };
            format.omit_empty_values = *omit_empty_values;
            let path = if path.is_empty() { "/dev/stdout" } else { path.as_str() };
            Some(file_log(path, format))
        }
        ProviderKind::HttpAccessLogService {
            service,
            log_name,
            filter_state,
            request_headers,
            response_headers,
            response_trailers,
        } => {
            let collector = settings.collectors.get(service)?;
            let common = common_config(or(log_name, "http_envoy_accesslog"), collector, &state(filter_state));
            let texts = |texts: &[Text]| texts.iter().map(Text::to_string).collect();
            let config = HttpGrpcAccessLogConfig {
                additional_request_headers_to_log: texts(request_headers),
                additional_response_headers_to_log: texts(response_headers),
                additional_response_trailers_to_log: texts(response_trailers),
                ..http_log(common)
            };
            Some(access_log("envoy.access_loggers.http_grpc", any(&config)))
        }
        ProviderKind::TcpAccessLogService { service, log_name, filter_state } => {
            let collector = settings.collectors.get(service)?;
            let common = common_config(or(log_name, "tcp_envoy_accesslog"), collector, &state(filter_state));
            let config = TcpGrpcAccessLogConfig { common_config: Some(common) };
            Some(access_log("envoy.tcp_grpc_access_log", any(&config)))
        }
        ProviderKind::OpenTelemetryLog { service, log_name, text, labels } => {
            let collector = settings.collectors.get(service)?;
            let common =
                common_config(or(log_name, "otel_envoy_accesslog"), collector, &ALL_PEER_STATE.map(Text::from));
            let body = text.as_deref().filter(|text| !text.is_empty()).unwrap_or(TEXT_FORMAT);
            let labels = labels.as_deref().and_then(parse_fields);
            Some(access_log("envoy.access_loggers.open_telemetry", any(&open_telemetry(common, body, labels))))
        }
        _ => None,
    }
}

fn or<'a>(name: &'a Text, default: &'a str) -> &'a str {
    if name.is_empty() { default } else { name }
}

fn state(configured: &[Text]) -> Vec<Text> {
    if configured.is_empty() { PEER_STATE.map(Text::from).to_vec() } else { configured.to_vec() }
}

fn open_telemetry(
    common: CommonGrpcAccessLogConfig,
    body: &str,
    labels: Option<Struct>,
) -> OpenTelemetryAccessLogConfig {
    let text = |text: &str| AnyValue { value: Some(any_value::Value::StringValue(text.to_owned())) };
    let mut formatters = formatters(body);
    let mut attributes: Vec<KeyValue> = Vec::new();
    if let Some(labels) = labels {
        if formatters.is_empty() {
            formatters = json_formatters(&labels);
        }
        let value = |value: &envoy_types::pb::google::protobuf::Value| match &value.kind {
            Some(Kind::StringValue(value)) => value.clone(),
            _ => String::new(),
        };
        attributes.extend(labels.fields.iter().map(|(key, field)| KeyValue {
            key: key.clone(),
            value: Some(text(&value(field))),
            ..KeyValue::default()
        }));
        attributes.sort_by(|a, b| a.key.cmp(&b.key));
    }
    #[expect(deprecated, reason = "the replacement fields do not carry filter state")]
    OpenTelemetryAccessLogConfig {
        common_config: Some(common),
        disable_builtin_labels: true,
        body: Some(text(body)),
        attributes: (!attributes.is_empty()).then_some(KeyValueList { values: attributes }),
        formatters,
        ..OpenTelemetryAccessLogConfig::default()
    }
}

fn http_log(common: CommonGrpcAccessLogConfig) -> HttpGrpcAccessLogConfig {
    HttpGrpcAccessLogConfig { common_config: Some(common), ..HttpGrpcAccessLogConfig::default() }
}

fn common_config(log_name: &str, collector: &Collector, filter_state: &[Text]) -> CommonGrpcAccessLogConfig {
    CommonGrpcAccessLogConfig {
        log_name: log_name.to_owned(),
        grpc_service: Some(collector.grpc_service()),
        transport_api_version: ApiVersion::V3 as i32,
        filter_state_objects_to_log: filter_state.iter().map(Text::to_string).collect(),
        ..CommonGrpcAccessLogConfig::default()
    }
}

fn access_log(name: &str, config: Any) -> AccessLog {
    AccessLog { name: name.to_owned(), filter: None, config_type: Some(ConfigType::TypedConfig(config)) }
}

fn file_log(path: &str, format: SubstitutionFormatString) -> AccessLog {
    let config = FileAccessLog { path: path.to_owned(), access_log_format: Some(AccessLogFormat::LogFormat(format)) };
    access_log("envoy.access_loggers.file", any(&config))
}

/// The format in `MeshConfig`. Invalid JSON gives the default JSON format.
fn mesh_format(settings: &ListenerSettings) -> SubstitutionFormatString {
    let mesh = &settings.mesh;
    match mesh.access_log_encoding {
        AccessLogEncoding::Text => text_format(&mesh.access_log_format),
        AccessLogEncoding::Json => json_format(parse_fields(&mesh.access_log_format)),
    }
}

fn text_format(text: &str) -> SubstitutionFormatString {
    let text = match text {
        "" => TEXT_FORMAT.to_owned(),
        line if line.ends_with('\n') => line.to_owned(),
        line => format!("{line}\n"),
    };
    SubstitutionFormatString {
        formatters: formatters(&text),
        format: Some(Format::TextFormatSource(DataSource {
            specifier: Some(Specifier::InlineString(text)),
            ..DataSource::default()
        })),
        ..SubstitutionFormatString::default()
    }
}

fn json_format(fields: Option<Struct>) -> SubstitutionFormatString {
    let fields = fields
        .filter(|fields| !fields.fields.is_empty())
        .unwrap_or_else(|| structure(JSON_FIELDS.iter().map(|(name, value)| (*name, string_value(value)))));
    SubstitutionFormatString {
        formatters: json_formatters(&fields),
        format: Some(Format::JsonFormat(fields)),
        json_format_options: Some(JsonFormatOptions::default()),
        ..SubstitutionFormatString::default()
    }
}

fn parse_fields(json: &str) -> Option<Struct> {
    match json_value(json)?.kind {
        Some(Kind::StructValue(fields)) => Some(fields),
        _ => None,
    }
}

/// Additional formatters that a format requires.
fn formatters(text: &str) -> Vec<TypedExtensionConfig> {
    let formatter = || TypedExtensionConfig {
        name: "envoy.formatter.req_without_query".to_owned(),
        typed_config: Some(any(&ReqWithoutQuery {})),
    };
    text.contains("%REQ_WITHOUT_QUERY").then(formatter).into_iter().collect()
}

fn json_formatters(fields: &Struct) -> Vec<TypedExtensionConfig> {
    let texts = fields.fields.values().filter_map(|value| match &value.kind {
        Some(Kind::StringValue(text)) => Some(formatters(text)),
        _ => None,
    });
    texts.max_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_model::MeshConfig;

    use super::*;
    use crate::listener_settings::{ListenerAttachments, Observation, ObservedSide};

    fn settings(specs: &[(&str, LogSpec)]) -> ListenerSettings {
        let als = ProviderKind::TcpAccessLogService {
            service: sluice_model::ProviderService { service: "als.example".into(), port: 1 },
            log_name: Text::default(),
            filter_state: Vec::new(),
        };
        let mut mesh = MeshConfig { access_log_file: "/legacy".into(), ..MeshConfig::default() };
        mesh.extension_providers.push(ExtensionProvider { name: "als".into(), kind: als });
        let specs = specs.iter().map(|(name, spec)| (Text::from(*name), spec.clone())).collect();
        let server = ObservedSide { logging: Some(specs), ..ObservedSide::default() };
        let observation = Observation { server, ..Observation::default() };
        ListenerSettings {
            mesh: Arc::new(mesh),
            attached: Arc::new(ListenerAttachments { observation, ..ListenerAttachments::default() }),
            ..ListenerSettings::default()
        }
    }

    /// The access log of a provider, with its filters.
    fn logged(logs: &[AccessLog]) -> Vec<(String, usize)> {
        let conditions = |log: &AccessLog| match log.filter.as_ref().and_then(|f| f.filter_specifier.as_ref()) {
            None => 0,
            Some(FilterSpecifier::AndFilter(and)) => and.filters.len(),
            Some(_) => 1,
        };
        let path = |log: &AccessLog| match &log.config_type {
            Some(ConfigType::TypedConfig(config)) => {
                let file: FileAccessLog = prost::Message::decode(config.value.as_slice()).expect("a file");
                file.path
            }
            _ => String::new(),
        };
        logs.iter().map(|log| (path(log), conditions(log))).collect()
    }

    #[test]
    fn usable_providers_replace_the_mesh_settings() {
        let filtered = LogSpec { filter: Some("true".into()), ..LogSpec::default() };
        let own = settings(&[("Envoy", filtered)]);
        assert_eq!(logged(&tcp_access_logs(&own, ListenerClass::Inbound)), [("/dev/stdout".to_owned(), 1)]);
        assert_eq!(logged(&listener_access_log(&own, ListenerClass::Inbound)), [("/dev/stdout".to_owned(), 2)]);
        // The filter does not distinguish the sides.
        assert_eq!(logged(&tcp_access_logs(&own, ListenerClass::Outbound)), [("/legacy".to_owned(), 0)]);
        let off = settings(&[("envoy", LogSpec { disabled: true, ..LogSpec::default() })]);
        assert_eq!(logged(&tcp_access_logs(&off, ListenerClass::Inbound)), []);
    }

    #[test]
    fn mesh_settings_apply_without_a_usable_provider() {
        // An unknown provider, a provider without logging, or a provider whose service does not exist.
        for name in ["unknown", "prometheus", "als"] {
            let settings = settings(&[(name, LogSpec::default())]);
            assert_eq!(
                logged(&tcp_access_logs(&settings, ListenerClass::Inbound)),
                [("/legacy".to_owned(), 0)],
                "{name}"
            );
        }
    }
}
