//! Pauses after connections that cannot be accepted.

use std::io;
use std::time::Duration;

use sluice_telemetry::Count;
use tokio::time::Instant;
use tracing::warn;

use crate::{ListenMetrics, PeriodicLog};

/// Pause after a connection cannot be accepted, for instance because of too many open files. It doubles with each failure.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Pauses after connections that cannot be accepted, so that a port never ends and never uses all CPU because of them.
pub struct AcceptBackoff {
    port: &'static str,
    errors: Count,
    log: PeriodicLog,
    pause: Duration,
    /// When to accept again after a failure.
    retry_at: Option<Instant>,
}

impl AcceptBackoff {
    /// Counts failures of a port.
    #[must_use]
    pub fn new(port: &'static str, metrics: &ListenMetrics) -> Self {
        let (errors, log) = (metrics.accept_errors(port), PeriodicLog::default());
        Self { port, errors, log, pause: MIN_PAUSE, retry_at: None }
    }

    /// Waits for the end of the pause. It is cancel safe.
    pub async fn pause(&mut self) {
        if let Some(at) = self.retry_at {
            tokio::time::sleep_until(at).await;
            self.retry_at = None;
        }
    }

    /// A connection was accepted.
    pub fn accepted(&mut self) {
        self.pause = MIN_PAUSE;
    }

    /// A connection was not accepted. It is counted, and logged once a minute.
    pub fn failed(&mut self, error: &io::Error) {
        self.errors.inc();
        self.retry_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        if let Some(failures) = self.log.event(std::time::Instant::now()) {
            let port = self.port;
            warn!(target: "listen", port, %error, failures, "failed to accept connections, they wait (logged once a minute)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepting_pauses_after_a_failure_and_continues() {
        let mut backoff = AcceptBackoff::new("test", &ListenMetrics::default());
        let too_many_files = io::Error::from_raw_os_error(24);
        for _ in 0..10 {
            backoff.failed(&too_many_files);
        }
        assert_eq!((backoff.pause, backoff.errors.get()), (MAX_PAUSE, 10));
        let retry_at = backoff.retry_at.expect("a pause");
        backoff.pause().await;
        assert!(Instant::now() >= retry_at && backoff.retry_at.is_none());
        backoff.accepted();
        assert_eq!(backoff.pause, MIN_PAUSE);
    }
}
