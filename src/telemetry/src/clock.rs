//! The wall clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since the Unix epoch.
#[must_use]
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whole seconds since the Unix epoch, the unit of certificates and tokens.
#[must_use]
pub fn unix_seconds() -> i64 {
    i64::try_from(unix_time().as_secs()).unwrap_or(i64::MAX)
}
