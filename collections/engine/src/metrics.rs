//! Metrics of each collection, and reports of closures that panicked.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::clock::Clock;
use crate::value::Erased;

/// Panic reports that are kept; older ones are only counted.
const MAX_PANIC_REPORTS: usize = 64;

/// A closure that panicked. Its record keeps the last good output until an input of the record changes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct PanicReport {
    /// Name of the collection whose closure panicked.
    pub collection: String,
    /// Key of the record that the closure processed, as JSON.
    pub key: serde_json::Value,
    /// The panic message, if it is text.
    pub message: String,
}

/// Metrics of one collection since the engine started.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct CollectionMetrics {
    /// Name of the collection.
    pub name: String,
    /// Records the collection holds now.
    pub size: i64,
    /// Records that its closure has processed; for an input, writes.
    pub records_in: u64,
    /// Updates it produced; a changed record counts twice, as a retraction and an addition.
    pub records_out: u64,
    /// Time spent in its closure and in the operator around it. Time spent in arrangements is not included.
    pub busy: Duration,
    /// Runs of its closure that panicked.
    pub panics: u64,
    /// Keys with more than one value now; the smallest value wins.
    pub conflicts: i64,
    /// Updates in its arrangements, as of the last epoch that reached it. Deleted rows stay until batches are merged.
    pub arranged: i64,
    /// Entries in its stores beside the arrangements: rows by key, index keys, recorded look-ups, owners of keys.
    pub stored: i64,
}

/// Metrics of the whole engine.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct EngineMetrics {
    /// Committed epochs.
    pub epochs: u64,
    /// Time spent in epochs.
    pub busy: Duration,
    /// Duration of the last epoch.
    pub last_epoch: Duration,
    /// Duration of the longest epoch so far.
    pub longest_epoch: Duration,
    /// Writes in the last epoch.
    pub last_batch: u64,
    /// Commands in the queues now.
    pub queued: usize,
    /// Each collection and index, in the order of building.
    pub collections: Vec<CollectionMetrics>,
}

/// The message of a panic, if it is text.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "panic without a message".to_owned())
}

/// The most recent panic reports.
#[derive(Default)]
pub(crate) struct PanicLog(Mutex<VecDeque<PanicReport>>);

impl PanicLog {
    fn push(&self, report: PanicReport) {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.len() == MAX_PANIC_REPORTS {
            reports.pop_front();
        }
        reports.push_back(report);
    }

    pub(crate) fn reports(&self) -> Vec<PanicReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Gauges and counters of one collection: written by the dataflow thread, read by any thread.
pub(crate) struct CollectionGauges {
    pub(crate) name: String,
    clock: Clock,
    panic_log: Arc<PanicLog>,
    size: AtomicI64,
    records_in: AtomicU64,
    records_out: AtomicU64,
    busy_nanos: AtomicU64,
    panics: AtomicU64,
    conflicts: AtomicI64,
    arranged: AtomicI64,
    stored: AtomicI64,
}

impl CollectionGauges {
    pub(crate) fn new(name: String, clock: Clock, panic_log: Arc<PanicLog>) -> Self {
        Self {
            name,
            clock,
            panic_log,
            size: AtomicI64::new(0),
            records_in: AtomicU64::new(0),
            records_out: AtomicU64::new(0),
            busy_nanos: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            conflicts: AtomicI64::new(0),
            arranged: AtomicI64::new(0),
            stored: AtomicI64::new(0),
        }
    }

    /// Runs a user's closure for a record, with its time counted. `None` when the closure panics.
    pub(crate) fn run<R>(&self, key: &Erased, records: usize, work: impl FnOnce() -> R) -> Option<R> {
        self.timed(records, || self.catch_panic(key, work))
    }

    pub(crate) fn timed<R>(&self, records: usize, work: impl FnOnce() -> R) -> R {
        let start = self.clock.now();
        let result = work();
        let took = self.clock.now().saturating_sub(start);
        self.busy_nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        self.records_in.fetch_add(records as u64, Relaxed);
        result
    }

    /// Runs a user's closure so that a panic affects only this record. `None` when the closure panics.
    pub(crate) fn catch_panic<R>(&self, key: &Erased, work: impl FnOnce() -> R) -> Option<R> {
        // Closures are pure by contract, so a panic leaves no state of theirs half-changed.
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(result) => Some(result),
            Err(panic) => {
                let message = panic_message(&*panic);
                let report = PanicReport { collection: self.name.clone(), key: key.json(), message };
                tracing::error!(collection = %report.collection, key = %report.key, message = %report.message,
                    "closure panicked; the record keeps its last good output");
                self.panics.fetch_add(1, Relaxed);
                self.panic_log.push(report);
                None
            }
        }
    }

    /// Counts produced updates and their effect on the size.
    pub(crate) fn record_output(&self, size_change: isize, records: usize) {
        self.size.fetch_add(size_change as i64, Relaxed);
        self.records_out.fetch_add(records as u64, Relaxed);
    }

    pub(crate) fn size(&self) -> i64 {
        self.size.load(Relaxed)
    }

    pub(crate) fn set_size(&self, size: i64) {
        self.size.store(size, Relaxed);
    }

    pub(crate) fn record_input(&self, records: usize) {
        self.records_in.fetch_add(records as u64, Relaxed);
    }

    pub(crate) fn set_conflicts(&self, conflicts: usize) {
        self.conflicts.store(conflicts as i64, Relaxed);
    }

    pub(crate) fn set_arranged(&self, updates: usize) {
        self.arranged.store(updates as i64, Relaxed);
    }

    /// Counts the entries of one store; `before` is the count of that store at the last call, and is updated.
    pub(crate) fn count_stored(&self, before: &mut usize, now: usize) {
        self.stored.fetch_add(now as i64 - *before as i64, Relaxed);
        *before = now;
    }

    pub(crate) fn read(&self) -> CollectionMetrics {
        CollectionMetrics {
            name: self.name.clone(),
            size: self.size.load(Relaxed),
            records_in: self.records_in.load(Relaxed),
            records_out: self.records_out.load(Relaxed),
            busy: Duration::from_nanos(self.busy_nanos.load(Relaxed)),
            panics: self.panics.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            arranged: self.arranged.load(Relaxed),
            stored: self.stored.load(Relaxed),
        }
    }
}
