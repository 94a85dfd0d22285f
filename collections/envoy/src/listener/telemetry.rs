//! What is observed of a proxy (T01): Telemetries and default providers, merged for each side.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use sluice_model::{
    Decimal, DefaultProviders, ExtensionProvider, MetricMatch, MetricsOverride, ProviderKind, ProviderService,
    Telemetry, TelemetryLogging, TelemetryMetrics, TelemetryTracing, Text, TraceTag,
};

use super::extension::ListenerExtension;
use super::settings::Settings;
use crate::filter::Class;
use crate::security::authorizer_service;

/// Istio's own metrics: the word of the API and the name proxies know.
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

/// What Telemetries and extensions attach to a proxy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Attached {
    /// What is observed.
    pub observation: Observation,
    /// Extensions, in order within each phase.
    pub extensions: Vec<ListenerExtension>,
}

/// What is observed of a proxy. Providers stand by name; whether there is one shows when a listener is written.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Observation {
    /// On the way out, and of gateways.
    pub client: ObservedSide,
    /// On the way in.
    pub server: ObservedSide,
}

/// What is observed of one side of a proxy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ObservedSide {
    /// Metrics by provider; a provider whose metrics are all disabled is not there.
    pub metrics: BTreeMap<Text, MetricsSpec>,
    /// Tracing; `None` leaves it to the configuration of mesh and proxy.
    pub tracing: Option<TracingSpec>,
    /// Access logs by provider; `None` leaves them to the mesh config's own switches.
    pub logging: Option<BTreeMap<Text, LogSpec>>,
}

/// Metrics for one provider.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MetricsSpec {
    /// Changed metrics, by the word of the API or the custom name.
    pub overrides: BTreeMap<Text, MetricSpec>,
    /// Time between reports of open TCP connections, if set.
    pub reporting_interval: Option<Duration>,
}

/// A changed metric.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MetricSpec {
    /// Not reported.
    pub disabled: bool,
    /// Tags by name: an expression, or none to remove the tag.
    pub tags: BTreeMap<Text, Option<Text>>,
}

/// Tracing of one side of a proxy.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TracingSpec {
    /// Where spans go; without there is no tracing.
    pub provider: Option<Text>,
    /// No tracing at all.
    pub disabled: bool,
    /// Percent of requests; `None` is as configured for the proxy.
    pub sampling: Option<Decimal>,
    /// Tags by name; empty is as configured for the proxy.
    pub custom_tags: BTreeMap<Text, TraceTag>,
    /// Request ids decide what is sampled.
    pub sample_by_request_id: bool,
    /// Tags about the mesh.
    pub istio_tags: bool,
    /// The context is not handed on.
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

/// An access log in use.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct LogSpec {
    /// Not written, and nothing else in its place.
    pub disabled: bool,
    /// CEL expression an entry must satisfy, if any.
    pub filter: Option<Text>,
}

impl Observation {
    /// What these Telemetries, the most general first, make of the mesh's default providers.
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

/// The providers of the last entry that names some are the only ones; an entry that names none is for those of the one
/// before.
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
                    // Whatever is said of a metric switches a provider on again.
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
        // One tracer a side: the first.
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

/// The providers of the last Telemetry that names some for the side are the only ones.
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
            // A filter is of the providers its entry names, not of those it only inherits.
            let filter = filters.get(name).copied().flatten().filter(|_| !entry.disabled).cloned();
            specs.insert(name.clone(), LogSpec { disabled: entry.disabled, filter });
        }
    }
    Some(specs)
}

impl Settings {
    /// The provider of that name; its case does not matter.
    pub(crate) fn provider(&self, name: &str) -> Option<&ExtensionProvider> {
        self.mesh.extension_providers.iter().find(|provider| provider.name.eq_ignore_ascii_case(name))
    }

    /// What is observed of a side.
    pub(crate) fn observed(&self, class: Class) -> &ObservedSide {
        match class {
            Class::Inbound => &self.attached.observation.server,
            Class::Outbound | Class::Gateway => &self.attached.observation.client,
        }
    }
}

/// Services that a provider is reached by: those [`Settings::collectors`] should name.
#[must_use]
pub fn collector_services(kind: &ProviderKind) -> Vec<&ProviderService> {
    match kind {
        ProviderKind::Zipkin { service, .. }
        | ProviderKind::Datadog { service, .. }
        | ProviderKind::SkyWalking { service, .. }
        | ProviderKind::HttpAccessLogService { service, .. }
        | ProviderKind::TcpAccessLogService { service, .. }
        | ProviderKind::OpenTelemetryLog { service, .. }
        | ProviderKind::Sds { service, .. } => vec![service],
        ProviderKind::OpenTelemetry(otel) => {
            let sampler = otel.dynatrace_sampler.as_ref().and_then(|sampler| sampler.api.as_ref());
            std::iter::once(&otel.service).chain(sampler.map(|(service, _)| service)).collect()
        }
        other => authorizer_service(other).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests;
