//! Waits for a time of the wall clock, as that of the expiry of a certificate or token.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sluice_telemetry::unix_seconds;
use tokio::time::{Instant, Sleep};

/// Longest time between two readings of the wall clock. It can be set, and it advances while a virtual machine is suspended; the
/// clock of timers does neither.
const READ_INTERVAL: Duration = Duration::from_secs(30);

/// Ends when the wall clock has reached a time, or at most 30 s later if the clock has been set meanwhile.
pub struct WallClockSleep {
    /// The time, in seconds since the Unix epoch.
    until: i64,
    clock: fn() -> i64,
    read_interval: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl WallClockSleep {
    /// Until this time, in seconds since the Unix epoch.
    #[must_use]
    pub fn until(seconds: i64) -> Self {
        Self::with_clock(seconds, unix_seconds, READ_INTERVAL)
    }

    /// By another clock, which is read at an interval.
    fn with_clock(until: i64, clock: fn() -> i64, read_interval: Duration) -> Self {
        let sleep = Box::pin(tokio::time::sleep(wait(until, clock(), read_interval)));
        Self { until, clock, read_interval, sleep }
    }

    /// Whether the time has come, for a task that has polled this before. The task of `cx` is registered only if the timer has
    /// fired, because a registration is not free.
    pub fn has_ended(&mut self, cx: &mut Context<'_>) -> bool {
        self.sleep.is_elapsed() && Pin::new(self).poll(cx).is_ready()
    }
}

impl Future for WallClockSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            let now = (self.clock)();
            if now >= self.until {
                return Poll::Ready(());
            }
            let next = Instant::now() + wait(self.until, now, self.read_interval);
            self.sleep.as_mut().reset(next);
        }
    }
}

/// The time until the wall clock has to be read again.
fn wait(until: i64, now: i64, read_interval: Duration) -> Duration {
    let left = u64::try_from(until.saturating_sub(now)).unwrap_or_default();
    Duration::from_secs(left).min(read_interval)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    /// The time at which the tests begin.
    const BEGIN: i64 = 1_000_000;
    const DAY: i64 = 24 * 3600;
    const SHORT: Duration = Duration::from_millis(5);

    async fn is_pending(sleep: &mut WallClockSleep) -> bool {
        tokio::time::timeout(SHORT * 10, sleep).await.is_err()
    }

    #[test]
    fn clock_is_read_within_a_minute_whatever_the_time() {
        for until in [BEGIN + DAY, i64::MAX] {
            assert!(wait(until, BEGIN, READ_INTERVAL) <= Duration::from_secs(30));
        }
        assert_eq!(wait(BEGIN + 7, BEGIN, READ_INTERVAL), Duration::from_secs(7));
        assert_eq!(wait(BEGIN - 7, BEGIN, READ_INTERVAL), Duration::ZERO);
    }

    #[tokio::test]
    async fn clock_that_is_set_forward_ends_the_sleep_at_the_next_reading() {
        static NOW: AtomicI64 = AtomicI64::new(BEGIN);
        let mut sleep = WallClockSleep::with_clock(BEGIN + DAY, || NOW.load(Ordering::SeqCst), SHORT);
        assert!(is_pending(&mut sleep).await);
        NOW.store(BEGIN + DAY - 1, Ordering::SeqCst);
        assert!(is_pending(&mut sleep).await);
        NOW.store(BEGIN + DAY, Ordering::SeqCst);
        tokio::time::timeout(Duration::from_secs(20), sleep).await.expect("it ends");
    }

    #[tokio::test]
    async fn clock_that_is_set_back_delays_the_end() {
        static NOW: AtomicI64 = AtomicI64::new(BEGIN - DAY);
        let mut sleep = WallClockSleep::with_clock(BEGIN, || NOW.load(Ordering::SeqCst), SHORT);
        assert!(is_pending(&mut sleep).await);
        NOW.store(BEGIN, Ordering::SeqCst);
        tokio::time::timeout(Duration::from_secs(20), &mut sleep).await.expect("it ends");
        sleep.await;
    }

    #[tokio::test]
    async fn task_that_asks_whether_the_sleep_has_ended_is_woken() {
        static NOW: AtomicI64 = AtomicI64::new(BEGIN);
        // Each reading of the clock takes a second of it.
        let mut sleep = WallClockSleep::with_clock(BEGIN + 10, || NOW.fetch_add(1, Ordering::SeqCst), SHORT);
        let mut is_registered = false;
        let ended = std::future::poll_fn(|cx| {
            let is_first = !std::mem::replace(&mut is_registered, true);
            let has_ended = if is_first { Pin::new(&mut sleep).poll(cx).is_ready() } else { sleep.has_ended(cx) };
            if has_ended { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .expect("it is woken each time that the clock is read");
    }
}
