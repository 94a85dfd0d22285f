//! How current the objects of each watched collection are, for metrics and debug pages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use sluice_model::Text;
use sluice_telemetry::Sample;
use tracing::warn;

/// Time between two warnings of one failing collection.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Age from which a collection without a failure is logged. docs/operate.md has an alert for it.
const STALE_AGE: Duration = Duration::from_secs(120);
/// Longest text of a failure. An API server may answer with a whole page.
const MAX_REASON_BYTES: usize = 300;

/// States of the watched collections of all clusters. A clone is another handle.
#[derive(Clone, Default)]
pub struct WatchStates(Arc<Mutex<BTreeMap<WatchKey, Arc<WatchState>>>>);

/// Cluster, and path of the collection.
type WatchKey = (Text, String);

/// The state of one collection.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchSummary {
    /// Path of the collection.
    pub resource: String,
    /// Seconds since the API server last sent an object or a bookmark, or accepted a request for the collection.
    pub age_seconds: f64,
    /// The last failure, if no request has succeeded since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureSummary>,
}

/// Why a collection cannot be read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureSummary {
    /// The answer of the API server, and what is used instead.
    pub reason: String,
    /// Seconds since the first of these failures.
    pub seconds: f64,
}

impl WatchStates {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(StatesCollector(self.clone())));
    }

    /// The collections of a cluster, by path.
    #[must_use]
    pub fn of(&self, cluster: &str) -> Vec<WatchSummary> {
        let states = self.states();
        let of_cluster = states.iter().filter(|((of, _), _)| **of == *cluster);
        of_cluster.map(|((_, resource), state)| state.state().summary(resource)).collect()
    }

    /// The collections of all clusters that cannot be read: cluster and state.
    #[must_use]
    pub fn failing(&self) -> Vec<(Text, WatchSummary)> {
        let states = self.states();
        let all = states.iter().map(|((cluster, resource), state)| (cluster.clone(), state.state().summary(resource)));
        all.filter(|(_, summary)| summary.failure.is_some()).collect()
    }

    /// Logs once a minute each collection that is older than two minutes. Failures are logged when they happen.
    pub async fn log_stale(&self) {
        let wait = |interval| async move {
            tokio::time::sleep(interval).await;
            Instant::now()
        };
        self.log_stale_after(wait).await;
    }

    /// The same with another clock: `wait` waits for a time and returns what the time is then.
    async fn log_stale_after<W: Future<Output = Instant>>(&self, mut wait: impl FnMut(Duration) -> W) {
        loop {
            let now = wait(WARNING_INTERVAL).await;
            for (cluster, kind, age) in self.stale(now) {
                let age_seconds = age.as_secs();
                warn!(
                    %cluster, kind, age_seconds,
                    "API server sends nothing for the kind, changes may be missing; reported once a minute"
                );
            }
        }
    }

    /// The collections that are old although no request for them has failed.
    fn stale(&self, now: Instant) -> Vec<(Text, String, Duration)> {
        let states = self.states();
        let ages = states.iter().filter_map(|((cluster, resource), state)| {
            let state = state.state();
            let age = now.saturating_duration_since(state.confirmed);
            (state.failing.is_none() && age > STALE_AGE).then(|| (cluster.clone(), resource.clone(), age))
        });
        ages.collect()
    }

    /// Adds a collection until the guard is dropped.
    pub(crate) fn add(&self, cluster: &str, resource: String) -> WatchGuard {
        let key = (Text::from(cluster), resource);
        let state = Arc::new(WatchState::default());
        self.states().insert(key.clone(), state.clone());
        WatchGuard { states: self.clone(), key, state }
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<WatchKey, Arc<WatchState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for WatchStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchStates")
    }
}

/// Removes a collection when it is dropped.
pub(crate) struct WatchGuard {
    states: WatchStates,
    key: WatchKey,
    pub(crate) state: Arc<WatchState>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let mut states = self.states.states();
        // A replacement may have added the same collection meanwhile.
        if states.get(&self.key).is_some_and(|state| Arc::ptr_eq(state, &self.state)) {
            states.remove(&self.key);
        }
    }
}

/// The state of one collection, which its watch updates.
#[derive(Debug, Default)]
pub(crate) struct WatchState(Mutex<State>);

#[derive(Debug)]
struct State {
    confirmed: Instant,
    failures: u64,
    /// Reason and begin of the current failures.
    failing: Option<(String, Instant)>,
    warned: Option<Instant>,
}

impl Default for State {
    fn default() -> Self {
        Self { confirmed: Instant::now(), failures: 0, failing: None, warned: None }
    }
}

impl WatchState {
    /// The API server sent data.
    pub(crate) fn confirmed(&self) {
        self.state().confirmed = Instant::now();
    }

    /// A request succeeded. Returns how long requests have failed before, if that was logged.
    pub(crate) fn succeeded(&self) -> Option<Duration> {
        let mut state = self.state();
        state.confirmed = Instant::now();
        let (_, since) = state.failing.take()?;
        state.warned.filter(|at| *at >= since).map(|_| since.elapsed())
    }

    /// A request failed. True if that is to be logged: once a minute.
    pub(crate) fn failed(&self, reason: &str) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        state.count(reason, now);
        state.is_warning_due(now)
    }

    /// A request failed because the whole API server is unreachable, which is logged elsewhere.
    pub(crate) fn unreachable(&self, reason: &str) {
        self.state().count(reason, Instant::now());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, reason: &str, now: Instant) {
        self.failures += 1;
        let since = self.failing.as_ref().map_or(now, |(_, since)| *since);
        self.failing = Some((shortened(reason).to_owned(), since));
    }

    fn is_warning_due(&mut self, now: Instant) -> bool {
        let is_due = self.warned.is_none_or(|at| now.saturating_duration_since(at) >= WARNING_INTERVAL);
        if is_due {
            self.warned = Some(now);
        }
        is_due
    }

    fn summary(&self, resource: &str) -> WatchSummary {
        let failure = self.failing.as_ref();
        WatchSummary {
            resource: resource.to_owned(),
            age_seconds: self.confirmed.elapsed().as_secs_f64(),
            failure: failure.map(|(reason, since)| FailureSummary {
                reason: reason.clone(),
                seconds: since.elapsed().as_secs_f64(),
            }),
        }
    }
}

/// The beginning of a long text.
pub(crate) fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MAX_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct WatchLabels {
    cluster: String,
    resource: String,
}

/// Computes the metrics when they are read.
#[derive(Debug)]
struct StatesCollector(WatchStates);

impl Collector for StatesCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let states = self.0.states();
        let labels =
            |(cluster, resource): &WatchKey| WatchLabels { cluster: cluster.to_string(), resource: resource.clone() };
        let mut ages = encoder.encode_descriptor(
            "sluice_kube_watch_age_seconds",
            "Time since the API server last sent an object or a bookmark of a collection, or accepted a request for it",
            None,
            MetricType::Gauge,
        )?;
        for (key, state) in states.iter() {
            let age = ConstGauge::new(state.state().confirmed.elapsed().as_secs_f64());
            age.encode(ages.encode_family(&labels(key))?)?;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let failures_of = |state: &WatchState| state.state().failures as f64;
        let mut failures = encoder.encode_descriptor(
            "sluice_kube_watch_failures_total",
            "Failed requests for a collection of an API server",
            None,
            MetricType::Counter,
        )?;
        let mut by_cluster: BTreeMap<&str, f64> = BTreeMap::new();
        for (key, state) in states.iter() {
            let count = failures_of(state);
            *by_cluster.entry(key.0.as_str()).or_default() += count;
            Sample::counter(count).encode(failures.encode_family(&labels(key))?)?;
        }
        let mut errors = encoder.encode_descriptor(
            "controller_sync_errors_total",
            "Failed requests for all collections of an API server",
            None,
            MetricType::Counter,
        )?;
        for (cluster, count) in by_cluster {
            Sample::counter(count).encode(errors.encode_family(&[("cluster", cluster)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Level, Metadata, Subscriber, span};

    use super::*;

    /// The fields of an event by name.
    type Fields = BTreeMap<&'static str, String>;

    /// Keeps warnings.
    #[derive(Clone, Default)]
    struct Warnings(Arc<Mutex<Vec<Fields>>>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut recorded = Recorded::default();
            event.record(&mut recorded);
            self.0.lock().expect("no panic").push(recorded.0);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[derive(Default)]
    struct Recorded(Fields);

    impl Visit for Recorded {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name(), value.to_owned());
        }

        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.insert(field.name(), format!("{value:?}"));
        }
    }

    #[test]
    fn silent_collection_is_logged_once_a_minute_with_kind_cluster_and_age() {
        const LOGGED_TIME: Duration = Duration::from_secs(300);
        let states = WatchStates::default();
        let silent = states.add("east", "/api/v1/pods".to_owned());
        let warnings = Warnings::default();
        let _subscriber = tracing::subscriber::set_default(warnings.clone());
        let begun = silent.state.state().confirmed;
        let mut now = begun;
        let logging = states.log_stale_after(|interval| {
            now += interval;
            let (at, is_over) = (now, now > begun + LOGGED_TIME);
            async move {
                if is_over {
                    std::future::pending::<()>().await;
                }
                at
            }
        });
        assert!(logging.now_or_never().is_none(), "it never ends");
        let logged = warnings.0.lock().expect("no panic");
        let rows = logged.iter().map(|fields| ["kind", "cluster", "age_seconds"].map(|name| fields[name].as_str()));
        let rows: Vec<[&str; 3]> = rows.collect();
        assert_eq!(rows, ["180", "240", "300"].map(|age| ["/api/v1/pods", "east", age]));
        let message = "API server sends nothing for the kind";
        assert!(logged.iter().all(|fields| fields["message"].starts_with(message)), "{logged:?}");
    }

    #[test]
    fn failing_collection_is_logged_once_a_minute_and_reports_its_recovery() {
        let now = Instant::now();
        let mut state = State::default();
        let logged = (0..600).filter(|tenth| state.is_warning_due(now + Duration::from_millis(100 * tenth))).count();
        assert_eq!(logged, 1, "failures of a minute");
        assert!(state.is_warning_due(now + WARNING_INTERVAL));

        let state = WatchState::default();
        assert_eq!(state.succeeded(), None, "nothing has failed");
        assert!(state.failed("500") && state.succeeded().is_some());
        assert!(!state.failed("500"), "the warning of the last failure is not a minute old");
        assert_eq!(state.succeeded(), None, "this failure was not logged");
    }

    #[test]
    fn collection_that_is_silent_for_two_minutes_is_stale_and_one_that_fails_is_logged_by_its_failure() {
        let states = WatchStates::default();
        let silent = states.add("east", "/api/v1/pods".to_owned());
        let failing = states.add("east", "/api/v1/services".to_owned());
        failing.state.failed("500");
        let now = Instant::now();
        assert!(states.stale(now + STALE_AGE / 2).is_empty());
        let later = now + STALE_AGE + Duration::from_secs(1);
        let [(cluster, kind, age)] = states.stale(later).try_into().expect("one collection");
        assert_eq!((cluster.as_str(), kind.as_str()), ("east", "/api/v1/pods"));
        assert!(age > STALE_AGE);
        failing.state.succeeded();
        assert_eq!(states.stale(later).len(), 2);
        drop(silent);
        assert_eq!(states.stale(later).len(), 1);
    }

    #[test]
    fn states_are_metrics_and_summaries_while_their_watch_runs() {
        let states = WatchStates::default();
        let mut registry = Registry::default();
        states.register(&mut registry);
        let text = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
            text
        };
        let guard = states.add("east", "/api/v1/pods".to_owned());
        guard.state.failed(&"é".repeat(400));
        let [summary] = states.of("east").try_into().expect("one collection");
        assert_eq!(summary.failure.expect("it fails").reason, "é".repeat(150));
        assert_eq!(states.failing().len(), 1);
        let labels = "{cluster=\"east\",resource=\"/api/v1/pods\"}";
        assert!(text().contains(&format!("sluice_kube_watch_age_seconds{labels} ")), "{}", text());
        assert!(text().contains(&format!("sluice_kube_watch_failures_total{labels} 1.0\n")), "{}", text());
        guard.state.succeeded();
        assert!(states.failing().is_empty());

        let replacement = states.add("east", "/api/v1/pods".to_owned());
        drop(guard);
        assert_eq!(states.of("east").len(), 1, "the replacement is left");
        drop(replacement);
        assert!(states.of("east").is_empty() && !text().contains("/api/v1/pods"));
    }
}
