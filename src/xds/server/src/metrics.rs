//! Metrics of the ADS server, with istiod's names where it has them (O13, O15).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sluice_model::{ResourceType, Text};
use sluice_telemetry::{Count, grpc_code_name};
use sluice_xds_protocol::ChangeTimes;

use crate::version_counts::{CountedStream, VersionCounts};

/// Maximum number of proxies named in a label; rejections by further ones are counted under `other`.
const MAX_NODE_LABELS: usize = 1000;
/// Maximum length of a node id in a label; rejections by proxies with longer ones are counted under `other`.
const MAX_NODE_LABEL_BYTES: usize = 512;

/// Label `type`: the resource type (`cds`, `eds` …; a type URL for sizes), or the reason of a push trigger.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct TypeLabel {
    r#type: &'static str,
}

/// Labels of `pilot_xds_*_reject`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct RejectLabel {
    node: String,
    err: String,
}

/// Label `reason` of refused streams.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Label `stage` of the push latency.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

/// Metrics of the ADS server. A clone is another handle to the same metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    clients: VersionCounts,
    pushes: Family<TypeLabel, Count>,
    push_time: Family<TypeLabel, Histogram>,
    size: Family<TypeLabel, Histogram>,
    rejects: Family<TypeLabel, Count>,
    rejects_by_node: [(ResourceType, &'static str, Family<RejectLabel, Gauge>); 4],
    nodes: Arc<std::sync::Mutex<std::collections::BTreeSet<Text>>>,
    expired: Family<TypeLabel, Count>,
    internal_errors: Count,
    refused: Family<ReasonLabel, Count>,
    secret_errors: Count,
    send_time: Histogram,
    convergence: Histogram,
    queue_time: Histogram,
    committed: Histogram,
    computed: Histogram,
    triggers: Family<TypeLabel, Count>,
    request_size: Gauge,
    stages: Family<StageLabel, Histogram>,
    handles: Arc<Handles>,
}

/// The metrics that every response updates, looked up once.
#[derive(Debug, Default)]
struct Handles {
    pushes: [OnceLock<PushMetrics>; ResourceType::ALL.len()],
    stages: [OnceLock<Histogram>; Stage::NAMES.len()],
}

/// Metrics of the responses of a type.
#[derive(Debug)]
struct PushMetrics {
    pushes: Count,
    time: Histogram,
    size: Histogram,
}

/// The stages of a change.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Parsed,
    Committed,
    FirstByte,
    Acknowledged,
}

impl Stage {
    const NAMES: [&str; 4] = ["parsed", "committed", "first_byte", "acknowledged"];
}

impl Default for Metrics {
    fn default() -> Self {
        let reject = |kind, name| (kind, name, Family::default());
        Self {
            clients: VersionCounts::default(),
            pushes: Family::default(),
            push_time: Family::new_with_constructor(|| Histogram::new([0.01, 0.1, 0.5, 1., 3., 5., 10., 20., 30.])),
            size: Family::new_with_constructor(|| {
                Histogram::new([1., 10_000., 1_000_000., 4_000_000., 10_000_000., 40_000_000.])
            }),
            rejects: Family::default(),
            rejects_by_node: [
                reject(ResourceType::Cluster, "pilot_xds_cds_reject"),
                reject(ResourceType::Endpoint, "pilot_xds_eds_reject"),
                reject(ResourceType::Listener, "pilot_xds_lds_reject"),
                reject(ResourceType::Route, "pilot_xds_rds_reject"),
            ],
            nodes: Arc::default(),
            expired: Family::default(),
            internal_errors: Count::default(),
            refused: Family::default(),
            secret_errors: Count::default(),
            send_time: Histogram::new([0.01, 0.1, 1., 3., 5., 10., 20., 30.]),
            convergence: Histogram::new([0.1, 0.5, 1., 3., 5., 10., 20., 30.]),
            queue_time: Histogram::new([0.1, 0.5, 1., 3., 5., 10., 20., 30.]),
            committed: Histogram::new([0.01, 0.1, 0.5, 1., 3., 5., 10., 20., 30.]),
            computed: Histogram::new([0.01, 0.1, 0.5, 1., 3., 5.]),
            triggers: Family::default(),
            request_size: Gauge::default(),
            stages: Family::new_with_constructor(|| {
                Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 2.5, 5., 10.])
            }),
            handles: Arc::default(),
        }
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("pilot_xds", "Number of connected proxies, by version", self.clients.family());
        registry.register("pilot_xds_pushes", "Responses sent, by type", self.pushes.clone());
        registry.register("pilot_xds_push_time", "Seconds to build a response, by type", self.push_time.clone());
        registry.register("pilot_xds_config_size_bytes", "Sizes of responses, by type", self.size.clone());
        registry.register("pilot_total_xds_rejects", "Responses rejected by proxies, by type", self.rejects.clone());
        for (_, name, family) in &self.rejects_by_node {
            registry.register(*name, "Responses rejected, by proxy and error code", family.clone());
        }
        registry.register(
            "pilot_xds_expired_nonce",
            "Requests that acknowledge or reject an outdated response, by type",
            self.expired.clone(),
        );
        registry.register(
            "pilot_total_xds_internal_errors",
            "Streams that ended with an error",
            self.internal_errors.clone(),
        );
        registry.register(
            "pilot_sds_certificate_errors_total",
            "Secrets that proxies subscribe to and are not served",
            self.secret_errors.clone(),
        );
        registry.register(
            "sluice_xds_refused",
            "Streams refused, by reason: unauthenticated, identity, rate, load, profiles, locations, proxies, debug, configuration, caller, node, first_request, slow_request, waiting, reviews, expired",
            self.refused.clone(),
        );
        registry.register(
            "pilot_xds_send_time",
            "Seconds from the start of building a response until the transport has taken it",
            self.send_time.clone(),
        );
        registry.register(
            "pilot_proxy_convergence_time",
            "Seconds from the arrival of a change until all its resources are sent to a proxy",
            self.convergence.clone(),
        );
        registry.register(
            "pilot_proxy_queue_time",
            "Seconds from the commit of a change until its first response on a stream",
            self.queue_time.clone(),
        );
        registry.register(
            "pilot_debounce_time",
            "Seconds from the arrival of the first change of an epoch until the epoch is committed",
            self.committed.clone(),
        );
        registry.register(
            "pilot_pushcontext_init_seconds",
            "Seconds to compute an epoch that changes resources",
            self.computed.clone(),
        );
        registry.register(
            "pilot_push_triggers",
            "Epochs and requests that caused responses, by reason",
            self.triggers.clone(),
        );
        registry.register(
            "pilot_xds_recv_max",
            "Maximum size of a request so far, in bytes",
            self.request_size.clone(),
        );
        registry.register(
            "sluice_push_stage_seconds",
            "Seconds of each stage of a change: parsed, committed, first_byte, acknowledged; each measured from the end of the previous one",
            self.stages.clone(),
        );
    }

    /// Counts a connected proxy until the result is dropped.
    pub(crate) fn connected(&self, version: &str) -> CountedStream {
        self.clients.count(version)
    }

    /// Counts a push trigger with istiod's reason: `endpoint`, `config`, `proxy`, `proxyrequest`.
    pub(crate) fn triggered(&self, reason: &'static str) {
        self.triggers.get_or_create(&TypeLabel { r#type: reason }).inc();
    }

    pub(crate) fn rejected(&self, kind: ResourceType, node: &Text, code: i32) {
        self.rejects.get_or_create(&label(kind)).inc();
        let Some((_, _, family)) = self.rejects_by_node.iter().find(|(have, ..)| *have == kind) else { return };
        let mut nodes = self.nodes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fits = node.len() <= MAX_NODE_LABEL_BYTES;
        let named = fits && (nodes.contains(node) || (nodes.len() < MAX_NODE_LABELS && nodes.insert(node.clone())));
        let node = if named { node.to_string() } else { "other".to_owned() };
        family.get_or_create(&RejectLabel { node, err: grpc_code_name(code).to_owned() }).inc();
    }

    pub(crate) fn expired(&self, kind: ResourceType) {
        self.expired.get_or_create(&label(kind)).inc();
    }

    pub(crate) fn failed(&self) {
        self.internal_errors.inc();
    }

    /// Counts a refusal. Reasons: `unauthenticated` (no valid credentials), `identity` (the node does not match the caller's
    /// identity), `rate` (more new streams than `PILOT_MAX_REQUESTS_PER_SECOND`), `load` (too many streams wait), `profiles`,
    /// `locations` and `proxies` (the caller's proxies exceed a limit), `caller` (the caller has too many streams), `node` (the node
    /// does not describe a proxy), `debug` and `configuration` (a debug page, or configuration, that the caller may not see, or too many
    /// of them), `first_request` and `slow_request` (the first request, or the rest of a later one, does not arrive in time), `waiting`
    /// (too many streams wait until an earlier request has been received), `reviews` (too many callers wait for the review of their
    /// tokens), `expired` (the caller's credentials have expired), `registration` (the workload may not register itself).
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts secrets that a proxy subscribes to and is not served.
    pub(crate) fn secrets_not_served(&self, count: usize) {
        self.secret_errors.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(crate) fn requested(&self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if bytes > self.request_size.get() {
            self.request_size.set(bytes);
        }
    }

    pub(crate) fn built(&self, kind: ResourceType, bytes: usize, took: Duration) {
        let Some(metrics) = self.handles.pushes.get(kind as usize) else { return };
        let metrics = metrics.get_or_init(|| PushMetrics {
            pushes: self.pushes.get_or_create(&label(kind)).clone(),
            time: self.push_time.get_or_create(&label(kind)).clone(),
            size: self.size.get_or_create(&TypeLabel { r#type: kind.type_url() }).clone(),
        });
        metrics.pushes.inc();
        metrics.time.observe(took.as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        metrics.size.observe(bytes as f64);
    }

    pub(crate) fn sent(&self, took: Duration) {
        self.send_time.observe(took.as_secs_f64());
    }

    /// Counts an epoch that changes resources.
    pub(crate) fn committed(&self, times: &ChangeTimes) {
        self.committed.observe(times.committed.saturating_duration_since(times.source).as_secs_f64());
        self.computed.observe(times.committed.saturating_duration_since(times.parsed).as_secs_f64());
    }

    pub(crate) fn converged(&self, times: &ChangeTimes, now: Instant) {
        self.convergence.observe(now.saturating_duration_since(times.source).as_secs_f64());
    }

    pub(crate) fn first_byte(&self, times: &ChangeTimes, now: Instant) {
        self.stage(Stage::Parsed, times.parsed.saturating_duration_since(times.source));
        self.stage(Stage::Committed, times.committed.saturating_duration_since(times.parsed));
        let waited = now.saturating_duration_since(times.committed);
        self.stage(Stage::FirstByte, waited);
        self.queue_time.observe(waited.as_secs_f64());
    }

    pub(crate) fn acknowledged(&self, sent: Instant, now: Instant) {
        self.stage(Stage::Acknowledged, now.saturating_duration_since(sent));
    }

    fn stage(&self, stage: Stage, took: Duration) {
        let at = stage as usize;
        if let (Some(handle), Some(stage)) = (self.handles.stages.get(at), Stage::NAMES.get(at)) {
            let handle = handle.get_or_init(|| self.stages.get_or_create(&StageLabel { stage }).clone());
            handle.observe(took.as_secs_f64());
        }
    }
}

fn label(kind: ResourceType) -> TypeLabel {
    TypeLabel { r#type: short_name(kind) }
}

/// The short name of a type, as in metrics and `istioctl`.
#[must_use]
pub const fn short_name(kind: ResourceType) -> &'static str {
    match kind {
        ResourceType::Cluster => "cds",
        ResourceType::Endpoint => "eds",
        ResourceType::LbEndpoint => "leds",
        ResourceType::Listener => "lds",
        ResourceType::Route => "rds",
        ResourceType::VirtualHost => "vhds",
        ResourceType::Secret => "sds",
        ResourceType::ExtensionConfig => "ecds",
        ResourceType::NameTable => "nds",
        ResourceType::ProxyConfig => "pcds",
        ResourceType::Address | ResourceType::Workload => "wds",
        ResourceType::Authorization => "wads",
        ResourceType::Agentgateway => "agentgateway",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_equal_those_of_istiod_without_added_suffixes() {
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.built(ResourceType::Cluster, 2_000_000, Duration::from_millis(20));
        metrics.rejected(ResourceType::Route, &"node".into(), 13);
        let _stream = metrics.connected("1.30.1");
        metrics.expired(ResourceType::Endpoint);
        metrics.triggered("config");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a string");
        for line in [
            "# TYPE pilot_xds_pushes counter",
            "pilot_xds_pushes{type=\"cds\"} 1",
            "pilot_total_xds_rejects{type=\"rds\"} 1",
            "pilot_xds_rds_reject{node=\"node\",err=\"Internal\"} 1",
            "pilot_xds{version=\"1.30.1\"} 1",
            "pilot_xds_expired_nonce{type=\"eds\"} 1",
            "pilot_push_triggers{type=\"config\"} 1",
            "pilot_xds_config_size_bytes_bucket{le=\"4000000.0\",type=\"type.googleapis.com/envoy.config.cluster.v3.Cluster\"} 1",
            "pilot_xds_push_time_count{type=\"cds\"} 1",
            "pilot_total_xds_internal_errors 0",
        ] {
            assert!(text.lines().any(|have| have == line), "no line {line:?} in\n{text}");
        }
        // This name has the suffix in istiod too.
        let text = text.replace("pilot_sds_certificate_errors_total", "");
        assert!(!text.contains("_total{") && !text.contains("_total "), "no counter has a suffix added\n{text}");
    }

    #[test]
    fn node_labels_of_rejections_are_bounded() {
        let metrics = Metrics::default();
        metrics.rejected(ResourceType::Cluster, &Text::from("n".repeat(MAX_NODE_LABEL_BYTES + 1)), 3);
        for node in 1..MAX_NODE_LABELS + 10 {
            metrics.rejected(ResourceType::Cluster, &Text::from(format!("n{node}")), 3);
        }
        let other = RejectLabel { node: "other".into(), err: "InvalidArgument".into() };
        assert_eq!(metrics.rejects_by_node[0].2.get_or_create(&other).get(), 10);
    }
}
