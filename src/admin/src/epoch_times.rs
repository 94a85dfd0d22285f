//! When the writes of an epoch passed each stage, by the wall clock.

use std::time::SystemTime;

use sluice_engine::EpochSummary;

/// The times of an epoch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct EpochTimes {
    /// A source received the earliest write.
    pub(crate) received: SystemTime,
    /// The writes were parsed, and the engine began the epoch.
    pub(crate) parsed: SystemTime,
    /// The engine committed the epoch.
    pub(crate) committed: SystemTime,
}

impl EpochTimes {
    /// The times of an epoch whose age is as of `now`. Sources that state no time have received their writes when they were parsed.
    pub(crate) fn of(epoch: &EpochSummary, now: SystemTime) -> Self {
        let committed = now.checked_sub(epoch.age).unwrap_or(now);
        let parsed = committed.checked_sub(epoch.took).unwrap_or(committed);
        let origins = epoch.writes.iter().filter_map(|write| write.origin.as_ref());
        let received = origins.filter_map(|origin| SystemTime::UNIX_EPOCH.checked_add(origin.received?)).min();
        Self { received: received.unwrap_or(parsed).min(parsed), parsed, committed }
    }
}
