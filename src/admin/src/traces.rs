//! Follows changes until proxies have acknowledged them, and sends their traces (O16).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use prometheus_client::registry::Registry;
use sluice_engine::{Epoch, EpochSummary, HistoryQuery};
use sluice_listen::PeriodicLog;
use sluice_telemetry::{Count, register_counts};
use sluice_traces::{AcknowledgedProxy, ChangeTrace, ChangedObject, TraceExporter, TraceId, TraceOutcome};
use sluice_xds::{AckCounts, ProxyAck, short_name};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::AdminState;
use crate::answers::{ChangeAcks, WrittenObject, written};
use crate::epoch_times::EpochTimes;

/// Interval at which new epochs and acknowledgements are looked for. The times in traces are exact nevertheless, because
/// epochs and streams record them.
const INTERVAL: Duration = Duration::from_millis(100);
/// Changes that are followed at the same time. Further ones have no trace.
const MAX_FOLLOWED: usize = 256;
/// The time after which a trace ends without the acknowledgements of all proxies.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Proxies without an acknowledgement that a trace names.
const MAX_NAMED: usize = 10;

/// Counters of traces. Clones share them.
#[derive(Clone, Debug, Default)]
struct TraceCounts {
    sent: Count,
    failed: Count,
    skipped: Count,
}

/// Traces changes of objects. Epochs of proxies alone are not traced.
pub struct ChangeTracer {
    state: Arc<AdminState>,
    exporter: Arc<TraceExporter>,
    counts: TraceCounts,
    failures: PeriodicLog,
    /// The last epoch that was looked at.
    last: AtomicU64,
}

impl ChangeTracer {
    /// Traces the changes of a control plane from now on, also those before [`Self::run`].
    #[must_use]
    pub fn new(state: Arc<AdminState>, exporter: TraceExporter, registry: &mut Registry) -> Self {
        let counts = TraceCounts::default();
        let metrics = [
            ("sluice_traces_sent_total", "Traces of changes that were sent", &counts.sent),
            ("sluice_traces_failed_total", "Traces of changes that the endpoint did not take", &counts.failed),
            (
                "sluice_traces_skipped_total",
                "Changes without a trace because too many are followed, or their epoch is no longer known",
                &counts.skipped,
            ),
        ];
        register_counts(registry, metrics);
        let last = AtomicU64::new(state.engine.snapshot().epoch().0);
        Self { state, exporter: Arc::new(exporter), counts, failures: PeriodicLog::default(), last }
    }

    /// Traces changes until the process stops. Changes that are not acknowledged then are sent as they are.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut followed = Vec::new();
        loop {
            let stopped = tokio::select! {
                () = sleep(INTERVAL) => false,
                () = stop.cancelled() => true,
            };
            let (tracer, stop) = (self.clone(), stop.clone());
            let polled = tokio::task::spawn_blocking(move || {
                let ended = tracer.poll(&mut followed, &stop);
                (followed, ended)
            });
            let ended = match polled.await {
                Ok((rest, ended)) => {
                    followed = rest;
                    ended
                }
                // The supervisor of this task restarts it.
                Err(error) => match error.try_into_panic() {
                    Ok(reason) => std::panic::resume_unwind(reason),
                    Err(_) => return,
                },
            };
            self.send(&ended).await;
            if stopped {
                return;
            }
        }
    }

    async fn send(&self, traces: &[ChangeTrace]) {
        if traces.is_empty() {
            return;
        }
        let count = u64::try_from(traces.len()).unwrap_or(u64::MAX);
        let Err(error) = self.exporter.export(traces).await else { return self.counts.sent.inc_by(count) };
        self.counts.failed.inc_by(count);
        if let Some(failures) = self.failures.event(Instant::now()) {
            warn!(%error, failures, "cannot send traces");
        }
    }

    /// Looks for new epochs and acknowledgements. Returns the traces that ended: all of them once `stop` is cancelled.
    fn poll(&self, followed: &mut Vec<FollowedChange>, stop: &CancellationToken) -> Vec<ChangeTrace> {
        // Ages are as of a later moment: so no time is later than it was.
        let now = SystemTime::now();
        let last = Epoch(self.last.load(Ordering::Relaxed));
        for epoch in self.state.engine.history(HistoryQuery::recent(0).after(last)) {
            let last = self.last.swap(epoch.epoch.0, Ordering::Relaxed);
            self.counts.skipped.inc_by(epoch.epoch.0.saturating_sub(last + 1));
            let objects = written(&epoch.writes);
            if objects.is_empty() {
                continue;
            }
            let Some(id) = self.exporter.sample() else { continue };
            match followed.len() < MAX_FOLLOWED {
                true => followed.push(FollowedChange::new(&self.state, id, &epoch, (objects, now))),
                false => self.counts.skipped.inc(),
            }
        }
        let mut ended = Vec::new();
        followed.retain_mut(|change| {
            let trace = change.poll(&self.state, stop);
            let goes_on = trace.is_none();
            ended.extend(trace);
            goes_on
        });
        ended
    }
}

/// A change that proxies have not acknowledged yet.
struct FollowedChange {
    trace: ChangeTrace,
    deadline: Instant,
    acks: ChangeAcks,
    /// The numbers at the last poll.
    counts: Option<AckCounts>,
}

impl FollowedChange {
    /// Follows an epoch with these objects, whose age is as of `now`.
    fn new(
        state: &AdminState,
        id: TraceId,
        epoch: &EpochSummary,
        (objects, now): (Vec<WrittenObject>, SystemTime),
    ) -> Self {
        let EpochTimes { received, parsed, committed } = EpochTimes::of(epoch, now);
        let acks = ChangeAcks::of(&state.handles, Some(epoch));
        let mut resources = BTreeMap::<_, usize>::new();
        for ((kind, _), names) in acks.resources().into_iter().flatten() {
            *resources.entry(short_name(*kind)).or_default() += names.len();
        }
        let trace = ChangeTrace {
            id,
            epoch: epoch.epoch.0,
            objects: objects.into_iter().map(changed_object).collect(),
            resources: resources.into_iter().collect(),
            received,
            parsed,
            committed,
            ended: committed,
            concerned: 0,
            acknowledged: Vec::new(),
            outcome: TraceOutcome::Acknowledged,
        };
        Self { trace, deadline: Instant::now() + TIME_LIMIT, acks, counts: None }
    }

    /// The trace, if all proxies have acknowledged the change, or it is not followed any longer.
    fn poll(&mut self, state: &AdminState, stop: &CancellationToken) -> Option<ChangeTrace> {
        // When the process stops, it ends the streams of proxies: what counts is the state before.
        if let Some(counts) = self.acks.poll_unless(&state.status, || stop.is_cancelled()) {
            self.counts = Some(counts);
        }
        let stopped = stop.is_cancelled();
        let is_late = stopped || Instant::now() >= self.deadline;
        let is_complete = self.counts.is_some_and(|counts| counts.acked == counts.concerned);
        if !is_complete && !is_late {
            return None;
        }
        let acks = self.acks.acknowledgements();
        let mut trace = self.trace.clone();
        trace.ended = SystemTime::now();
        trace.concerned = self.counts.map_or(0, |counts| counts.concerned);
        trace.acknowledged = acks.into_iter().map(acknowledged_proxy).collect();
        if !is_complete {
            trace.outcome = TraceOutcome::Incomplete(self.incomplete(stopped));
        }
        Some(trace)
    }

    /// Why the trace ends without all acknowledgements.
    fn incomplete(&self, stopped: bool) -> String {
        let reason = if stopped { "the control plane stopped" } else { "the time limit passed" };
        let Some(counts) = self.counts else { return format!("{reason} before the change was served") };
        let lagging = self.acks.lagging();
        let named = lagging.iter().take(MAX_NAMED).map(|proxy| {
            let pending = proxy.pending.first().map(|of| format!(" ({} {})", of.r#type, of.reason));
            format!("{}{}", proxy.proxy, pending.unwrap_or_default())
        });
        let named: Vec<_> = named.collect();
        format!(
            "{reason}: {} of {} proxies have not acknowledged: {}",
            lagging.len(),
            counts.concerned,
            named.join(", ")
        )
    }
}

fn changed_object(written: WrittenObject) -> ChangedObject {
    let WrittenObject { version, deleted } = written;
    ChangedObject { object: version.object, version: version.source.unwrap_or_default(), deleted }
}

fn acknowledged_proxy(ack: ProxyAck) -> AcknowledgedProxy {
    let now = SystemTime::now();
    let time = |at: Instant| now.checked_sub(at.elapsed()).unwrap_or(now);
    AcknowledgedProxy { proxy: ack.proxy.to_string(), sent: ack.sent.map(time), acknowledged: time(ack.acked) }
}
