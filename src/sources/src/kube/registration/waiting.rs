//! What has happened to the streams of workloads and the registrar has not taken yet.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sluice_model::Proxy;
use tokio::sync::Notify;

use super::WorkloadStream;
use super::workload::HealthReport;

/// The changes of one stream, in this order.
#[derive(Default)]
pub(super) struct StreamChanges {
    /// It has begun.
    pub(super) connected: Option<WorkloadStream>,
    /// The last report of its proxy.
    pub(super) reported: Option<(Arc<Proxy>, HealthReport)>,
    /// It has ended.
    pub(super) disconnected: Option<(Arc<Proxy>, SystemTime)>,
}

/// Changes by stream: one value for each, so that they take no more memory than the streams. A clone is another handle.
#[derive(Clone, Default)]
pub(super) struct WaitingStreams(Arc<Shared>);

#[derive(Default)]
struct Shared {
    streams: Mutex<BTreeMap<u64, StreamChanges>>,
    added: Notify,
}

impl WaitingStreams {
    pub(super) fn connected(&self, stream: WorkloadStream) {
        let id = stream.id;
        self.lock().entry(id).or_default().connected = Some(stream);
        self.0.added.notify_one();
    }

    /// A later report replaces an earlier one.
    pub(super) fn reported(&self, stream: u64, proxy: Arc<Proxy>, health: HealthReport) {
        self.lock().entry(stream).or_default().reported = Some((proxy, health));
        self.0.added.notify_one();
    }

    pub(super) fn disconnected(&self, stream: u64, proxy: Arc<Proxy>, at: SystemTime) {
        let mut streams = self.lock();
        match streams.entry(stream) {
            // The registrar has not learned of the stream.
            Entry::Occupied(changes) if changes.get().connected.is_some() => drop(changes.remove()),
            changes => changes.or_default().disconnected = Some((proxy, at)),
        }
        drop(streams);
        self.0.added.notify_one();
    }

    /// Waits for changes, and takes all, in the order in which the streams began.
    pub(super) async fn take(&self) -> Vec<(u64, StreamChanges)> {
        loop {
            let taken = std::mem::take(&mut *self.lock());
            if !taken.is_empty() {
                return taken.into_iter().collect();
            }
            self.0.added.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, StreamChanges>> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(waiting: &WaitingStreams, id: u64) {
        let refuse = Arc::new(|_| {});
        let connected_at = SystemTime::UNIX_EPOCH;
        waiting.connected(WorkloadStream { id, proxy: Arc::default(), connected_at, refuse });
    }

    fn report(waiting: &WaitingStreams, id: u64, problem: &str) {
        let health = HealthReport { result: Err(problem.to_owned()), at: SystemTime::UNIX_EPOCH };
        waiting.reported(id, Arc::default(), health);
    }

    #[tokio::test]
    async fn reports_and_reconnects_take_the_memory_of_the_open_streams() {
        let waiting = WaitingStreams::default();
        connect(&waiting, 1);
        for n in 0..1000 {
            report(&waiting, 1, &n.to_string());
            connect(&waiting, 2 + n);
            waiting.disconnected(2 + n, Arc::default(), SystemTime::UNIX_EPOCH);
        }
        let taken = waiting.take().await;
        assert_eq!(taken.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1], "the others have ended");
        let (_, last) = taken[0].1.reported.as_ref().expect("a report");
        assert_eq!(last.result, Err("999".to_owned()));
        // The end of a stream that the registrar knows.
        waiting.disconnected(1, Arc::default(), SystemTime::UNIX_EPOCH);
        let taken = waiting.take().await;
        assert!(taken[0].1.connected.is_none() && taken[0].1.disconnected.is_some());
    }
}
