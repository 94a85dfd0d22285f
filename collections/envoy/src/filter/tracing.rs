//! Tracing (T04).

use std::collections::BTreeMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    HeaderValue, HeaderValueOption, HttpService, HttpUri, TypedExtensionConfig,
    header_value_option::HeaderAppendAction, http_uri::HttpUpstreamType,
};
use envoy_types::pb::envoy::config::trace::v3::{
    DatadogConfig, OpenTelemetryConfig, SkyWalkingConfig, ZipkinConfig, tracing as envoy_tracing,
    zipkin_config::{CollectorEndpointVersion, TraceContextOption},
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing;
use envoy_types::pb::envoy::extensions::tracers::opentelemetry::{
    resource_detectors::v3::{DynatraceResourceDetectorConfig, EnvironmentResourceDetectorConfig},
    samplers::v3::DynatraceSamplerConfig,
};
use envoy_types::pb::envoy::r#type::metadata::v3::{
    MetadataKey, MetadataKind,
    metadata_key::{PathSegment, path_segment::Segment},
    metadata_kind,
};
use envoy_types::pb::envoy::r#type::tracing::v3::{CustomTag, custom_tag};
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::{Any, UInt32Value};
use sluice_model::{
    CustomTag as ModelTag, ExtensionProvider, HttpExporter, OpenTelemetryTracing, ProviderHeader, ProviderKind,
    ProxyType, Text, TraceTag,
};

use crate::listener_settings::{Collector, ListenerClass, ListenerSettings};
use crate::security::RBAC_HTTP;
use crate::slots::{DATADOG_SERVICE, IDENTITY_TAGS, OTEL_SEMANTIC_SERVICE, OTEL_SERVICE, element_marker, field_marker};
use crate::wire::{any, boolean, duration, uint32};

/// Tags of dry-run authorization: tag name, and key in the metadata of the RBAC filter.
const DRY_RUN_TAGS: [(&str, &str); 4] = [
    ("istio.authorization.dry_run.allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"),
    ("istio.authorization.dry_run.allow_policy.result", "istio_dry_run_allow_shadow_engine_result"),
    ("istio.authorization.dry_run.deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"),
    ("istio.authorization.dry_run.deny_policy.result", "istio_dry_run_deny_shadow_engine_result"),
];

/// Tags of the peers of a waypoint: the tag after `istio.source_` or `istio.destination_`, and the field in the filter
/// state.
const PEER_TAGS: [(&str, &str); 9] = [
    ("app", "app"),
    ("app_version", "version"),
    ("canonical_revision", "revision"),
    ("canonical_service", "service"),
    ("cluster_id", "cluster"),
    ("instance_name", "name"),
    ("namespace", "namespace"),
    ("workload", "workload"),
    ("workload_type", "type"),
];

/// Tracing of a chain, and whether request IDs determine the sampling decision.
pub(super) fn tracing(settings: &ListenerSettings, class: ListenerClass) -> (Option<Tracing>, bool) {
    let Some(spec) = &settings.observed(class).tracing else {
        let legacy = settings.mesh.enable_tracing.then(|| legacy_tracing(settings));
        return (legacy, true);
    };
    let provider = spec.provider.as_deref().and_then(|name| settings.provider(name)).filter(|_| !spec.disabled);
    let Some((mut tracing, samples)) = provider.and_then(|provider| from_provider(settings, provider)) else {
        return (None, true);
    };
    let percent = match spec.sampling {
        // The provider's own sampler decides.
        _ if samples => 100.0,
        Some(percent) => percent.to_f64(),
        None => configured_sampling(settings),
    };
    set_sampling(&mut tracing, percent);
    tracing.custom_tags = tags(settings, spec.istio_tags, Some(&spec.custom_tags));
    if tracing.max_path_tag_length.is_none() {
        tracing.max_path_tag_length = configured_tag_length(settings);
    }
    tracing.no_context_propagation = spec.no_context_propagation && settings.profile.at_least(1, 30);
    (Some(tracing), spec.sample_by_request_id)
}

fn legacy_tracing(settings: &ListenerSettings) -> Tracing {
    let configured = settings.config().tracing.as_ref();
    let mut tracing = Tracing::default();
    set_sampling(&mut tracing, configured_sampling(settings));
    let istio_tags = configured.and_then(|tracing| tracing.enable_istio_tags).unwrap_or(true);
    tracing.custom_tags = tags(settings, istio_tags, None);
    tracing.max_path_tag_length = configured_tag_length(settings);
    tracing
}

fn configured_tag_length(settings: &ListenerSettings) -> Option<UInt32Value> {
    let length = settings.config().tracing.as_ref()?.max_path_tag_length;
    (length != 0).then(|| uint32(length))
}

fn set_sampling(tracing: &mut Tracing, random: f64) {
    tracing.client_sampling = Some(Percent { value: 100.0 });
    tracing.overall_sampling = Some(Percent { value: 100.0 });
    tracing.random_sampling = Some(Percent { value: random });
}

fn configured_sampling(settings: &ListenerSettings) -> f64 {
    let configured = settings.config().tracing.as_ref().map_or(0.0, |tracing| tracing.sampling.to_f64());
    match configured {
        0.0 => settings.switches.trace_sampling.to_f64(),
        // A percentage above 100 is treated as invalid.
        percent if percent > 100.0 => 1.0,
        percent => percent,
    }
}

/// The tags of every span, in the order of their names. Tags of the proxy are slot markers.
fn tags(settings: &ListenerSettings, istio: bool, custom: Option<&BTreeMap<Text, TraceTag>>) -> Vec<CustomTag> {
    let mut tags: BTreeMap<String, CustomTag> = BTreeMap::new();
    let mut extra: Vec<(String, CustomTag)> = Vec::new();
    if istio {
        for name in IDENTITY_TAGS {
            tags.insert(name.to_owned(), CustomTag { tag: element_marker(name), r#type: None });
        }
        for (name, key) in DRY_RUN_TAGS {
            tags.insert(name.to_owned(), dry_run_tag(name, key));
        }
    }
    if settings.profile.proxy_type == ProxyType::Waypoint {
        extra.extend(PEER_TAGS.into_iter().flat_map(peer_tags));
    }
    let mut add = |name: &str, kind| {
        extra.push((name.to_owned(), CustomTag { tag: name.to_owned(), r#type: kind }));
    };
    match custom.filter(|custom| !custom.is_empty()) {
        Some(custom) => {
            for (name, tag) in custom {
                match tag {
                    TraceTag::Plain(tag) => add(name, Some(tag_kind(tag))),
                    TraceTag::Format(text) if settings.profile.at_least(1, 29) => {
                        add(name, Some(custom_tag::Type::Value(text.to_string())));
                    }
                    TraceTag::Format(_) => {}
                }
            }
        }
        None => {
            for (name, tag) in settings.config().tracing.iter().flat_map(|tracing| &tracing.custom_tags) {
                add(name, Some(tag_kind(tag)));
            }
        }
    }
    let mut all: Vec<(String, CustomTag)> = tags.into_iter().chain(extra).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.into_iter().map(|(_, tag)| tag).collect()
}

/// The tags of both peers for a field.
fn peer_tags((name, field): (&str, &str)) -> [(String, CustomTag); 2] {
    [("source", "downstream_peer_obj"), ("destination", "upstream_peer_obj")].map(|(side, state)| {
        let tag = format!("istio.{side}_{name}");
        let value = custom_tag::Type::Value(format!("%FILTER_STATE({state}:FIELD:{field})%"));
        (tag.clone(), CustomTag { tag, r#type: Some(value) })
    })
}

fn tag_kind(tag: &ModelTag) -> custom_tag::Type {
    match tag {
        ModelTag::Literal(value) => custom_tag::Type::Literal(custom_tag::Literal { value: value.to_string() }),
        ModelTag::Environment(name, default) => custom_tag::Type::Environment(custom_tag::Environment {
            name: name.to_string(),
            default_value: default.to_string(),
        }),
        ModelTag::Header(name, default) => custom_tag::Type::RequestHeader(custom_tag::Header {
            name: name.to_string(),
            default_value: default.to_string(),
        }),
    }
}

fn dry_run_tag(name: &str, key: &str) -> CustomTag {
    let metadata = custom_tag::Metadata {
        kind: Some(MetadataKind { kind: Some(metadata_kind::Kind::Request(metadata_kind::Request::default())) }),
        metadata_key: Some(MetadataKey {
            key: RBAC_HTTP.to_owned(),
            path: vec![PathSegment { segment: Some(Segment::Key(key.to_owned())) }],
        }),
        default_value: String::new(),
    };
    CustomTag { tag: name.to_owned(), r#type: Some(custom_tag::Type::Metadata(metadata)) }
}

/// The tracer of a provider, and whether it has its own sampler; `None` if it is not a tracer or its service does not exist.
fn from_provider(settings: &ListenerSettings, provider: &ExtensionProvider) -> Option<(Tracing, bool)> {
    let mut samples = false;
    let mut child_span = settings.profile.proxy_type == ProxyType::Router;
    let (name, config, tag_length) = match &provider.kind {
        ProviderKind::Zipkin { service, max_tag_length, .. } => {
            let collector = settings.collectors.get(service)?;
            ("envoy.tracers.zipkin", zipkin(settings, &provider.kind, collector), *max_tag_length)
        }
        ProviderKind::Datadog { service, max_tag_length } => {
            let collector = settings.collectors.get(service)?;
            let config = DatadogConfig {
                collector_cluster: collector.cluster.to_string(),
                service_name: field_marker(DATADOG_SERVICE),
                collector_hostname: collector.host.to_string(),
                ..DatadogConfig::default()
            };
            ("envoy.tracers.datadog", any(&config), *max_tag_length)
        }
        ProviderKind::SkyWalking { service, .. } => {
            child_span = true;
            let config = SkyWalkingConfig {
                grpc_service: Some(settings.collectors.get(service)?.grpc_service()),
                ..SkyWalkingConfig::default()
            };
            ("envoy.tracers.skywalking", any(&config), 0)
        }
        ProviderKind::OpenTelemetry(otel) => {
            samples = otel.dynatrace_sampler.is_some();
            ("envoy.tracers.opentelemetry", open_telemetry(settings, otel)?, otel.max_tag_length)
        }
        _ => return None,
    };
    let tracing = Tracing {
        provider: Some(envoy_tracing::Http {
            name: name.to_owned(),
            config_type: Some(envoy_tracing::http::ConfigType::TypedConfig(config)),
        }),
        spawn_upstream_span: child_span.then(|| boolean(true)),
        max_path_tag_length: (tag_length != 0).then(|| uint32(tag_length)),
        ..Tracing::default()
    };
    Some((tracing, samples))
}

fn zipkin(settings: &ListenerSettings, kind: &ProviderKind, collector: &Collector) -> Any {
    let ProviderKind::Zipkin { enable_64bit_trace_id, path, with_w3c, timeout, headers, .. } = kind else {
        return Any::default();
    };
    let path = if path.is_empty() { "/api/v2/spans" } else { path.as_str() };
    let mut config = ZipkinConfig {
        collector_endpoint_version: CollectorEndpointVersion::HttpJson as i32,
        trace_id_128bit: !enable_64bit_trace_id,
        shared_span_context: Some(boolean(false)),
        ..ZipkinConfig::default()
    };
    if settings.profile.at_least(1, 29) {
        let timeout = timeout.unwrap_or(Duration::from_secs(5));
        let uri = format!("http://{}{path}", collector.host);
        config.collector_service = Some(http_service(uri, collector, Some(timeout), headers));
    } else {
        config.collector_cluster = collector.cluster.to_string();
        config.collector_endpoint = path.to_owned();
        config.collector_hostname = collector.host.to_string();
    }
    if *with_w3c && settings.profile.at_least(1, 28) {
        config.trace_context_option = TraceContextOption::UseB3WithW3cPropagation as i32;
    }
    any(&config)
}

fn open_telemetry(settings: &ListenerSettings, otel: &OpenTelemetryTracing) -> Option<Any> {
    let collector = settings.collectors.get(&otel.service)?;
    let slot = if otel.otel_semantic_conventions { OTEL_SEMANTIC_SERVICE } else { OTEL_SERVICE };
    let mut config = OpenTelemetryConfig { service_name: field_marker(slot), ..OpenTelemetryConfig::default() };
    if let Some(http) = &otel.http {
        config.http_service = Some(exporter_service(http, collector));
    } else {
        let mut service = collector.grpc_service();
        if let Some(exporter) = &otel.grpc {
            service.timeout = exporter.timeout.map(duration);
            service.initial_metadata = exporter.initial_metadata.iter().map(header_value).collect();
        }
        config.grpc_service = Some(service);
    }
    let detector = |name: &str, config: Any| TypedExtensionConfig {
        name: format!("envoy.tracers.opentelemetry.resource_detectors.{name}"),
        typed_config: Some(config),
    };
    let environment = || detector("environment", any(&EnvironmentResourceDetectorConfig {}));
    if otel.detect_environment {
        config.resource_detectors.push(environment());
    }
    if otel.detect_dynatrace {
        config.resource_detectors.push(detector("dynatrace", any(&DynatraceResourceDetectorConfig {})));
    }
    if otel.otel_semantic_conventions && !otel.detect_environment {
        config.resource_detectors.push(environment());
    }
    if let Some(sampler) = &otel.dynatrace_sampler {
        let service = match &sampler.api {
            Some((service, exporter)) => exporter_service(exporter, settings.collectors.get(service)?),
            None => {
                let http = otel.http.as_ref()?;
                let uri = join_path(&collector.host, "api/v2/samplingConfiguration");
                http_service(uri, collector, http.timeout, &http.headers)
            }
        };
        let sampler_config = DynatraceSamplerConfig {
            tenant: sampler.tenant.to_string(),
            cluster_id: sampler.cluster_id,
            root_spans_per_minute: sampler.root_spans_per_minute,
            http_service: Some(service),
        };
        config.sampler = Some(TypedExtensionConfig {
            name: "envoy.tracers.opentelemetry.samplers.dynatrace".to_owned(),
            typed_config: Some(any(&sampler_config)),
        });
    }
    Some(any(&config))
}

fn exporter_service(exporter: &HttpExporter, collector: &Collector) -> HttpService {
    let uri = join_path(&collector.host, &exporter.path);
    http_service(uri, collector, exporter.timeout, &exporter.headers)
}

/// Host and path with exactly one slash between them.
fn join_path(host: &str, path: &str) -> String {
    if path.is_empty() { host.to_owned() } else { format!("{host}/{}", path.trim_start_matches('/')) }
}

fn http_service(
    uri: String,
    collector: &Collector,
    timeout: Option<Duration>,
    headers: &[ProviderHeader],
) -> HttpService {
    let option = |header| HeaderValueOption {
        header: Some(header_value(header)),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd as i32,
        ..HeaderValueOption::default()
    };
    HttpService {
        http_uri: Some(HttpUri {
            uri,
            http_upstream_type: Some(HttpUpstreamType::Cluster(collector.cluster.to_string())),
            timeout: timeout.map(duration),
        }),
        request_headers_to_add: headers.iter().map(option).collect(),
        ..HttpService::default()
    }
}

fn header_value(header: &ProviderHeader) -> HeaderValue {
    HeaderValue { key: header.name.to_string(), value: header.value.value().to_string(), ..HeaderValue::default() }
}
