//! Which new streams are answered now, so that they do not keep changes from those that have their configuration.
//!
//! A new stream costs far more than a change: everything its proxy sees is written for the first time. So its first
//! answers are made in turns, a few at a time, in the order in which they were asked for; and while changes are on their
//! way to streams that are configured, only one at a time. A turn lasts until the answer is in the transport's hands, but
//! no longer than [`LEASE`]: a client that does not read keeps nobody from his. What changes for a configured stream needs
//! no turn, unless it is many resources, which thousands of streams would hold at once; then it goes before new streams.
//! Even then changes of a few endpoints do not wait.
//!
//! New streams are refused when those that wait would keep them waiting too long, by how long turns have been taking.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::xds::limit::RateLimit;

/// How long a turn counts, whatever becomes of it.
const LEASE: Duration = Duration::from_millis(100);
/// How long after a change new streams make room for those that it concerns.
const YIELD: Duration = Duration::from_millis(50);
/// Turns that a stream takes until it is configured: clusters, endpoints, listeners, routes.
const TURNS_EACH: u32 = 4;
/// How long streams that wait may let a new one expect to wait for its configuration.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// So many may wait, however long it takes: a small mesh is never refused.
const ALWAYS_ADMITTED: usize = 256;
/// No more may wait than this.
const MOST_WAITING: usize = 50_000;
/// What a turn is taken to last before there was one.
const FIRST_GUESS: Duration = Duration::from_millis(1);
/// How often it is looked whether turns have lasted long enough, while somebody waits.
const TICK: Duration = Duration::from_millis(10);

/// Lets streams begin, and gives new ones their turns.
#[derive(Debug)]
pub struct Admission {
    limit: RateLimit,
    /// Turns at a time.
    turns: usize,
    state: Mutex<State>,
    /// Changes on their way to streams that are configured.
    urgent: AtomicUsize,
    /// When the last of them came, in nanoseconds after `began`.
    urgent_at: AtomicU64,
    began: Instant,
    /// Somebody may be waiting for his turn.
    crowded: AtomicBool,
    /// Somebody waits.
    waits: Notify,
}

/// Which streams go first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Class {
    /// Those that have their configuration.
    Configured,
    New,
}

/// The place of a stream among those that wait: streams of its class go in order.
type Place = (Class, u64);

#[derive(Debug)]
struct State {
    /// Who has a turn, and since when.
    running: BTreeMap<Place, Instant>,
    /// Who waits, in order.
    waiting: BTreeMap<Place, Waker>,
    next: u64,
    /// How long turns last, smoothed.
    lasts: Duration,
}

/// Why a stream is not let in. Its client is to try again later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Busy {
    /// More streams begin than may in a second.
    Rate,
    /// Too many wait to be configured.
    Load,
}

impl Default for Admission {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl Admission {
    /// `turns` at a time (`PILOT_PUSH_THROTTLE`), by default two for each CPU; `a_second` new streams at most
    /// (`PILOT_MAX_REQUESTS_PER_SECOND`), by default as many as the load lets in.
    #[must_use]
    pub fn new(turns: Option<NonZeroUsize>, a_second: Option<NonZeroU32>) -> Self {
        let default = || std::thread::available_parallelism().map_or(2, usize::from) * 2;
        let state = State { running: BTreeMap::new(), waiting: BTreeMap::new(), next: 0, lasts: FIRST_GUESS };
        Self {
            limit: RateLimit::new(a_second),
            turns: turns.map_or_else(default, NonZeroUsize::get),
            state: Mutex::new(state),
            urgent: AtomicUsize::new(0),
            urgent_at: AtomicU64::new(0),
            began: Instant::now(),
            crowded: AtomicBool::new(false),
            waits: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a new stream is to wait before it begins.
    pub(crate) fn begin(&self, now: Instant) -> Result<Duration, Busy> {
        {
            let state = self.state();
            let waiting = state.waiting.len();
            let expected = state.lasts * TURNS_EACH * u32::try_from(waiting / self.turns).unwrap_or(u32::MAX);
            if waiting >= MOST_WAITING || (waiting >= ALWAYS_ADMITTED && expected > LONGEST_WAIT) {
                return Err(Busy::Load);
            }
        }
        self.limit.turn(now).ok_or(Busy::Rate)
    }

    /// Gives turns to who waits, if there are any to give, and wakes them; `asking` is awake, and would never sleep if it
    /// was woken by asking.
    fn grant(&self, mut state: MutexGuard<'_, State>, now: Instant, asking: Option<Place>) {
        state.running.retain(|_, since| now.saturating_duration_since(*since) < LEASE);
        let turns = if self.yields(now) { 1 } else { self.turns };
        let mut woken = Vec::new();
        while state.running.len() < turns
            && let Some((place, waker)) = state.waiting.pop_first()
        {
            state.running.insert(place, now);
            woken.extend(Some(waker).filter(|_| asking != Some(place)));
        }
        self.crowded.store(!state.waiting.is_empty(), Ordering::SeqCst);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// A change is on its way to a stream that is configured.
    pub(crate) fn urgent(&self, now: Instant) {
        self.urgent_at.store(self.nanos(now), Ordering::Relaxed);
        self.urgent.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether new streams make room for changes.
    fn yields(&self, now: Instant) -> bool {
        self.urgent.load(Ordering::SeqCst) > 0
            && self.nanos(now).saturating_sub(self.urgent_at.load(Ordering::Relaxed)) < YIELD.as_nanos() as u64
    }

    fn nanos(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// It has been taken, or nobody will.
    pub(crate) fn no_longer_urgent(&self) {
        let last = self.urgent.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.crowded.load(Ordering::SeqCst) {
            self.grant(self.state(), Instant::now(), None);
        }
    }

    /// Ends turns that have lasted long enough and lets new streams go on after changes. Does not return.
    pub(crate) async fn keep_moving(&self) {
        loop {
            self.waits.notified().await;
            while !self.state().waiting.is_empty() {
                tokio::time::sleep(TICK).await;
                self.grant(self.state(), Instant::now(), None);
            }
        }
    }
}

/// A stream's place among those that take turns. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Turn {
    admission: Arc<Admission>,
    /// Its place while it waits or has a turn.
    place: Option<Place>,
}

impl Turn {
    pub(crate) fn new(admission: Arc<Admission>) -> Self {
        Self { admission, place: None }
    }

    /// Waits for the turn; once it is there it stays until [`Self::end`].
    pub(crate) fn poll(&mut self, class: Class, cx: &Context<'_>, now: Instant) -> Poll<()> {
        let mut state = self.admission.state();
        let place = match self.place {
            Some(place) => match state.waiting.get_mut(&place) {
                Some(waker) => {
                    waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                // It was given, even if its time is over.
                None => return Poll::Ready(()),
            },
            None => {
                state.next += 1;
                (class, state.next)
            }
        };
        self.place = Some(place);
        state.waiting.insert(place, cx.waker().clone());
        self.admission.crowded.store(true, Ordering::SeqCst);
        self.admission.grant(state, now, Some(place));
        if !self.admission.state().waiting.contains_key(&place) {
            return Poll::Ready(());
        }
        self.admission.waits.notify_one();
        Poll::Pending
    }

    /// The answer is in the transport's hands, or there was none.
    pub(crate) fn end(&mut self, now: Instant) {
        let Some(place) = self.place.take() else { return };
        let mut state = self.admission.state();
        state.waiting.remove(&place);
        if let Some(since) = state.running.remove(&place) {
            let lasted = now.saturating_duration_since(since).min(LEASE);
            state.lasts = (state.lasts * 15 + lasted) / 16;
        }
        self.admission.grant(state, now, None);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use futures::task::{ArcWake, waker};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl ArcWake for Woken {
        fn wake_by_ref(woken: &Arc<Self>) {
            woken.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Streams that want a turn, in order.
    struct Crowd {
        turns: Vec<Turn>,
        classes: Vec<Class>,
        woken: Vec<Arc<Woken>>,
    }

    impl Crowd {
        fn new(admission: &Arc<Admission>, count: usize) -> Self {
            Self {
                turns: (0..count).map(|_| Turn::new(admission.clone())).collect(),
                classes: vec![Class::New; count],
                woken: (0..count).map(|_| Arc::default()).collect(),
            }
        }

        fn has_turn(&mut self, number: usize, now: Instant) -> bool {
            let waker = waker(self.woken[number].clone());
            self.turns[number].poll(self.classes[number], &Context::from_waker(&waker), now).is_ready()
        }

        fn with_turn(&mut self, now: Instant) -> Vec<usize> {
            (0..self.turns.len()).filter(|number| self.has_turn(*number, now)).collect()
        }
    }

    fn admission(turns: usize) -> Arc<Admission> {
        Arc::new(Admission::new(NonZeroUsize::new(turns), None))
    }

    #[test]
    fn turns_are_taken_in_order() {
        let (admission, now) = (admission(2), Instant::now());
        let mut crowd = Crowd::new(&admission, 5);
        assert_eq!(crowd.with_turn(now), [0, 1]);
        let woken = crowd.woken.iter().map(|woken| woken.0.load(Ordering::Relaxed)).sum::<usize>();
        assert_eq!(woken, 0, "who asks is awake");
        crowd.turns[0].end(now);
        let woken: Vec<usize> = crowd.woken.iter().map(|woken| woken.0.load(Ordering::Relaxed)).collect();
        assert!(woken[2] > 0 && woken[3] == 0, "only the next is woken: {woken:?}");
        crowd.turns.remove(2);
        crowd.woken.remove(2);
        // The one that ended asks again and is last.
        let with_turn: Vec<bool> = [1, 2, 3, 0].into_iter().map(|number| crowd.has_turn(number, now)).collect();
        assert_eq!(with_turn, [true, true, false, false], "who goes gives his turn to the next");
    }

    #[test]
    fn streams_that_are_configured_go_first() {
        let (admission, now) = (admission(1), Instant::now());
        let mut crowd = Crowd::new(&admission, 4);
        crowd.classes[3] = Class::Configured;
        assert_eq!(crowd.with_turn(now), [0]);
        crowd.turns[0].end(now);
        let with_turn: Vec<bool> = [1, 2, 3].into_iter().map(|number| crowd.has_turn(number, now)).collect();
        assert_eq!(with_turn, [false, false, true]);
    }

    #[test]
    fn who_does_not_read_keeps_nobody_waiting() {
        let (admission, now) = (admission(1), Instant::now());
        let mut crowd = Crowd::new(&admission, 2);
        assert_eq!(crowd.with_turn(now), [0]);
        admission.grant(admission.state(), now + LEASE / 2, None);
        assert!(!crowd.has_turn(1, now));
        admission.grant(admission.state(), now + LEASE, None);
        assert!(crowd.has_turn(1, now) && crowd.has_turn(0, now), "what has begun goes on");
    }

    #[test]
    fn new_streams_make_room_for_changes() {
        let (admission, now) = (admission(3), Instant::now());
        admission.urgent(now);
        let mut crowd = Crowd::new(&admission, 3);
        assert_eq!(crowd.with_turn(now), [0], "they go on all the same");
        admission.grant(admission.state(), now + YIELD / 2, None);
        assert_eq!(crowd.with_turn(now), [0]);
        admission.urgent(now);
        admission.no_longer_urgent();
        assert_eq!(crowd.with_turn(now), [0], "another change is on its way");
        admission.no_longer_urgent();
        assert_eq!(crowd.with_turn(now), [0, 1, 2]);
    }

    #[test]
    fn a_change_that_nobody_takes_holds_up_for_a_moment_only() {
        let (admission, now) = (admission(2), Instant::now());
        admission.urgent(now);
        let mut crowd = Crowd::new(&admission, 2);
        assert_eq!(crowd.with_turn(now), [0]);
        admission.grant(admission.state(), now + YIELD, None);
        assert_eq!(crowd.with_turn(now), [0, 1]);
    }

    #[test]
    fn streams_are_refused_by_how_long_they_would_wait() {
        let (admission, now) = (admission(1), Instant::now());
        let mut crowd = Crowd::new(&admission, ALWAYS_ADMITTED + 1);
        assert_eq!(crowd.with_turn(now).len(), 1);
        assert_eq!(admission.begin(now), Ok(Duration::ZERO), "turns are short");
        admission.state().lasts = LEASE;
        assert_eq!(admission.begin(now), Err(Busy::Load));
        crowd.turns.pop();
        assert_eq!(admission.begin(now), Ok(Duration::ZERO), "few are never refused");
        let limited = Admission::new(None, NonZeroU32::new(1));
        let begun: Vec<_> = (0..3).map(|_| limited.begin(now)).collect();
        assert_eq!(begun, [Ok(Duration::ZERO), Ok(Duration::from_secs(1)), Err(Busy::Rate)]);
    }

    #[test]
    fn turns_are_measured() {
        let (admission, now) = (admission(1), Instant::now());
        let mut turn = Turn::new(admission.clone());
        let waker = waker(Arc::<Woken>::default());
        for _ in 0..100 {
            assert!(turn.poll(Class::New, &Context::from_waker(&waker), now).is_ready());
            turn.end(now + LEASE / 2);
        }
        let lasts = admission.state().lasts;
        assert!((LEASE * 49 / 100..=LEASE / 2).contains(&lasts), "{lasts:?}");
    }
}
