//! How current the objects of each source of configuration are, for metrics and the debug page.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use sluice_model::{ConfigSource, ConfigSourceKind, Text};
use sluice_telemetry::Sample;

/// How a source is read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ConfigSourceStatus {
    /// The local cluster.
    Cluster,
    /// A directory that is followed.
    Directory,
    /// An xDS server with an open stream.
    Connected,
    /// An xDS server without a stream. Its last objects apply.
    Disconnected,
    /// Nothing is read from it.
    Unsupported,
}

/// A source in `/debug/config_sources`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigSourceSummary {
    /// Its URL.
    pub address: Text,
    /// How it is read.
    pub status: ConfigSourceStatus,
    /// Number of objects of an xDS server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<usize>,
    /// Types that an xDS server has not answered yet since the process started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<String>,
    /// Seconds without a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disconnected_seconds: Option<f64>,
    /// Why there is no stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Number of streams that failed.
    pub failures: u64,
}

/// The states of all sources. A clone is another handle.
#[derive(Clone, Debug, Default)]
pub struct ConfigSourceStates(Arc<Mutex<Vec<ConfigSourceState>>>);

/// The state of one source. A clone is another handle.
#[derive(Clone, Debug)]
pub struct ConfigSourceState {
    address: Text,
    kind: ConfigSourceKind,
    stream: Arc<Mutex<StreamState>>,
}

/// The stream of an xDS server.
#[derive(Debug, Default)]
struct StreamState {
    objects: usize,
    waiting_for: Vec<String>,
    /// Since when there is no stream; `None` while it is open.
    disconnected: Option<Instant>,
    failure: Option<String>,
    failures: u64,
}

impl ConfigSourceStates {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(SourcesCollector(self.clone())));
    }

    /// Adds a source. An xDS server has no stream yet.
    pub fn add(&self, source: &ConfigSource) -> ConfigSourceState {
        let stream = StreamState { disconnected: Some(Instant::now()), ..StreamState::default() };
        let state = ConfigSourceState {
            address: source.address.clone(),
            kind: source.kind.clone(),
            stream: Arc::new(Mutex::new(stream)),
        };
        self.lock().push(state.clone());
        state
    }

    /// All sources, in the order of the list. Empty without a list.
    #[must_use]
    pub fn all(&self) -> Vec<ConfigSourceSummary> {
        self.lock().iter().map(ConfigSourceState::summary).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ConfigSourceState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConfigSourceState {
    /// The stream is open. Returns whether there was none before.
    pub fn connected(&self) -> bool {
        let mut stream = self.stream();
        stream.failure = None;
        stream.disconnected.take().is_some()
    }

    /// The stream has ended, or was not opened.
    pub fn failed(&self, reason: String) {
        let mut stream = self.stream();
        stream.disconnected.get_or_insert_with(Instant::now);
        stream.failures += 1;
        stream.failure = Some(reason);
    }

    /// The source has this number of objects, and has not answered these types yet.
    pub fn received(&self, objects: usize, waiting_for: Vec<String>) {
        let mut stream = self.stream();
        (stream.objects, stream.waiting_for) = (objects, waiting_for);
    }

    fn stream(&self) -> MutexGuard<'_, StreamState> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_xds(&self) -> bool {
        matches!(self.kind, ConfigSourceKind::Xds(_))
    }

    fn summary(&self) -> ConfigSourceSummary {
        let stream = self.stream();
        let status = match self.kind {
            ConfigSourceKind::Xds(_) if stream.disconnected.is_none() => ConfigSourceStatus::Connected,
            ConfigSourceKind::Xds(_) => ConfigSourceStatus::Disconnected,
            ConfigSourceKind::Directory(_) => ConfigSourceStatus::Directory,
            ConfigSourceKind::Cluster => ConfigSourceStatus::Cluster,
            ConfigSourceKind::Unsupported => ConfigSourceStatus::Unsupported,
        };
        let disconnected = stream.disconnected.filter(|_| self.is_xds());
        ConfigSourceSummary {
            address: self.address.clone(),
            status,
            objects: self.is_xds().then_some(stream.objects),
            waiting_for: stream.waiting_for.clone(),
            disconnected_seconds: disconnected.map(|since| since.elapsed().as_secs_f64()),
            failure: stream.failure.clone(),
            failures: stream.failures,
        }
    }
}

/// Computes the metrics when they are read.
#[derive(Debug)]
struct SourcesCollector(ConfigSourceStates);

impl Collector for SourcesCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let sources: Vec<_> = self.0.all().into_iter().filter(|source| source.objects.is_some()).collect();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let number = |count: usize| count as f64;
        let mut gauge = |name, help, value: &dyn Fn(&ConfigSourceSummary) -> f64| {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for source in &sources {
                let labels = [("source", source.address.as_str())];
                ConstGauge::new(value(source)).encode(metric.encode_family(&labels)?)?;
            }
            fmt::Result::Ok(())
        };
        gauge("sluice_config_source_objects", "Objects of a source of configuration over xDS", &|source| {
            number(source.objects.unwrap_or_default())
        })?;
        gauge(
            "sluice_config_source_disconnected_seconds",
            "Time without a stream to a source of configuration over xDS, 0 while it is open",
            &|source| source.disconnected_seconds.unwrap_or_default(),
        )?;
        let mut failures = encoder.encode_descriptor(
            "sluice_config_source_failures_total",
            "Streams to a source of configuration over xDS that ended or were not opened",
            None,
            MetricType::Counter,
        )?;
        for source in &sources {
            let labels = [("source", source.address.as_str())];
            let count = usize::try_from(source.failures).unwrap_or(usize::MAX);
            Sample::counter(number(count)).encode(failures.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str, kind: ConfigSourceKind) -> ConfigSource {
        ConfigSource { address: address.into(), kind, tls: None }
    }

    #[test]
    fn disconnected_source_has_its_failure_and_its_objects() {
        let states = ConfigSourceStates::default();
        let mut registry = Registry::default();
        states.register(&mut registry);
        states.add(&source("k8s://", ConfigSourceKind::Cluster));
        let state = states.add(&source("xds://a:1", ConfigSourceKind::Xds("a:1".into())));
        state.received(7, vec!["networking.istio.io/v1/Gateway".to_owned()]);
        state.connected();
        state.failed("connection refused".to_owned());
        let [cluster, server] = states.all().try_into().expect("two sources");
        assert_eq!(
            (cluster.status, cluster.objects, cluster.disconnected_seconds),
            (ConfigSourceStatus::Cluster, None, None)
        );
        assert_eq!((server.status, server.objects, server.failures), (ConfigSourceStatus::Disconnected, Some(7), 1));
        assert_eq!((server.failure.as_deref(), server.waiting_for.len()), (Some("connection refused"), 1));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        assert!(text.contains("sluice_config_source_objects{source=\"xds://a:1\"} 7.0\n"), "{text}");
        assert!(text.contains("sluice_config_source_failures_total{source=\"xds://a:1\"} 1.0\n"), "{text}");
        assert!(!text.contains("k8s://"), "{text}");

        state.connected();
        assert_eq!(states.all()[1].failure, None);
        assert_eq!(states.all()[1].status, ConfigSourceStatus::Connected);
    }
}
