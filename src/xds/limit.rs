//! How many streams may begin a second.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a stream may wait for its turn (X14).
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Spreads the beginnings of streams: one at a time, at a rate.
#[derive(Debug)]
pub(crate) struct RateLimit {
    interval: Option<Duration>,
    next: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// That many a second; without a number there is no limit.
    pub(crate) fn new(a_second: Option<NonZeroU32>) -> Self {
        Self { interval: a_second.map(|rate| Duration::from_secs(1) / rate.get()), next: Mutex::default() }
    }

    /// How long to wait for one's turn; nothing if it would be too long.
    pub(crate) fn turn(&self, now: Instant) -> Option<Duration> {
        let Some(interval) = self.interval else { return Some(Duration::ZERO) };
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = next.map_or(now, |next| next.max(now));
        let wait = turn - now;
        if wait > LONGEST_WAIT {
            return None;
        }
        *next = Some(turn + interval);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_at_the_rate_and_not_too_late() {
        let limit = RateLimit::new(NonZeroU32::new(4));
        let now = Instant::now();
        let waits: Vec<Option<u128>> = (0..6).map(|_| limit.turn(now).map(|wait| wait.as_millis())).collect();
        assert_eq!(waits, [Some(0), Some(250), Some(500), Some(750), Some(1000), None]);
        assert_eq!(limit.turn(now + Duration::from_secs(2)), Some(Duration::ZERO));
        assert_eq!(RateLimit::new(None).turn(now), Some(Duration::ZERO));
    }
}
