//! Time, for metrics and time-outs only: no result depends on it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Monotonic time since a fixed moment. Tests may supply their own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// A clock that reads `now`, which must never decrease.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> Duration {
        (self.0)()
    }
}

impl Default for Clock {
    #[expect(clippy::disallowed_methods, reason = "the one clock, which a caller can replace")]
    fn default() -> Self {
        let start = Instant::now();
        Self::new(move || start.elapsed())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
