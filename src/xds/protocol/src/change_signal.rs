//! Wakes a stream that waits for changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Context;
use std::time::Instant;

use futures::task::AtomicWaker;

/// Counts the pending changes of configured streams, so that new streams can yield to them.
pub trait PendingChanges: fmt::Debug + Send + Sync {
    /// A configured stream has a pending change.
    fn begin(&self, now: Instant);

    /// The stream took the change, or ended.
    fn end(&self);
}

/// The first pending epoch of a stream, with the waker of the stream's task. Further epochs cost nothing until the stream
/// takes the pending one.
#[derive(Debug, Default)]
pub struct ChangeSignal {
    /// The first pending epoch; 0 if there is none.
    since: AtomicU64,
    /// Number of resources that may differ since the last epoch that the stream took.
    changed: AtomicUsize,
    waker: AtomicWaker,
    /// Counts the pending changes of a configured stream; `None` if they are not counted.
    pending: Option<Arc<dyn PendingChanges>>,
    configured: AtomicBool,
    /// The pending change is counted in `pending`.
    is_pending: AtomicBool,
    is_refused: AtomicBool,
}

impl ChangeSignal {
    /// The signal of a stream that is not configured yet.
    #[must_use]
    pub fn new(pending: Arc<dyn PendingChanges>) -> Self {
        Self {
            since: AtomicU64::default(),
            changed: AtomicUsize::default(),
            waker: AtomicWaker::default(),
            pending: Some(pending),
            configured: AtomicBool::default(),
            is_pending: AtomicBool::default(),
            is_refused: AtomicBool::default(),
        }
    }

    /// Marks the stream as configured: its later changes go before new streams.
    pub fn set_configured(&self) {
        self.configured.store(true, Ordering::Relaxed);
    }

    /// Announces an epoch that changes this many resources, and wakes the stream's task. Epochs count from 1.
    pub fn notify(&self, epoch: u64, changed: usize, now: Instant) {
        self.changed.fetch_add(changed, Ordering::Relaxed);
        if self.since.compare_exchange(0, epoch.max(1), Ordering::AcqRel, Ordering::Acquire).is_ok() {
            if let Some(pending) = &self.pending
                && self.configured.load(Ordering::Relaxed)
                && !self.is_pending.swap(true, Ordering::AcqRel)
            {
                pending.begin(now);
            }
            self.waker.wake();
        }
    }

    /// Wakes the stream's task because the stream has to end.
    pub fn refuse(&self) {
        self.is_refused.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the stream has to end. Part of the signal because the task reads that in any case.
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    /// Registers the task to be woken by the next epoch. Call it before [`Self::take`].
    pub fn register(&self, cx: &Context<'_>) {
        self.waker.register(cx.waker());
    }

    /// Number of resources that may differ since the last epoch that the stream took.
    pub fn changed(&self) -> usize {
        self.changed.load(Ordering::Relaxed)
    }

    /// Takes the first pending epoch.
    pub fn take(&self) -> Option<u64> {
        self.settle();
        self.changed.store(0, Ordering::Relaxed);
        match self.since.swap(0, Ordering::AcqRel) {
            0 => None,
            epoch => Some(epoch),
        }
    }

    fn settle(&self) {
        if let Some(pending) = &self.pending
            && self.is_pending.swap(false, Ordering::AcqRel)
        {
            pending.end();
        }
    }
}

impl Drop for ChangeSignal {
    fn drop(&mut self) {
        self.settle();
    }
}
