//! Waits after failures in a row.

use std::time::Duration;

use rand::Rng;

/// Waits that double up to a limit, each with random jitter so that clients do not reconnect together.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    last: Duration,
    next: Duration,
}

impl Backoff {
    /// Waits from `first` to `last`.
    #[must_use]
    pub fn new(first: Duration, last: Duration) -> Self {
        Self { first, last, next: first }
    }

    /// The wait after a further failure: between half of the current step and all of it.
    pub fn failed(&mut self) -> Duration {
        let step = self.next.min(self.last);
        self.next = (step * 2).min(self.last);
        with_jitter(step)
    }

    /// The wait after `failures` failures and a further one.
    #[must_use]
    pub fn after(failures: u32, first: Duration, last: Duration) -> Duration {
        with_jitter(first.saturating_mul(2u32.saturating_pow(failures)).min(last))
    }

    /// Resets the wait to the first one, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

fn with_jitter(step: Duration) -> Duration {
    step.mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Backoff;

    #[test]
    fn waits_double_up_to_the_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        for step in [100, 200, 350, 350] {
            let wait = backoff.failed();
            assert!(wait >= Duration::from_millis(step / 2) && wait <= Duration::from_millis(step), "{step}: {wait:?}");
        }
        backoff.reset();
        assert!(backoff.failed() <= Duration::from_millis(100));
        assert!(Backoff::after(1000, Duration::from_millis(100), Duration::from_secs(3)) <= Duration::from_secs(3));
    }
}
