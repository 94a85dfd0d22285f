//! The agent's own metrics, under `istio_agent_`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sluice_listen::ListenMetrics;

/// Handles to all metrics. Clones share the counters.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    /// Metrics without the prefix of the agent.
    common: Registry,
    start: Instant,
    startup: Gauge<f64, AtomicU64>,
    certificate_expiry: Gauge,
    requests: Family<RequestLabels, Counter>,
    failed_requests: Family<RequestLabels, Counter>,
    request_millis: Family<RequestLabels, Gauge<f64, AtomicU64>>,
    file_failures: Counter,
    connection_failures: Counter,
    connection_errors: Counter,
    xds_requests: Counter,
    xds_responses: Counter,
    scrapes: Counter,
    scrape_failures: Family<ScrapeLabels, Counter>,
    dns_requests: Counter,
    dns_upstream: Counter,
    dns_upstream_failures: Counter,
    listen: ListenMetrics,
    wasm_modules: Gauge,
    wasm_lookups: Family<LookupLabels, Counter>,
    wasm_fetches: Family<ResultLabels, Counter>,
    wasm_conversions: Family<ResultLabels, Counter>,
    wasm_millis: Histogram,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct RequestLabels {
    request_type: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct ScrapeLabels {
    r#type: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct LookupLabels {
    hit: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct ResultLabels {
    result: &'static str,
}

const CSR: RequestLabels = RequestLabels { request_type: "csr" };

impl Default for Metrics {
    fn default() -> Self {
        let mut inner = Inner {
            registry: Registry::with_prefix("istio_agent"),
            common: Registry::default(),
            start: Instant::now(),
            startup: Gauge::default(),
            certificate_expiry: Gauge::default(),
            requests: Family::default(),
            failed_requests: Family::default(),
            request_millis: Family::default(),
            file_failures: Counter::default(),
            connection_failures: Counter::default(),
            connection_errors: Counter::default(),
            xds_requests: Counter::default(),
            xds_responses: Counter::default(),
            scrapes: Counter::default(),
            scrape_failures: Family::default(),
            dns_requests: Counter::default(),
            dns_upstream: Counter::default(),
            dns_upstream_failures: Counter::default(),
            listen: ListenMetrics::default(),
            wasm_modules: Gauge::default(),
            wasm_lookups: Family::default(),
            wasm_fetches: Family::default(),
            wasm_conversions: Family::default(),
            wasm_millis: Histogram::new((0..15).map(|power| f64::from(1 << power))),
        };
        sluice_tasks::register(&mut inner.common);
        sluice_telemetry::register(&mut inner.common);
        let registry = &mut inner.registry;
        registry.register(
            "startup_duration_seconds",
            "Seconds from the start until the proxy is ready",
            inner.startup.clone(),
        );
        registry.register(
            "cert_expiry_timestamp_seconds",
            "Expiry of the workload's certificate, in seconds since the Unix epoch",
            inner.certificate_expiry.clone(),
        );
        registry.register("num_outgoing_requests", "Requests to the certificate authority", inner.requests.clone());
        registry.register(
            "num_failed_outgoing_requests",
            "Failed requests to the certificate authority",
            inner.failed_requests.clone(),
        );
        registry.register(
            "outgoing_latency",
            "Milliseconds of the last request to the certificate authority",
            inner.request_millis.clone(),
        );
        registry.register("num_file_secret_failures", "Secret files that were invalid", inner.file_failures.clone());
        registry.register(
            "istiod_connection_failures",
            "Failed connections to the control plane",
            inner.connection_failures.clone(),
        );
        registry.register(
            "istiod_connection_errors",
            "Streams that the control plane rejected or closed",
            inner.connection_errors.clone(),
        );
        registry.register("xds_proxy_requests", "Requests forwarded to the control plane", inner.xds_requests.clone());
        registry.register("xds_proxy_responses", "Responses from the control plane", inner.xds_responses.clone());
        registry.register("scrapes", "Scrapes of the merged metrics", inner.scrapes.clone());
        registry.register(
            "scrape_failures",
            "Failed scrapes of Envoy and the application",
            inner.scrape_failures.clone(),
        );
        registry.register("dns_requests", "DNS requests", inner.dns_requests.clone());
        registry.register(
            "dns_upstream_requests",
            "DNS requests forwarded to name servers",
            inner.dns_upstream.clone(),
        );
        registry.register(
            "dns_upstream_failures",
            "Forwarded DNS requests without a response",
            inner.dns_upstream_failures.clone(),
        );
        inner.listen.register(registry);
        registry.register("wasm_cache_entries", "Cached Wasm modules", inner.wasm_modules.clone());
        registry.register(
            "wasm_cache_lookup_count",
            "Lookups of Wasm modules in the cache",
            inner.wasm_lookups.clone(),
        );
        registry.register("wasm_remote_fetch_count", "Fetches of Wasm modules, by result", inner.wasm_fetches.clone());
        registry.register(
            "wasm_config_conversion_count",
            "Conversions of extensions, by result",
            inner.wasm_conversions.clone(),
        );
        registry.register(
            "wasm_config_conversion_duration",
            "Milliseconds to convert the extensions of one response",
            inner.wasm_millis.clone(),
        );
        Self(Arc::new(inner))
    }
}

impl Metrics {
    /// The proxy is ready for the first time.
    pub(crate) fn ready(&self) {
        self.0.startup.set(self.0.start.elapsed().as_secs_f64());
    }

    pub(crate) fn certificate_expires(&self, at: SystemTime) {
        let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.0.certificate_expiry.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    pub(crate) fn certificate_requested(&self, duration: Duration, succeeded: bool) {
        self.0.requests.get_or_create(&CSR).inc();
        self.0.request_millis.get_or_create(&CSR).set(duration.as_secs_f64() * 1000.0);
        if !succeeded {
            self.0.failed_requests.get_or_create(&CSR).inc();
        }
    }

    pub(crate) fn file_secret_failed(&self) {
        self.0.file_failures.inc();
    }

    pub(crate) fn connection_failed(&self) {
        self.0.connection_failures.inc();
    }

    pub(crate) fn stream_failed(&self) {
        self.0.connection_errors.inc();
    }

    pub(crate) fn xds_request(&self) {
        self.0.xds_requests.inc();
    }

    pub(crate) fn xds_response(&self) {
        self.0.xds_responses.inc();
    }

    pub(crate) fn scraped(&self) {
        self.0.scrapes.inc();
    }

    /// The source is `envoy` or `application`.
    pub(crate) fn scrape_failed(&self, source: &'static str) {
        self.0.scrape_failures.get_or_create(&ScrapeLabels { r#type: source }).inc();
    }

    pub(crate) fn dns_request(&self) {
        self.0.dns_requests.inc();
    }

    /// Metrics of the ports.
    pub(crate) fn listen(&self) -> ListenMetrics {
        self.0.listen.clone()
    }

    pub(crate) fn dns_forwarded(&self, responded: bool) {
        self.0.dns_upstream.inc();
        if !responded {
            self.0.dns_upstream_failures.inc();
        }
    }

    pub(crate) fn wasm_modules(&self, count: usize) {
        self.0.wasm_modules.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn wasm_looked_up(&self, hit: bool) {
        let hit = if hit { "true" } else { "false" };
        self.0.wasm_lookups.get_or_create(&LookupLabels { hit }).inc();
    }

    pub(crate) fn wasm_fetched(&self, result: &'static str) {
        self.0.wasm_fetches.get_or_create(&ResultLabels { result }).inc();
    }

    pub(crate) fn wasm_converted(&self, result: &'static str) {
        self.0.wasm_conversions.get_or_create(&ResultLabels { result }).inc();
    }

    pub(crate) fn wasm_response_converted(&self, duration: Duration) {
        self.0.wasm_millis.observe(duration.as_secs_f64() * 1000.0);
    }

    /// All metrics as text, without the end mark of OpenMetrics, because metrics of other sources follow.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut encode = |registry| prometheus_client::encoding::text::encode_registry(&mut text, registry);
        if encode(&self.0.registry).and_then(|()| encode(&self.0.common)).is_err() {
            text.clear();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_equal_those_of_pilot_agent() {
        let metrics = Metrics::default();
        metrics.certificate_requested(Duration::from_millis(3), false);
        metrics.connection_failed();
        metrics.scraped();
        let text = metrics.text();
        for line in [
            "istio_agent_num_outgoing_requests_total{request_type=\"csr\"} 1",
            "istio_agent_num_failed_outgoing_requests_total{request_type=\"csr\"} 1",
            "istio_agent_istiod_connection_failures_total 1",
            "istio_agent_scrapes_total 1",
        ] {
            assert!(text.lines().any(|text_line| text_line == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("# EOF"));
    }
}
