//! The time limit of a report.

use std::time::{Duration, Instant};

/// The time after which nothing more is collected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// A time limit from now on. One that is too far away is none.
    pub(super) fn after(duration: Duration) -> Self {
        Self(Instant::now().checked_add(duration))
    }

    /// Whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}
