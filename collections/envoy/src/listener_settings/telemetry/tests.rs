use std::time::Duration;

use sluice_model::{
    DefaultProviders, MetricMatch, MetricsOverride, Telemetry, TelemetryLogging, TelemetryMetrics, TelemetryTracing,
    Text, WorkloadMode,
};

use super::{LogSpec, MetricSpec, Observation};

fn texts(names: &[&str]) -> Vec<Text> {
    names.iter().map(|name| Text::from(*name)).collect()
}

fn defaults() -> DefaultProviders {
    DefaultProviders { tracing: texts(&["zip"]), metrics: texts(&["prom"]), access_logging: texts(&["file"]) }
}

fn merge(telemetries: &[Telemetry]) -> Observation {
    Observation::merge(&defaults(), &telemetries.iter().collect::<Vec<_>>())
}

fn metrics(entries: &[TelemetryMetrics]) -> Telemetry {
    Telemetry { metrics: entries.to_vec(), ..Telemetry::default() }
}

fn logging(entries: &[TelemetryLogging]) -> Telemetry {
    Telemetry { access_logging: entries.to_vec(), ..Telemetry::default() }
}

fn change(metric: &str, disabled: Option<bool>) -> MetricsOverride {
    let metric = if metric.is_empty() { MetricMatch::All } else { MetricMatch::Named(metric.into()) };
    MetricsOverride { metric, disabled, ..MetricsOverride::default() }
}

fn measured(observation: &Observation) -> [Vec<&str>; 2] {
    [&observation.client, &observation.server].map(|side| side.metrics.keys().map(Text::as_str).collect())
}

fn logged(observation: &Observation) -> [Vec<(&str, LogSpec)>; 2] {
    [&observation.client, &observation.server].map(|side| {
        let specs = side.logging.iter().flatten();
        specs.map(|(name, spec)| (name.as_str(), spec.clone())).collect()
    })
}

#[test]
fn default_providers_are_used_without_telemetry() {
    let observation = merge(&[]);
    assert_eq!(measured(&observation), [["prom"], ["prom"]]);
    assert_eq!(logged(&observation), [[("file", LogSpec::default())], [("file", LogSpec::default())]]);
    assert_eq!(observation.server.tracing.as_ref().unwrap().provider.as_deref(), Some("zip"));
    let nothing = Observation::merge(&DefaultProviders::default(), &[]);
    assert_eq!(nothing, Observation::default());
    // A Telemetry without logging does not change logging.
    assert_eq!(merge(&[Telemetry::default()]), observation);
}

#[test]
fn last_named_providers_are_used() {
    let named = |names: &[&str]| TelemetryMetrics { providers: texts(names), ..TelemetryMetrics::default() };
    let observation = merge(&[metrics(&[named(&["a", "b"])]), metrics(&[named(&["b"]), named(&[])])]);
    assert_eq!(measured(&observation), [["b"], ["b"]]);
}

#[test]
fn metric_overrides_accumulate() {
    let entry = |overrides: Vec<MetricsOverride>, seconds: u64| TelemetryMetrics {
        overrides,
        reporting_interval: (seconds > 0).then(|| Duration::from_secs(seconds)),
        ..TelemetryMetrics::default()
    };
    let tagged = MetricsOverride {
        tags: [("x".into(), Some("1".into())), ("y".into(), None)].into(),
        mode: WorkloadMode::Client,
        ..change("REQUEST_COUNT", None)
    };
    let root = metrics(&[entry(vec![change("", None), change("REQUEST_COUNT", Some(true)), tagged], 7)]);
    let observation = merge(std::slice::from_ref(&root));
    let client = &observation.client.metrics["prom"];
    assert_eq!((client.overrides.len(), client.reporting_interval), (10, Some(Duration::from_secs(7))));
    let tags = [("x".into(), Some("1".into())), ("y".into(), None)].into();
    assert_eq!(client.overrides["REQUEST_COUNT"], MetricSpec { disabled: true, tags });
    let server = &observation.server.metrics["prom"].overrides["REQUEST_COUNT"];
    assert_eq!(*server, MetricSpec { disabled: true, ..MetricSpec::default() });

    let off = metrics(&[entry(vec![MetricsOverride { mode: WorkloadMode::Server, ..change("", Some(true)) }], 0)]);
    let observation = merge(&[root.clone(), off.clone()]);
    assert_eq!(measured(&observation), [vec!["prom"], vec![]]);
    let on = metrics(&[entry(vec![change("REQUEST_SIZE", Some(false))], 0)]);
    let observation = merge(&[root, off, on]);
    let server = &observation.server.metrics["prom"];
    assert!(server.overrides["REQUEST_COUNT"].disabled && !server.overrides["REQUEST_SIZE"].disabled);
}

#[test]
fn tracing_is_merged_per_side() {
    let entry = |mode, names: &[&str], tags| TelemetryTracing {
        mode,
        providers: texts(names),
        enable_istio_tags: tags,
        ..TelemetryTracing::default()
    };
    let root =
        Telemetry { tracing: vec![entry(WorkloadMode::ClientAndServer, &["a", "b"], None)], ..Telemetry::default() };
    let own = Telemetry {
        tracing: vec![
            entry(WorkloadMode::Client, &[], Some(false)),
            TelemetryTracing { disable_span_reporting: Some(true), ..entry(WorkloadMode::Server, &["c"], None) },
        ],
        ..Telemetry::default()
    };
    let observation = merge(&[root, own]);
    let (client, server) = (observation.client.tracing.unwrap(), observation.server.tracing.unwrap());
    assert_eq!((client.provider.as_deref(), client.istio_tags, client.disabled), (Some("a"), false, false));
    assert_eq!((server.provider.as_deref(), server.istio_tags, server.disabled), (Some("c"), true, true));
}

#[test]
fn access_logs_keep_filters_and_disabled_ones_prevent_the_fallback() {
    let entry = |mode, names: &[&str], filter: &str| TelemetryLogging {
        mode,
        providers: texts(names),
        filter: (!filter.is_empty()).then(|| filter.into()),
        ..TelemetryLogging::default()
    };
    let root = logging(&[entry(WorkloadMode::Client, &["a"], "client"), entry(WorkloadMode::Server, &["b"], "server")]);
    let with = |filter: &str| LogSpec { filter: Some(filter.into()), ..LogSpec::default() };
    let observation = merge(std::slice::from_ref(&root));
    assert_eq!(logged(&observation), [[("a", with("client"))], [("b", with("server"))]]);
    // `disabled` applies to the inherited providers. The last entry is `b`, which the client side does not use.
    let off = logging(&[TelemetryLogging { disabled: true, ..TelemetryLogging::default() }]);
    let observation = merge(&[root, off]);
    let disabled = LogSpec { disabled: true, ..LogSpec::default() };
    assert_eq!(logged(&observation), [[("a", with("client"))], [("b", disabled)]]);
    // A filter without a provider has no effect.
    let observation = merge(&[logging(&[entry(WorkloadMode::ClientAndServer, &[], "x")])]);
    assert_eq!(logged(&observation), [[("file", LogSpec::default())], [("file", LogSpec::default())]]);
}
