//! Waking a session that waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;

use futures::task::AtomicWaker;

/// The first epoch that was not seen yet, with somebody who waits for one. More of them until then cost nothing.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    /// 0 if there is none.
    since: AtomicU64,
    waker: AtomicWaker,
}

impl Wake {
    /// Says that there is this epoch to be seen, and wakes who waits. Epochs count from 1.
    pub(crate) fn wake(&self, epoch: u64) {
        if self.since.compare_exchange(0, epoch.max(1), Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.waker.wake();
        }
    }

    /// Has the task woken by the next epoch; to be called before [`Self::take`].
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.waker.register(cx.waker());
    }

    /// Takes the first epoch that was not seen.
    pub(crate) fn take(&self) -> Option<u64> {
        match self.since.swap(0, Ordering::AcqRel) {
            0 => None,
            epoch => Some(epoch),
        }
    }
}
