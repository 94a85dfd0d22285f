//! The streams of one workload, and what its entry should say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sluice_model::Proxy;
use tokio::time::Instant;

use super::WorkloadStream;

/// Time between two writes of the health of a workload. A proxy that reports more often has its last report written.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// The health that a proxy reports.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct HealthReport {
    /// Healthy, or why not.
    pub(super) result: Result<(), String>,
    /// When it was reported.
    pub(super) at: SystemTime,
}

/// Whether a workload is connected to this replica.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Presence {
    /// Since the last stream began.
    Connected { since: SystemTime },
    /// The last stream has ended.
    Disconnected { at: SystemTime, connected_at: SystemTime },
}

/// What an entry should say.
#[derive(Clone, Debug)]
pub(super) struct EntryState {
    pub(super) proxy: Arc<Proxy>,
    /// The entry is created if it does not exist.
    pub(super) registers: bool,
    pub(super) presence: Presence,
    pub(super) health: Option<HealthReport>,
}

/// A workload with streams, or whose last stream has not been written as ended.
#[derive(Default)]
pub(super) struct ConnectedWorkload {
    pub(super) streams: BTreeMap<u64, WorkloadStream>,
    registers: bool,
    /// The last stream that ended: its proxy, its end, and when it was connected.
    ended: Option<(Arc<Proxy>, SystemTime, SystemTime)>,
    /// HealthReport that is not written.
    health: Option<HealthReport>,
    /// When the entry was written last.
    written_at: Option<Instant>,
    /// When the entry is to be written.
    pub(super) due: Option<Instant>,
    /// Failed writes in a row.
    pub(super) failures: u32,
}

impl ConnectedWorkload {
    pub(super) fn connect(&mut self, stream: WorkloadStream, registers: bool) {
        self.registers = registers;
        self.streams.insert(stream.id, stream);
        self.due = Some(Instant::now());
    }

    pub(super) fn disconnect(&mut self, stream: u64, at: SystemTime) {
        let Some(ended) = self.streams.remove(&stream) else { return };
        if self.streams.is_empty() {
            self.ended = Some((ended.proxy, at, ended.connected_at));
            self.health = None;
            self.due = Some(Instant::now());
        }
    }

    pub(super) fn report(&mut self, health: HealthReport) {
        if !self.streams.is_empty() {
            self.health = Some(health);
            let now = Instant::now();
            let next = self.written_at.map_or(now, |at| (at + HEALTH_INTERVAL).max(now));
            self.due = Some(self.due.map_or(next, |due| due.min(next)));
        }
    }

    pub(super) fn wanted(&self) -> EntryState {
        let last = self.streams.values().next_back();
        let epoch = SystemTime::UNIX_EPOCH;
        let (proxy, presence) = match (last, &self.ended) {
            (Some(stream), _) => (stream.proxy.clone(), Presence::Connected { since: stream.connected_at }),
            (None, Some((proxy, at, connected_at))) => {
                (proxy.clone(), Presence::Disconnected { at: *at, connected_at: *connected_at })
            }
            (None, None) => (Arc::default(), Presence::Disconnected { at: epoch, connected_at: epoch }),
        };
        EntryState { proxy, registers: self.registers, presence, health: self.health.clone() }
    }

    /// The entry has been written as wanted.
    pub(super) fn reconciled(&mut self, wanted: &EntryState, now: Instant) {
        self.written_at = Some(now);
        if self.health == wanted.health {
            self.health = None;
        }
    }

    /// No stream is left, and nothing is to be written.
    pub(super) fn is_gone(&self) -> bool {
        self.streams.is_empty() && self.due.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(id: u64, seconds: u64) -> WorkloadStream {
        let connected_at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        WorkloadStream { id, proxy: Arc::default(), connected_at, refuse: Arc::new(|_| {}) }
    }

    fn health(problem: &str) -> HealthReport {
        HealthReport { result: Err(problem.to_owned()), at: SystemTime::UNIX_EPOCH }
    }

    #[tokio::test]
    async fn workload_is_connected_while_any_stream_is() {
        let mut workload = ConnectedWorkload::default();
        workload.connect(stream(1, 100), true);
        workload.connect(stream(2, 200), true);
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(300);
        workload.due = None;
        workload.disconnect(2, end);
        workload.disconnect(7, end);
        assert_eq!((workload.due, workload.is_gone()), (None, false), "the entry says so");
        workload.disconnect(1, end);
        let connected_at = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(workload.wanted().presence, Presence::Disconnected { at: end, connected_at });
        assert!(workload.due.is_some());
        workload.connect(stream(3, 301), true);
        assert!(matches!(workload.wanted().presence, Presence::Connected { .. }), "it has returned");
    }

    #[tokio::test]
    async fn health_is_written_once_a_second_and_only_of_connected_workloads() {
        let mut workload = ConnectedWorkload::default();
        workload.report(health("early"));
        assert_eq!((workload.due, workload.wanted().health), (None, None));
        workload.connect(stream(1, 100), true);
        workload.report(health("one"));
        let now = Instant::now();
        let wanted = workload.wanted();
        workload.due = None;
        workload.report(health("two"));
        workload.reconciled(&wanted, now);
        assert_eq!(workload.wanted().health, Some(health("two")), "it was reported during the write");
        workload.due = None;
        workload.report(health("three"));
        assert!(workload.due.is_some_and(|due| due >= now + HEALTH_INTERVAL));
    }
}
