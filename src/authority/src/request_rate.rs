//! Limits how often certificates are requested for an identity.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_listen::PeriodicLog;

const MINUTE: Duration = Duration::from_secs(60);

/// Permits a number of requests in a minute for each key. All of them may arrive at once.
#[derive(Debug)]
pub struct RequestRate {
    per_minute: NonZeroU32,
    state: Mutex<State>,
    /// Limits messages about refusals.
    pub(crate) log: PeriodicLog,
}

#[derive(Debug, Default)]
struct State {
    /// When the requests so far would be over at an even rate. A key without recent requests has no entry.
    busy_until: HashMap<String, Instant>,
    /// Number of entries at which those without recent requests are removed.
    sweep_at: usize,
}

impl RequestRate {
    /// This many requests in a minute.
    #[must_use]
    pub fn new(per_minute: NonZeroU32) -> Self {
        Self { per_minute, state: Mutex::default(), log: PeriodicLog::default() }
    }

    pub(crate) fn per_minute(&self) -> u32 {
        self.per_minute.get()
    }

    /// Whether a request is within the rate. If it is, it counts.
    pub(crate) fn admit(&self, key: String, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.busy_until.len() >= state.sweep_at {
            state.busy_until.retain(|_, until| *until > now);
            state.sweep_at = (2 * state.busy_until.len()).max(1024);
        }
        let until = state.busy_until.entry(key).or_insert(now);
        let next = (*until).max(now) + MINUTE / self.per_minute.get();
        let is_admitted = next <= now + MINUTE;
        if is_admitted {
            *until = next;
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_an_identity_are_limited_and_others_are_not() {
        let (rate, now) = (RequestRate::new(NonZeroU32::new(6).expect("not zero")), Instant::now());
        let admit = |key: &str, second| rate.admit(key.to_owned(), now + Duration::from_secs(second));
        assert_eq!((0..8).filter(|_| admit("cart", 0)).count(), 6, "all may arrive at once");
        assert!(admit("till", 0), "another identity");
        assert!(!admit("cart", 9) && admit("cart", 10) && !admit("cart", 10), "one is permitted every ten seconds");
        assert_eq!((0..8).filter(|_| admit("cart", 100)).count(), 6);
    }

    #[test]
    fn identities_without_recent_requests_are_forgotten() {
        let (rate, now) = (RequestRate::new(NonZeroU32::new(60).expect("not zero")), Instant::now());
        for n in 0..10_000_u64 {
            assert!(rate.admit(n.to_string(), now + Duration::from_secs(n)));
        }
        let state = rate.state.lock().expect("no panic");
        assert!(state.busy_until.len() <= 1024, "{} entries", state.busy_until.len());
    }
}
