//! Subscriptions: each pulls what changed since it last looked. Nothing is queued for anyone.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arc_swap::ArcSwap;
use imbl::ordmap::DiffItem;

use crate::clock::Clock;
use crate::output::{Epoch, EpochTiming, Map, Published, RawEvent, Snapshot};
use crate::value::{Key, Value};

/// Where the dataflow thread puts the current snapshot, and readers find it.
pub(crate) struct Hub {
    current: ArcSwap<Snapshot>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    closed: bool,
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self { current: ArcSwap::from_pointee(Snapshot::empty()), waiting: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Shows a new snapshot. `wake` tells whether subscribers have anything to see in it.
    pub(crate) fn publish(&self, mut snapshot: Snapshot, wake: bool) {
        if !wake {
            // The same turn as before: who has not seen it yet is to find what led to it.
            let current = self.current.load();
            snapshot.changes.clone_from(&current.changes);
            snapshot.timing = current.timing;
        }
        self.current.store(Arc::new(snapshot));
        if wake {
            self.wake(false);
        }
    }

    pub(crate) fn close(&self) {
        self.wake(true);
    }

    fn wake(&self, close: bool) {
        let wakers = {
            let mut waiting = self.lock();
            waiting.closed |= close;
            std::mem::take(&mut waiting.wakers)
        };
        self.changed.notify_all();
        for waker in wakers.into_values() {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until `ready` of the current snapshot, the engine's stop, or the time limit.
    pub(crate) fn wait(&self, clock: &Clock, limit: Duration, ready: impl Fn(&Snapshot) -> bool) -> bool {
        let deadline = clock.now().saturating_add(limit);
        let mut waiting = self.lock();
        loop {
            if ready(&self.current.load()) {
                return true;
            }
            let left = deadline.saturating_sub(clock.now());
            if waiting.closed || left.is_zero() {
                return false;
            }
            waiting = self.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A subscription to published collections. The first batch is the whole state, each later one what changed since the
/// batch before: one epoch when the reader keeps up, several merged when it does not. It holds the snapshot it has seen,
/// never a queue; dropping it ends it.
pub struct Feed {
    hub: Arc<Hub>,
    clock: Clock,
    /// Slots of interest, or all.
    slots: Option<Vec<usize>>,
    seen: Arc<Snapshot>,
    ticket: Option<u64>,
}

impl Feed {
    pub(crate) fn new(hub: Arc<Hub>, clock: Clock) -> Self {
        Self { hub, clock, slots: None, seen: Arc::new(Snapshot::empty()), ticket: None }
    }

    /// Limits the feed to that collection and those named by earlier calls.
    #[must_use]
    pub fn only<K: Key, V: Value>(mut self, of: &Published<K, V>) -> Self {
        let slots = self.slots.get_or_insert_default();
        slots.push(of.slot);
        slots.sort_unstable();
        slots.dedup();
        self
    }

    /// What changed since the last batch, if anything did. The first call always gives the state, be it empty.
    pub fn try_next(&mut self) -> Option<Batch> {
        let current = self.hub.snapshot();
        if current.turn == self.seen.turn {
            return None;
        }
        let seen = std::mem::replace(&mut self.seen, current);
        let first = seen.turn == 0;
        let now = &self.seen;
        let changes = if now.turn == seen.turn + 1 && !first {
            let wanted = |slot: &usize| self.slots.as_ref().is_none_or(|slots| slots.binary_search(slot).is_ok());
            now.changes.iter().filter(|(slot, _)| wanted(slot)).cloned().collect()
        } else {
            let slots = self.slots.clone().unwrap_or_else(|| (0..now.maps.len()).collect());
            let difference = |slot| (slot, difference(seen.map(slot), now.map(slot)));
            slots.into_iter().map(difference).filter(|(_, events)| !events.is_empty()).collect::<Vec<_>>()
        };
        let synced = now.all_synced();
        let worth = first || !changes.is_empty() || synced != seen.all_synced();
        worth.then(|| Batch { from: seen.epoch, epoch: now.epoch, first, synced, changes, timing: now.timing })
    }

    /// The next batch, or `None` when the time is up or the engine has stopped.
    pub fn next_timeout(&mut self, limit: Duration) -> Option<Batch> {
        let deadline = self.clock.now().saturating_add(limit);
        loop {
            if let Some(batch) = self.try_next() {
                return Some(batch);
            }
            let (hub, turn) = (self.hub.clone(), self.seen.turn);
            if !hub.wait(&self.clock, deadline.saturating_sub(self.clock.now()), |now| now.turn != turn) {
                return None;
            }
        }
    }

    /// The next batch; ready with `None` once the engine has stopped and everything was delivered.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Batch>> {
        loop {
            if let Some(batch) = self.try_next() {
                return Poll::Ready(Some(batch));
            }
            let mut waiting = self.hub.lock();
            // A snapshot stored before this lock was taken may have woken nobody.
            if self.hub.current.load().turn != self.seen.turn {
                continue;
            }
            if waiting.closed {
                return Poll::Ready(None);
            }
            let ticket = *self.ticket.get_or_insert_with(|| {
                waiting.next += 1;
                waiting.next
            });
            waiting.wakers.insert(ticket, cx.waker().clone());
            return Poll::Pending;
        }
    }

    /// The next batch, for async readers of any runtime.
    pub async fn next(&mut self) -> Option<Batch> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.hub.lock().wakers.remove(&ticket);
        }
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Feed({:?})", self.seen)
    }
}

/// What separates two states of a collection, sorted by key; shared parts are skipped.
fn difference(old: Option<&Map>, new: Option<&Map>) -> Arc<[RawEvent]> {
    let empty = Map::new();
    let event = |item| match item {
        DiffItem::Add(key, record) => {
            let (key, record): (&crate::value::ByContent, &crate::output::Record) = (key, record);
            RawEvent { key: key.0.clone(), old: None, new: Some(record.value.clone()) }
        }
        DiffItem::Update { old: (key, old), new: (_, new) } => {
            RawEvent { key: key.0.clone(), old: Some(old.value.clone()), new: Some(new.value.clone()) }
        }
        DiffItem::Remove(key, record) => RawEvent { key: key.0.clone(), old: Some(record.value.clone()), new: None },
    };
    old.unwrap_or(&empty).diff(new.unwrap_or(&empty)).map(event).collect()
}

/// What changed between two epochs, net.
#[derive(Clone, Debug)]
pub struct Batch {
    from: Epoch,
    epoch: Epoch,
    first: bool,
    synced: bool,
    changes: Vec<(usize, Arc<[RawEvent]>)>,
    timing: EpochTiming,
}

impl Batch {
    /// The epoch the reader was at before.
    #[must_use]
    pub fn from(&self) -> Epoch {
        self.from
    }

    /// The epoch the reader is at with this batch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Timing of its last epoch.
    #[must_use]
    pub fn timing(&self) -> EpochTiming {
        self.timing
    }

    /// Whether this is the feed's first batch, that is, the whole state as additions.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Whether all inputs are synced. A batch with no changes tells that this became so.
    #[must_use]
    pub fn all_synced(&self) -> bool {
        self.synced
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Changes over all collections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.iter().map(|(_, events)| events.len()).sum()
    }

    /// The changes of one collection, sorted by key; at most one a key.
    pub fn events<K: Key, V: Value>(&self, of: &Published<K, V>) -> impl Iterator<Item = Event<K, V>> {
        let at = self.changes.binary_search_by_key(&of.slot, |(slot, _)| *slot);
        at.into_iter().flat_map(|at| self.changes[at].1.iter()).map(|event| Event {
            key: event.key.arc(),
            old: event.old.as_ref().map(|value| value.arc()),
            new: event.new.as_ref().map(|value| value.arc()),
        })
    }
}

/// A change of one record: `old` and `new` differ, at least one is there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event<K, V> {
    /// The record's key.
    pub key: Arc<K>,
    /// Its value before; `None` when it is added.
    pub old: Option<Arc<V>>,
    /// Its value now; `None` when it is removed.
    pub new: Option<Arc<V>>,
}
