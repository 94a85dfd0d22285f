//! Effective telemetry of a proxy (T01): Telemetry objects and default providers, merged per side.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use sluice_model::{
    Decimal, DefaultProviders, MetricMatch, MetricsOverride, Telemetry, TelemetryLogging, TelemetryMetrics,
    TelemetryTracing, Text, TraceTag,
};

/// Istio's metrics: the name in the API and the name in the stats filter.
pub(crate) const METRICS: [(&str, &str); 10] = [
    ("GRPC_REQUEST_MESSAGES", "request_messages_total"),
    ("GRPC_RESPONSE_MESSAGES", "response_messages_total"),
    ("REQUEST_COUNT", "requests_total"),
    ("REQUEST_DURATION", "request_duration_milliseconds"),
    ("REQUEST_SIZE", "request_bytes"),
    ("RESPONSE_SIZE", "response_bytes"),
    ("TCP_CLOSED_CONNECTIONS", "tcp_connections_closed_total"),
    ("TCP_OPENED_CONNECTIONS", "tcp_connections_opened_total"),
    ("TCP_RECEIVED_BYTES", "tcp_received_bytes_total"),
    ("TCP_SENT_BYTES", "tcp_sent_bytes_total"),
];

/// Effective telemetry of a proxy. Providers are referred to by name; a listener resolves them when it is built.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Observation {
    /// Outbound traffic of sidecars, and traffic of gateways.
    pub client: ObservedSide,
    /// Inbound traffic.
    pub server: ObservedSide,
}

/// Effective telemetry of one side of a proxy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ObservedSide {
    /// Metrics by provider, without providers whose metrics are all disabled.
    pub metrics: BTreeMap<Text, MetricsSpec>,
    /// Tracing; `None` for the configuration of mesh and proxy.
    pub tracing: Option<TracingSpec>,
    /// Access logs by provider; `None` for the settings of `MeshConfig`.
    pub logging: Option<BTreeMap<Text, LogSpec>>,
}

/// Metrics for one provider.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MetricsSpec {
    /// Overridden metrics, by the name in the API or the custom name.
    pub overrides: BTreeMap<Text, MetricSpec>,
    /// Reporting interval of open TCP connections, if set.
    pub reporting_interval: Option<Duration>,
}

/// An overridden metric.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MetricSpec {
    /// Whether it is not reported.
    pub disabled: bool,
    /// Tags by name: an expression, or `None` to remove the tag.
    pub tags: BTreeMap<Text, Option<Text>>,
}

/// Tracing of one side of a proxy.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TracingSpec {
    /// Provider of the tracer; without one there is no tracing.
    pub provider: Option<Text>,
    /// Whether tracing is disabled.
    pub disabled: bool,
    /// Percentage of requests; `None` for the configuration of the proxy.
    pub sampling: Option<Decimal>,
    /// Tags by name; empty for the configuration of the proxy.
    pub custom_tags: BTreeMap<Text, TraceTag>,
    /// Whether the request ID determines the sampling decision.
    pub sample_by_request_id: bool,
    /// Whether Istio's tags are added.
    pub istio_tags: bool,
    /// Whether context propagation is disabled.
    pub no_context_propagation: bool,
}

impl Default for TracingSpec {
    fn default() -> Self {
        Self {
            provider: None,
            disabled: false,
            sampling: None,
            custom_tags: BTreeMap::new(),
            sample_by_request_id: true,
            istio_tags: true,
            no_context_propagation: false,
        }
    }
}

/// An access log.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct LogSpec {
    /// Whether it is disabled, without a fallback.
    pub disabled: bool,
    /// CEL expression that filters entries, if any.
    pub filter: Option<Text>,
}

impl Observation {
    /// Merges Telemetry objects, the most general first, with the default providers of the mesh.
    #[must_use]
    pub fn merge(defaults: &DefaultProviders, telemetries: &[&Telemetry]) -> Self {
        let side = |server| ObservedSide {
            metrics: merge_metrics(defaults, telemetries, server),
            tracing: merge_tracing(defaults, telemetries, server),
            logging: merge_logging(defaults, telemetries, server),
        };
        Self { client: side(false), server: side(true) }
    }
}

/// The last entry with providers determines the providers. An entry without providers applies to those of the entry before
/// it.
fn merge_metrics(defaults: &DefaultProviders, telemetries: &[&Telemetry], server: bool) -> BTreeMap<Text, MetricsSpec> {
    let entries: Vec<&TelemetryMetrics> = telemetries.iter().flat_map(|telemetry| &telemetry.metrics).collect();
    if entries.is_empty() {
        return defaults.metrics.iter().map(|name| (name.clone(), MetricsSpec::default())).collect();
    }
    let last = entries.iter().rev().find(|entry| !entry.providers.is_empty());
    let wanted = last.map_or(&defaults.metrics, |entry| &entry.providers);
    let mut named = &defaults.metrics;
    let mut specs: BTreeMap<Text, MetricsSpec> = BTreeMap::new();
    let mut off: BTreeSet<Text> = BTreeSet::new();
    for entry in entries {
        if !entry.providers.is_empty() {
            named = &entry.providers;
        }
        for provider in named.iter().filter(|name| wanted.contains(name)) {
            let spec = specs.entry(provider.clone()).or_default();
            spec.reporting_interval = entry.reporting_interval.or(spec.reporting_interval);
            for change in entry.overrides.iter().filter(|change| change.mode.is_for(server)) {
                if change.metric == MetricMatch::All && change.disabled == Some(true) {
                    off.insert(provider.clone());
                } else {
                    // An override of any metric enables a provider again.
                    off.remove(provider);
                    apply(spec, change);
                }
            }
        }
    }
    specs.retain(|provider, _| !off.contains(provider));
    specs
}

fn apply(spec: &mut MetricsSpec, change: &MetricsOverride) {
    let names: Vec<Text> = match &change.metric {
        MetricMatch::All => METRICS.iter().map(|(word, _)| Text::from(*word)).collect(),
        MetricMatch::Named(name) => vec![name.clone()],
    };
    for name in names {
        let metric = spec.overrides.entry(name).or_default();
        metric.disabled = change.disabled.unwrap_or(metric.disabled);
        metric.tags.extend(change.tags.iter().map(|(tag, value)| (tag.clone(), value.clone())));
    }
}

fn merge_tracing(defaults: &DefaultProviders, telemetries: &[&Telemetry], server: bool) -> Option<TracingSpec> {
    let entries: Vec<&TelemetryTracing> = telemetries.iter().flat_map(|telemetry| &telemetry.tracing).collect();
    let provider = defaults.tracing.first();
    if entries.is_empty() && provider.is_none() {
        return None;
    }
    let mut spec = TracingSpec { provider: provider.cloned(), ..TracingSpec::default() };
    for entry in entries.into_iter().filter(|entry| entry.mode.is_for(server)) {
        // Only the first provider of a side is used as its tracer.
        if let Some(first) = entry.providers.first() {
            spec.provider = Some(first.clone());
        }
        spec.disabled = entry.disable_span_reporting.unwrap_or(spec.disabled);
        if let Some(tags) = &entry.custom_tags {
            spec.custom_tags.clone_from(tags);
        }
        spec.sampling = entry.random_sampling.or(spec.sampling);
        spec.sample_by_request_id = entry.use_request_id.unwrap_or(spec.sample_by_request_id);
        spec.istio_tags = entry.enable_istio_tags.unwrap_or(spec.istio_tags);
        spec.no_context_propagation = entry.disable_context_propagation.unwrap_or(spec.no_context_propagation);
    }
    Some(spec)
}

/// The last Telemetry with providers for the side determines the providers.
fn merge_logging(
    defaults: &DefaultProviders,
    telemetries: &[&Telemetry],
    server: bool,
) -> Option<BTreeMap<Text, LogSpec>> {
    let levels: Vec<&[TelemetryLogging]> =
        telemetries.iter().map(|telemetry| &*telemetry.access_logging).filter(|level| !level.is_empty()).collect();
    let defaults = &defaults.access_logging;
    if levels.is_empty() {
        let specs = defaults.iter().map(|name| (name.clone(), LogSpec::default()));
        return (!defaults.is_empty()).then(|| specs.collect());
    }
    let mut wanted: BTreeSet<&Text> = defaults.iter().collect();
    let mut filters: BTreeMap<&Text, Option<&Text>> = BTreeMap::new();
    for level in &levels {
        let entries = || level.iter().filter(|entry| entry.mode.is_for(server));
        let named: BTreeSet<&Text> = entries().flat_map(|entry| &entry.providers).collect();
        filters.extend(entries().flat_map(|entry| entry.providers.iter().map(|name| (name, entry.filter.as_ref()))));
        if !named.is_empty() {
            wanted = named;
        }
    }
    let mut named = defaults;
    let mut specs = BTreeMap::new();
    for entry in levels.into_iter().flatten() {
        if !entry.providers.is_empty() {
            named = &entry.providers;
        }
        if !entry.mode.is_for(server) {
            continue;
        }
        for name in named.iter().filter(|name| wanted.contains(name)) {
            // A filter applies to the providers that its entry names, not to inherited ones.
            let filter = filters.get(name).copied().flatten().filter(|_| !entry.disabled).cloned();
            specs.insert(name.clone(), LogSpec { disabled: entry.disabled, filter });
        }
    }
    Some(specs)
}

#[cfg(test)]
mod tests;
