//! Failed attempts of tasks that go on: writes, reviews and look-ups that are repeated. They are a metric, and one log line a minute.

use std::sync::LazyLock;
use std::time::Instant;

use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_telemetry::{Count, PeriodicLog};

use crate::metrics::TaskLabel;

/// Counted for the whole process, because tasks of all components make attempts.
static FAILED: LazyLock<Family<TaskLabel, Count>> = LazyLock::new(Family::default);

pub(crate) fn register(registry: &mut Registry) {
    registry.register(
        "sluice_task_failed_attempts_total",
        "Writes, reviews and look-ups that failed and are repeated",
        FAILED.clone(),
    );
}

/// The failed attempts of one task.
#[derive(Debug)]
pub struct FailedAttempts {
    count: Count,
    log: PeriodicLog,
}

impl FailedAttempts {
    /// Those of the task of this name.
    #[must_use]
    pub fn of(task: &str) -> Self {
        let count = FAILED.get_or_create(&TaskLabel { task: task.to_owned() }).clone();
        Self { count, log: PeriodicLog::default() }
    }

    /// Counts a failed attempt. Returns the number of failed attempts since the last message if a message is due: once a minute.
    pub fn count(&self) -> Option<u64> {
        self.count.inc();
        self.log.event(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_attempts_are_counted_and_one_in_a_minute_is_logged() {
        let failures = FailedAttempts::of("writer of the test");
        let logged: Vec<u64> = (0..600).filter_map(|_| failures.count()).collect();
        assert_eq!(logged, [1]);
        let (mut registry, mut text) = (Registry::default(), String::new());
        crate::register(&mut registry);
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
        assert!(text.contains("sluice_task_failed_attempts_total{task=\"writer of the test\"} 600\n"), "{text}");
    }
}
