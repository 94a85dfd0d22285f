//! Rates of updates of collections, from samples of their counters. A sample is taken when a page shows the rates.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between samples that are kept.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Samples that are older are dropped, except the last of these.
const MAX_AGE: Duration = Duration::from_secs(300);

/// Samples of counters. The first one is that of the start, when all counters were zero.
pub struct UpdateRates(Mutex<VecDeque<Sample>>);

struct Sample {
    at: Instant,
    counters: Vec<u64>,
}

/// Rates of counters in a period.
#[derive(Debug, PartialEq)]
pub(crate) struct Rates {
    /// The period.
    pub(crate) period: Duration,
    /// Updates per second of each counter.
    pub(crate) per_second: Vec<f64>,
}

impl Default for UpdateRates {
    fn default() -> Self {
        Self(Mutex::new([Sample { at: Instant::now(), counters: Vec::new() }].into()))
    }
}

impl UpdateRates {
    /// The rates of these counters since the oldest sample that is kept.
    pub(crate) fn of(&self, counters: Vec<u64>, now: Instant) -> Rates {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |sample: &Sample| now.saturating_duration_since(sample.at);
        while samples.len() > 1 && samples.get(1).is_some_and(|next| age(next) >= MAX_AGE) {
            samples.pop_front();
        }
        let period = samples.front().map(age).unwrap_or_default();
        let before =
            |number: usize| samples.front().and_then(|first| first.counters.get(number)).copied().unwrap_or_default();
        let rate = |(number, counter): (usize, &u64)| match period.is_zero() {
            true => 0.0,
            false => counter.saturating_sub(before(number)) as f64 / period.as_secs_f64(),
        };
        let per_second = counters.iter().enumerate().map(rate).collect();
        if samples.back().is_none_or(|last| age(last) >= SAMPLE_INTERVAL) {
            samples.push_back(Sample { at: now, counters });
        }
        Rates { period, per_second }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_minutes() {
        let rates = UpdateRates::default();
        let start = rates.0.lock().expect("no panic")[0].at;
        let at = |second: u64, counters: &[u64]| {
            let rates = rates.of(counters.to_vec(), start + Duration::from_secs(second));
            (rates.period.as_secs(), rates.per_second)
        };
        assert_eq!(at(0, &[7, 0]), (0, vec![0.0, 0.0]));
        assert_eq!(at(100, &[200, 50]), (100, vec![2.0, 0.5]), "since the start");
        assert_eq!(at(101, &[303, 50]).0, 101, "no sample is kept so soon");
        // The sample of second 100 is the oldest that is needed.
        assert_eq!(at(400, &[500, 50]), (300, vec![1.0, 0.0]));
        assert!(rates.0.lock().expect("no panic").len() <= 32);
    }
}
