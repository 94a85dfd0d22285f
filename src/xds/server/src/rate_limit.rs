//! Limits how many streams start in a second.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum delay of the start of a stream (X14).
const MAX_START_DELAY: Duration = Duration::from_secs(1);

/// Spreads the starts of streams evenly in time.
#[derive(Debug)]
pub(crate) struct RateLimit {
    interval: Option<Duration>,
    next: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// This many streams in a second; `None` is no limit.
    pub(crate) fn new(per_second: Option<NonZeroU32>) -> Self {
        Self { interval: per_second.map(|rate| Duration::from_secs(1) / rate.get()), next: Mutex::default() }
    }

    /// How long a stream waits before it starts; `None` if that is too long.
    pub(crate) fn delay(&self, now: Instant) -> Option<Duration> {
        let Some(interval) = self.interval else { return Some(Duration::ZERO) };
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let start = next.map_or(now, |next| next.max(now));
        let delay = start - now;
        if delay > MAX_START_DELAY {
            return None;
        }
        *next = Some(start + interval);
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_start_at_the_rate_or_are_refused() {
        let limit = RateLimit::new(NonZeroU32::new(4));
        let now = Instant::now();
        let delays: Vec<Option<u128>> = (0..6).map(|_| limit.delay(now).map(|delay| delay.as_millis())).collect();
        assert_eq!(delays, [Some(0), Some(250), Some(500), Some(750), Some(1000), None]);
        assert_eq!(limit.delay(now + Duration::from_secs(2)), Some(Duration::ZERO));
        assert_eq!(RateLimit::new(None).delay(now), Some(Duration::ZERO));
    }
}
