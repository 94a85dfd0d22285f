//! Waking a session that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Context;
use std::time::Instant;

use futures::task::AtomicWaker;

use crate::xds::admission::Admission;

/// The first epoch that was not seen yet, with somebody who waits for one. More of them until then cost nothing.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    /// 0 if there is none.
    since: AtomicU64,
    /// How many resources may differ since what was seen.
    changed: AtomicUsize,
    waker: AtomicWaker,
    /// Who is told of epochs that a configured stream has yet to see; nobody if it is not.
    admission: Option<Arc<Admission>>,
    configured: AtomicBool,
    /// It was told.
    told: AtomicBool,
}

impl Wake {
    /// One of a stream that is not configured yet.
    pub(crate) fn new(admission: Arc<Admission>) -> Self {
        let (since, changed, waker) = Default::default();
        Self {
            since,
            changed,
            waker,
            admission: Some(admission),
            configured: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }
    }

    /// From here on, what it is woken for goes before new streams.
    pub(crate) fn is_configured(&self) {
        self.configured.store(true, Ordering::Relaxed);
    }

    /// Says that there is this epoch to be seen, which changes so many resources, and wakes who waits. Epochs count from 1.
    pub(crate) fn wake(&self, epoch: u64, changed: usize, now: Instant) {
        self.changed.fetch_add(changed, Ordering::Relaxed);
        if self.since.compare_exchange(0, epoch.max(1), Ordering::AcqRel, Ordering::Acquire).is_ok() {
            if let Some(admission) = &self.admission
                && self.configured.load(Ordering::Relaxed)
                && !self.told.swap(true, Ordering::AcqRel)
            {
                admission.urgent(now);
            }
            self.waker.wake();
        }
    }

    /// Has the task woken by the next epoch; to be called before [`Self::take`].
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.waker.register(cx.waker());
    }

    /// How many resources may differ since what was seen.
    pub(crate) fn changed(&self) -> usize {
        self.changed.load(Ordering::Relaxed)
    }

    /// Takes the first epoch that was not seen.
    pub(crate) fn take(&self) -> Option<u64> {
        self.settle();
        self.changed.store(0, Ordering::Relaxed);
        match self.since.swap(0, Ordering::AcqRel) {
            0 => None,
            epoch => Some(epoch),
        }
    }

    fn settle(&self) {
        if let Some(admission) = &self.admission
            && self.told.swap(false, Ordering::AcqRel)
        {
            admission.no_longer_urgent();
        }
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.settle();
    }
}
