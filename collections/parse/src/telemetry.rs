//! Telemetry (T01).

use std::collections::BTreeMap;

use sluice_model::{
    Attachment, CustomTag, Decimal, MetricMatch, MetricsOverride, Object, Telemetry, TelemetryLogging,
    TelemetryMetrics, TelemetryTracing, Text, TraceTag, WorkloadMode,
};

use crate::attachment::attachment;
use crate::cel::check_cel;
use crate::{Fields, Findings, Item};

/// Metrics of Istio, in the order of the enumeration. The first one selects all metrics.
const METRICS: [&str; 11] = [
    "ALL_METRICS",
    "REQUEST_COUNT",
    "REQUEST_DURATION",
    "REQUEST_SIZE",
    "RESPONSE_SIZE",
    "TCP_OPENED_CONNECTIONS",
    "TCP_CLOSED_CONNECTIONS",
    "TCP_SENT_BYTES",
    "TCP_RECEIVED_BYTES",
    "GRPC_REQUEST_MESSAGES",
    "GRPC_RESPONSE_MESSAGES",
];

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let attachment: Attachment = attachment(&fields);
    let metrics = fields.list("metrics", metrics);
    let tracing = fields.list("tracing", tracing);
    if tracing.len() > 1 {
        fields.warn("tracing", "only one tracer is supported: a later entry overrides the fields of earlier ones");
    }
    let access_logging = fields.list("accessLogging", access_logging);
    drop(fields);
    (!findings.has_errors()).then(|| {
        Object::Telemetry(Box::new(Telemetry {
            namespace: meta.namespace,
            name: meta.name,
            created: meta.created,
            attachment,
            metrics,
            tracing,
            access_logging,
        }))
    })
}

fn providers(fields: &Fields<'_>) -> Vec<Text> {
    fields.list("providers", |provider| {
        let name = provider.text("name");
        if name.is_empty() {
            provider.refuse("name", "the name of a provider is required");
        }
        name
    })
}

fn mode(fields: &Fields<'_>) -> WorkloadMode {
    let modes = [
        ("CLIENT_AND_SERVER", WorkloadMode::ClientAndServer),
        ("CLIENT", WorkloadMode::Client),
        ("SERVER", WorkloadMode::Server),
    ];
    fields.choice("mode", &modes).unwrap_or_default()
}

fn metrics(fields: &Fields<'_>) -> TelemetryMetrics {
    TelemetryMetrics {
        providers: providers(fields),
        overrides: fields.list("overrides", metrics_override),
        reporting_interval: fields.opt_duration("reportingInterval"),
    }
}

fn metrics_override(fields: &Fields<'_>) -> MetricsOverride {
    let (metric, mode) = fields.read("match", |found| (metric_match(found), mode(found))).unwrap_or_default();
    let mut tags = BTreeMap::new();
    for (name, value, path) in fields.entries("tagOverrides") {
        if name.is_empty() {
            fields.warn("tagOverrides", "the name of a tag is required");
        }
        let Some(tag) = Fields::new(value, path, fields.findings()) else { continue };
        let remove = tag.choice("operation", &[("UPSERT", false), ("REMOVE", true)]).unwrap_or_default();
        let expression = tag.text("value");
        match (remove, expression.is_empty()) {
            (false, true) => tag.refuse("value", "operation UPSERT requires a value"),
            (true, false) => tag.refuse("value", "operation REMOVE does not support a value"),
            _ => {}
        }
        tags.insert(name, (!remove).then_some(expression));
    }
    MetricsOverride { metric, mode, disabled: fields.opt_bool("disabled"), tags }
}

fn metric_match(fields: &Fields<'_>) -> MetricMatch {
    if let Some(custom) = fields.opt_text("customMetric") {
        if fields.has("metric") {
            fields.refuse("metric", "`metric` and `customMetric` are mutually exclusive");
        }
        if custom.is_empty() {
            fields.refuse("customMetric", "the name of the metric is required");
        }
        return MetricMatch::Named(custom);
    }
    match fields.choice("metric", &METRICS.map(|name| (name, name))) {
        None | Some("ALL_METRICS") => MetricMatch::All,
        Some(name) => MetricMatch::Named(name.into()),
    }
}

fn tracing(fields: &Fields<'_>) -> TelemetryTracing {
    let providers = providers(fields);
    if providers.len() > 1 {
        fields.warn("providers", "only the first provider is used");
    }
    let random_sampling = fields.opt_decimal("randomSamplingPercentage");
    if random_sampling.is_some_and(|percent| percent < Decimal::from_f64(0.0) || percent > Decimal::from_f64(100.0)) {
        fields.refuse("randomSamplingPercentage", "expected a percentage from 0 to 100");
    }
    TelemetryTracing {
        mode: fields.read("match", mode).unwrap_or_default(),
        providers,
        random_sampling,
        disable_span_reporting: fields.opt_bool("disableSpanReporting"),
        custom_tags: fields.has("customTags").then(|| custom_tags(fields)),
        use_request_id: fields.opt_bool("useRequestIdForTraceSampling"),
        enable_istio_tags: fields.opt_bool("enableIstioTags"),
        disable_context_propagation: fields.opt_bool("disableContextPropagation"),
    }
}

fn custom_tags(fields: &Fields<'_>) -> BTreeMap<Text, TraceTag> {
    let mut tags = BTreeMap::new();
    for (name, value, path) in fields.entries("customTags") {
        if name.is_empty() {
            fields.refuse("customTags", "the name of a tag is required");
        }
        if let Some(tag) = Fields::new(value, path, fields.findings()).and_then(|tag| custom_tag(&tag)) {
            tags.insert(name, tag);
        }
    }
    tags
}

fn custom_tag(fields: &Fields<'_>) -> Option<TraceTag> {
    let named = |of: &Fields<'_>| {
        let name = of.text("name");
        if name.is_empty() {
            of.refuse("name", "`name` is required");
        }
        (name, of.text("defaultValue"))
    };
    if let Some(literal) = fields.object("literal") {
        let value = literal.text("value");
        if value.is_empty() {
            literal.refuse("value", "`value` is required");
        }
        return Some(TraceTag::Plain(CustomTag::Literal(value)));
    }
    if let Some((name, default)) = fields.read("environment", named) {
        return Some(TraceTag::Plain(CustomTag::Environment(name, default)));
    }
    if let Some((name, default)) = fields.read("header", named) {
        return Some(TraceTag::Plain(CustomTag::Header(name, default)));
    }
    let format = fields.read("formatter", |formatter| TraceTag::Format(formatter.text("value")));
    if format.is_none() {
        fields.warn("", "the tag has no value: expected `literal`, `environment`, `header` or `formatter`");
    }
    format
}

fn access_logging(fields: &Fields<'_>) -> TelemetryLogging {
    let filter = fields.read("filter", |filter| {
        let expression = filter.text("expression");
        // Envoy would reject the whole listener.
        if let Err(error) = check_cel(&expression) {
            filter.reject("expression", format!("invalid CEL expression: {error}"));
        }
        expression
    });
    TelemetryLogging {
        mode: fields.read("match", mode).unwrap_or_default(),
        providers: providers(fields),
        disabled: fields.bool("disabled"),
        filter,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_model::{MetricMatch, Object, ParsedObject, Telemetry, WorkloadMode};

    use crate::parse_object;

    fn parse(spec: &Value) -> ParsedObject {
        let object = json!({
            "apiVersion": "telemetry.istio.io/v1",
            "kind": "Telemetry",
            "metadata": {"namespace": "harbor", "name": "t"},
            "spec": spec,
        });
        parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("an object")
    }

    fn valid(spec: &Value) -> Telemetry {
        let parsed = parse(spec);
        assert_eq!(parsed.rejects, [], "{spec}");
        match parsed.object {
            Some(Object::Telemetry(telemetry)) => *telemetry,
            other => panic!("{other:?}"),
        }
    }

    fn refused(spec: &Value) -> String {
        let parsed = parse(spec);
        assert!(parsed.rejects.iter().any(|reject| reject.severity.is_refusal()), "{spec}");
        let paths: Vec<String> = parsed.rejects.iter().map(|reject| reject.field_path.to_string()).collect();
        paths.join(" ")
    }

    #[test]
    fn all_fields_are_read() {
        let telemetry = valid(&json!({
            "metrics": [{
                "providers": [{"name": "prometheus"}],
                "reportingInterval": "5s",
                "overrides": [
                    {"match": {"metric": "REQUEST_COUNT", "mode": "CLIENT"}, "disabled": true},
                    {"match": {"customMetric": "mine"}, "tagOverrides": {"a": {"value": "'x'"}, "b": {"operation": "REMOVE"}}},
                    {"disabled": false},
                ],
            }],
            "tracing": [{
                "randomSamplingPercentage": 12.5,
                "customTags": {"l": {"literal": {"value": "v"}}, "f": {"formatter": {"value": "%X%"}}},
                "enableIstioTags": false,
            }],
            "accessLogging": [{"match": {"mode": "SERVER"}, "filter": {"expression": "response.code > 399"}}],
        }));
        let overrides = &telemetry.metrics[0].overrides;
        assert_eq!(overrides[0].metric, MetricMatch::Named("REQUEST_COUNT".into()));
        assert_eq!((overrides[0].mode, overrides[0].disabled), (WorkloadMode::Client, Some(true)));
        assert_eq!(overrides[1].tags, [("a".into(), Some("'x'".into())), ("b".into(), None)].into());
        assert_eq!(overrides[2].metric, MetricMatch::All);
        assert_eq!(telemetry.tracing[0].custom_tags.as_ref().map(|tags| tags.len()), Some(2));
        assert_eq!(telemetry.tracing[0].enable_istio_tags, Some(false));
        assert_eq!(telemetry.access_logging[0].filter.as_deref(), Some("response.code > 399"));
    }

    #[test]
    fn invalid_fields_are_reported_with_their_path() {
        let path = |spec: Value| refused(&spec);
        assert_eq!(path(json!({"tracing": [{"providers": [{}]}]})), "spec.tracing[0].providers[0].name");
        assert_eq!(path(json!({"metrics": [{"providers": [{}]}]})), "spec.metrics[0].providers[0].name");
        assert_eq!(
            path(json!({"accessLogging": [{"providers": [{"name": ""}]}]})),
            "spec.accessLogging[0].providers[0].name"
        );
        for percent in [json!(101), json!(-0.1)] {
            let spec = json!({"tracing": [{"randomSamplingPercentage": percent}]});
            assert_eq!(path(spec), "spec.tracing[0].randomSamplingPercentage");
        }
        let tag = |tag: Value| path(json!({"tracing": [{"customTags": {"a": tag}}]}));
        assert_eq!(tag(json!({"literal": {"value": ""}})), "spec.tracing[0].customTags[a].literal.value");
        assert_eq!(tag(json!({"header": {}})), "spec.tracing[0].customTags[a].header.name");
        assert_eq!(tag(json!({"environment": {}})), "spec.tracing[0].customTags[a].environment.name");
        let tag = |tag: Value| path(json!({"metrics": [{"overrides": [{"tagOverrides": {"x": tag}}]}]}));
        let value = "spec.metrics[0].overrides[0].tagOverrides[x].value";
        assert_eq!(tag(json!({"operation": "UPSERT"})), value);
        assert_eq!(tag(json!({"operation": "REMOVE", "value": "1"})), value);
        let custom = json!({"metrics": [{"overrides": [{"match": {"customMetric": ""}}]}]});
        assert_eq!(path(custom), "spec.metrics[0].overrides[0].match.customMetric");
        let filter = json!({"accessLogging": [{"filter": {"expression": "response.code >"}}]});
        assert_eq!(path(filter), "spec.accessLogging[0].filter.expression");
        assert!(path(json!({"selector": {"matchLabels": {"a": "*"}}})).starts_with("spec.selector"));
    }
}
