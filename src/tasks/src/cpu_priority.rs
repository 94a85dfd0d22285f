//! Which threads get a CPU first when there are more of them than CPUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After a short request, more of them are expected for this time.
const EXPECTED_TIME: Duration = Duration::from_secs(1);

/// Lowers the priority of this thread, and of the threads that it starts, by this number of steps of `nice`.
pub fn lower_thread_priority(steps: i32) {
    // Without the right to do so, the thread runs as any other.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, steps);
    #[cfg(not(target_os = "linux"))]
    let _ = steps;
}

/// Requests that take little CPU time and that a caller waits for, such as those to the webhooks. Threads with much to do
/// let them go first. Clones share the state.
#[derive(Clone, Debug)]
pub struct ShortRequests(Arc<Arrivals>);

#[derive(Debug)]
struct Arrivals {
    started: Instant,
    /// Until when more requests are expected, in nanoseconds after `started`; 0 while none are.
    expected_until: AtomicU64,
}

impl Default for ShortRequests {
    fn default() -> Self {
        Self(Arc::new(Arrivals { started: Instant::now(), expected_until: AtomicU64::new(0) }))
    }
}

impl ShortRequests {
    /// A request has arrived.
    pub fn arrived(&self) {
        self.0.expected_until.store(self.0.nanoseconds(EXPECTED_TIME), Ordering::Relaxed);
    }

    /// Lets a thread that waits for a CPU run first, if requests have arrived lately.
    pub fn go_first(&self) {
        if self.are_expected() {
            std::thread::yield_now();
        }
    }

    fn are_expected(&self) -> bool {
        let until = self.0.expected_until.load(Ordering::Relaxed);
        // The clock is not read while there are no requests.
        if until == 0 {
            return false;
        }
        let are_expected = self.0.nanoseconds(Duration::ZERO) < until;
        if !are_expected {
            let _ = self.0.expected_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        are_expected
    }
}

impl Arrivals {
    /// Nanoseconds from the start to this time from now.
    fn nanoseconds(&self, from_now: Duration) -> u64 {
        u64::try_from((self.started.elapsed() + from_now).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_expected_for_a_while_after_one() {
        let requests = ShortRequests::default();
        assert!(!requests.are_expected(), "none has arrived");
        requests.clone().arrived();
        assert!(requests.are_expected());
        requests.0.expected_until.store(1, Ordering::Relaxed);
        assert!(!requests.are_expected(), "the last one arrived long ago");
        assert_eq!(requests.0.expected_until.load(Ordering::Relaxed), 0);
    }
}
