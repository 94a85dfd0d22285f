//! Decides which streams may send now, so that new streams do not delay changes for configured ones.
//!
//! A new stream costs far more than a change, because everything that its proxy sees is encoded for the first time. So
//! a new stream needs a [`PushPermit`] for each of its first responses. A few permits are granted at a time, in the
//! order of the requests, and only one while changes are pending for configured streams. A permit ends when the
//! transport has taken the response. It is counted for [`PERMIT_LEASE`] at most, so a client that does not read does
//! not block others.
//!
//! A change for a configured stream needs a permit only if it contains many resources, because thousands of streams
//! would hold them at once. Such streams go before new ones. Changes of a few endpoints never wait.
//!
//! A new stream is refused if the streams that already wait would delay it too long. The estimate uses the measured
//! duration of permits.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sluice_xds_protocol::PendingChanges;
use tokio::sync::Notify;

use crate::rate_limit::RateLimit;

/// A permit is counted for this time at most.
const PERMIT_LEASE: Duration = Duration::from_millis(100);
/// After a change, new streams yield to the streams that it concerns for this time.
const CHANGE_PRIORITY_WINDOW: Duration = Duration::from_millis(50);
/// Number of permits that a stream needs until it is configured: clusters, endpoints, listeners, routes.
const RESPONSES_PER_NEW_STREAM: u32 = 4;
/// A new stream is refused if it would wait longer for its configuration.
const MAX_EXPECTED_WAIT: Duration = Duration::from_secs(20);
/// While fewer streams wait, none is refused: a small mesh never sees a refusal.
const ALWAYS_ADMITTED_STREAMS: usize = 256;
/// Maximum number of waiting streams.
const MAX_WAITING_STREAMS: usize = 50_000;
/// The assumed duration of a permit before one has been measured.
const INITIAL_PERMIT_DURATION: Duration = Duration::from_millis(1);
/// Interval of the checks for expired permits while streams wait.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Admits new streams and grants push permits.
#[derive(Debug)]
pub struct Admission {
    rate_limit: RateLimit,
    /// Number of permits at a time.
    permits: usize,
    state: Mutex<State>,
    /// Number of configured streams with a pending change.
    pending_changes: AtomicUsize,
    /// When the last of these changes was announced, in nanoseconds after `started`.
    last_change: AtomicU64,
    started: Instant,
    /// Streams may be waiting; read without the lock.
    has_waiting: AtomicBool,
    /// Notified when a stream starts to wait.
    waiting_started: Notify,
}

/// The order of streams that wait for a permit.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum AdmissionClass {
    /// Streams that have their configuration go first.
    Configured,
    New,
}

/// The position of a stream in the queue: streams of a class go in order of arrival.
type QueuePosition = (AdmissionClass, u64);

#[derive(Debug)]
struct State {
    /// Streams with a permit, and since when.
    running: BTreeMap<QueuePosition, Instant>,
    /// Streams that wait for a permit.
    waiting: BTreeMap<QueuePosition, Waker>,
    next: u64,
    /// Smoothed duration of permits.
    permit_duration: Duration,
}

/// The reason why a stream is refused. Its client retries later.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum AdmissionError {
    /// More streams start in a second than configured.
    #[error("more streams start than PILOT_MAX_REQUESTS_PER_SECOND allows")]
    RateLimited,
    /// Too many streams wait for their configuration.
    #[error("too many streams wait for their configuration")]
    Overloaded,
}

impl Default for Admission {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl Admission {
    /// `permits` is the number of permits at a time (`PILOT_PUSH_THROTTLE`), by default two for each CPU. `per_second`
    /// limits new streams (`PILOT_MAX_REQUESTS_PER_SECOND`); by default, they are limited by load only.
    #[must_use]
    pub fn new(permits: Option<NonZeroUsize>, per_second: Option<NonZeroU32>) -> Self {
        let default = || std::thread::available_parallelism().map_or(2, usize::from) * 2;
        let state = State {
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            permit_duration: INITIAL_PERMIT_DURATION,
        };
        Self {
            rate_limit: RateLimit::new(per_second),
            permits: permits.map_or_else(default, NonZeroUsize::get),
            state: Mutex::new(state),
            pending_changes: AtomicUsize::new(0),
            last_change: AtomicU64::new(0),
            started: Instant::now(),
            has_waiting: AtomicBool::new(false),
            waiting_started: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits or refuses a new stream. Returns the delay after which it starts.
    pub(crate) fn admit(&self, now: Instant) -> Result<Duration, AdmissionError> {
        {
            let state = self.state();
            let waiting = state.waiting.len();
            let rounds = u32::try_from(waiting / self.permits).unwrap_or(u32::MAX);
            let expected = state.permit_duration * RESPONSES_PER_NEW_STREAM * rounds;
            if waiting >= MAX_WAITING_STREAMS || (waiting >= ALWAYS_ADMITTED_STREAMS && expected > MAX_EXPECTED_WAIT) {
                return Err(AdmissionError::Overloaded);
            }
        }
        self.rate_limit.delay(now).ok_or(AdmissionError::RateLimited)
    }

    /// Grants the free permits to waiting streams and wakes them, except `caller`: its task is running, and would run
    /// forever if its own request woke it.
    fn grant(&self, mut state: MutexGuard<'_, State>, now: Instant, caller: Option<QueuePosition>) {
        state.running.retain(|_, since| now.saturating_duration_since(*since) < PERMIT_LEASE);
        let permits = if self.yields(now) { 1 } else { self.permits };
        let mut woken = Vec::new();
        while state.running.len() < permits
            && let Some((position, waker)) = state.waiting.pop_first()
        {
            state.running.insert(position, now);
            woken.extend(Some(waker).filter(|_| caller != Some(position)));
        }
        self.has_waiting.store(!state.waiting.is_empty(), Ordering::SeqCst);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Whether new streams yield to changes.
    fn yields(&self, now: Instant) -> bool {
        let since = self.nanos(now).saturating_sub(self.last_change.load(Ordering::Relaxed));
        self.pending_changes.load(Ordering::SeqCst) > 0 && u128::from(since) < CHANGE_PRIORITY_WINDOW.as_nanos()
    }

    fn nanos(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Ends expired permits and lets new streams continue after changes. Never returns.
    pub(crate) async fn keep_granting(&self) {
        loop {
            self.waiting_started.notified().await;
            while !self.state().waiting.is_empty() {
                tokio::time::sleep(EXPIRY_CHECK_INTERVAL).await;
                self.grant(self.state(), Instant::now(), None);
            }
        }
    }
}

impl PendingChanges for Admission {
    fn begin(&self, now: Instant) {
        self.last_change.store(self.nanos(now), Ordering::Relaxed);
        self.pending_changes.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        let was_last = self.pending_changes.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.has_waiting.load(Ordering::SeqCst) {
            self.grant(self.state(), Instant::now(), None);
        }
    }
}

/// The right of a stream to build and send a response. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct PushPermit {
    admission: Arc<Admission>,
    /// The stream's position while it waits or has the permit.
    position: Option<QueuePosition>,
}

impl PushPermit {
    pub(crate) fn new(admission: Arc<Admission>) -> Self {
        Self { admission, position: None }
    }

    /// Waits for the permit. Once granted, it stays until [`Self::release`].
    pub(crate) fn poll(&mut self, class: AdmissionClass, cx: &Context<'_>, now: Instant) -> Poll<()> {
        let mut state = self.admission.state();
        let position = match self.position {
            Some(position) => match state.waiting.get_mut(&position) {
                Some(waker) => {
                    waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                // It was granted, even if the lease has expired since.
                None => return Poll::Ready(()),
            },
            None => {
                state.next += 1;
                (class, state.next)
            }
        };
        self.position = Some(position);
        state.waiting.insert(position, cx.waker().clone());
        self.admission.has_waiting.store(true, Ordering::SeqCst);
        self.admission.grant(state, now, Some(position));
        if !self.admission.state().waiting.contains_key(&position) {
            return Poll::Ready(());
        }
        self.admission.waiting_started.notify_one();
        Poll::Pending
    }

    /// Releases the permit: the transport has the response, or there was none.
    pub(crate) fn release(&mut self, now: Instant) {
        let Some(position) = self.position.take() else { return };
        let mut state = self.admission.state();
        state.waiting.remove(&position);
        if let Some(since) = state.running.remove(&position) {
            let held = now.saturating_duration_since(since).min(PERMIT_LEASE);
            state.permit_duration = (state.permit_duration * 15 + held) / 16;
        }
        self.admission.grant(state, now, None);
    }
}

impl Drop for PushPermit {
    fn drop(&mut self) {
        self.release(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use futures::task::{ArcWake, waker};

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl ArcWake for WakeCounter {
        fn wake_by_ref(woken: &Arc<Self>) {
            woken.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Streams that request a permit, in order.
    struct WaitingStreams {
        permits: Vec<PushPermit>,
        classes: Vec<AdmissionClass>,
        woken: Vec<Arc<WakeCounter>>,
    }

    impl WaitingStreams {
        fn new(admission: &Arc<Admission>, count: usize) -> Self {
            Self {
                permits: (0..count).map(|_| PushPermit::new(admission.clone())).collect(),
                classes: vec![AdmissionClass::New; count],
                woken: (0..count).map(|_| Arc::default()).collect(),
            }
        }

        fn has_permit(&mut self, number: usize, now: Instant) -> bool {
            let waker = waker(self.woken[number].clone());
            self.permits[number].poll(self.classes[number], &Context::from_waker(&waker), now).is_ready()
        }

        fn with_permit(&mut self, now: Instant) -> Vec<usize> {
            (0..self.permits.len()).filter(|number| self.has_permit(*number, now)).collect()
        }
    }

    fn admission(permits: usize) -> Arc<Admission> {
        Arc::new(Admission::new(NonZeroUsize::new(permits), None))
    }

    #[test]
    fn permits_are_granted_in_order() {
        let (admission, now) = (admission(2), Instant::now());
        let mut streams = WaitingStreams::new(&admission, 5);
        assert_eq!(streams.with_permit(now), [0, 1]);
        let woken = streams.woken.iter().map(|woken| woken.0.load(Ordering::Relaxed)).sum::<usize>();
        assert_eq!(woken, 0, "the caller is not woken");
        streams.permits[0].release(now);
        let woken: Vec<usize> = streams.woken.iter().map(|woken| woken.0.load(Ordering::Relaxed)).collect();
        assert!(woken[2] > 0 && woken[3] == 0, "only the next is woken: {woken:?}");
        streams.permits.remove(2);
        streams.woken.remove(2);
        // The stream that released its permit requests another and is last.
        let with_permit: Vec<bool> = [1, 2, 3, 0].into_iter().map(|number| streams.has_permit(number, now)).collect();
        assert_eq!(with_permit, [true, true, false, false], "a dropped stream passes its permit to the next");
    }

    #[test]
    fn configured_streams_go_first() {
        let (admission, now) = (admission(1), Instant::now());
        let mut streams = WaitingStreams::new(&admission, 4);
        streams.classes[3] = AdmissionClass::Configured;
        assert_eq!(streams.with_permit(now), [0]);
        streams.permits[0].release(now);
        let with_permit: Vec<bool> = [1, 2, 3].into_iter().map(|number| streams.has_permit(number, now)).collect();
        assert_eq!(with_permit, [false, false, true]);
    }

    #[test]
    fn client_that_does_not_read_does_not_block_others() {
        let (admission, now) = (admission(1), Instant::now());
        let mut streams = WaitingStreams::new(&admission, 2);
        assert_eq!(streams.with_permit(now), [0]);
        admission.grant(admission.state(), now + PERMIT_LEASE / 2, None);
        assert!(!streams.has_permit(1, now));
        admission.grant(admission.state(), now + PERMIT_LEASE, None);
        assert!(streams.has_permit(1, now) && streams.has_permit(0, now), "a granted permit stays granted");
    }

    #[test]
    fn new_streams_yield_to_changes() {
        let (admission, now) = (admission(3), Instant::now());
        admission.begin(now);
        let mut streams = WaitingStreams::new(&admission, 3);
        assert_eq!(streams.with_permit(now), [0], "one permit is still granted");
        admission.grant(admission.state(), now + CHANGE_PRIORITY_WINDOW / 2, None);
        assert_eq!(streams.with_permit(now), [0]);
        admission.begin(now);
        admission.end();
        assert_eq!(streams.with_permit(now), [0], "another change is pending");
        admission.end();
        assert_eq!(streams.with_permit(now), [0, 1, 2]);
    }

    #[test]
    fn change_that_no_stream_takes_has_priority_for_a_limited_time() {
        let (admission, now) = (admission(2), Instant::now());
        admission.begin(now);
        let mut streams = WaitingStreams::new(&admission, 2);
        assert_eq!(streams.with_permit(now), [0]);
        admission.grant(admission.state(), now + CHANGE_PRIORITY_WINDOW, None);
        assert_eq!(streams.with_permit(now), [0, 1]);
    }

    #[test]
    fn streams_are_refused_by_expected_wait() {
        let (admission, now) = (admission(1), Instant::now());
        let mut streams = WaitingStreams::new(&admission, ALWAYS_ADMITTED_STREAMS + 1);
        assert_eq!(streams.with_permit(now).len(), 1);
        assert_eq!(admission.admit(now), Ok(Duration::ZERO), "permits end quickly");
        admission.state().permit_duration = PERMIT_LEASE;
        assert_eq!(admission.admit(now), Err(AdmissionError::Overloaded));
        streams.permits.pop();
        assert_eq!(admission.admit(now), Ok(Duration::ZERO), "a few waiting streams never cause a refusal");
        let limited = Admission::new(None, NonZeroU32::new(1));
        let begun: Vec<_> = (0..3).map(|_| limited.admit(now)).collect();
        assert_eq!(begun, [Ok(Duration::ZERO), Ok(Duration::from_secs(1)), Err(AdmissionError::RateLimited)]);
    }

    #[test]
    fn permit_duration_is_measured() {
        let (admission, now) = (admission(1), Instant::now());
        let mut permit = PushPermit::new(admission.clone());
        let waker = waker(Arc::<WakeCounter>::default());
        for _ in 0..100 {
            assert!(permit.poll(AdmissionClass::New, &Context::from_waker(&waker), now).is_ready());
            permit.release(now + PERMIT_LEASE / 2);
        }
        let duration = admission.state().permit_duration;
        assert!((PERMIT_LEASE * 49 / 100..=PERMIT_LEASE / 2).contains(&duration), "{duration:?}");
    }
}
