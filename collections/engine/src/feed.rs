//! Subscriptions: each reads the changes since its last batch. No queue is kept for a subscriber.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arc_swap::ArcSwap;
use imbl::ordmap::DiffItem;

use crate::clock::Clock;
use crate::epoch::{Epoch, EpochTiming};
use crate::output::{ErasedEvent, Published, PublishedMap, PublishedRecord, Snapshot};
use crate::value::{ContentOrdered, Key, Value};

/// Holds the current snapshot: the dataflow thread replaces it, readers load it or wait for the next.
pub(crate) struct SnapshotPublisher {
    current: ArcSwap<Snapshot>,
    subscribers: Mutex<Subscribers>,
    changed: Condvar,
}

#[derive(Default)]
struct Subscribers {
    closed: bool,
    /// The panic that ended the dataflow thread, if one did.
    panic: Option<String>,
    last_ticket: u64,
    wakers: BTreeMap<u64, Waker>,
    /// Those who wait for the end only.
    end_wakers: Vec<Waker>,
}

impl SnapshotPublisher {
    pub(crate) fn new() -> Self {
        Self {
            current: ArcSwap::from_pointee(Snapshot::empty()),
            subscribers: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Replaces the snapshot. `wake` is whether subscribers can see a difference.
    pub(crate) fn publish(&self, mut snapshot: Snapshot, wake: bool) {
        if !wake {
            // The revision stays the same, so a subscriber that has not read it yet must still find its changes.
            let current = self.current.load();
            snapshot.changes.clone_from(&current.changes);
            snapshot.timing = current.timing;
        }
        self.current.store(Arc::new(snapshot));
        if wake {
            self.wake();
        }
    }

    /// Reports the end of the dataflow thread, and the panic that ended it.
    pub(crate) fn close(&self, panic: Option<String>) {
        let wakers = {
            let mut subscribers = self.lock();
            subscribers.panic = panic;
            subscribers.closed = true;
            std::mem::take(&mut subscribers.end_wakers)
        };
        self.wake();
        for waker in wakers {
            waker.wake();
        }
    }

    /// Ready once the dataflow thread has ended, with the panic that ended it.
    pub(crate) fn poll_closed(&self, cx: &Context<'_>) -> Poll<Option<String>> {
        let mut subscribers = self.lock();
        if subscribers.closed {
            return Poll::Ready(subscribers.panic.clone());
        }
        if !subscribers.end_wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            subscribers.end_wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut self.lock().wakers);
        self.changed.notify_all();
        for waker in wakers.into_values() {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Subscribers> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the threads that block test again what they wait for.
    pub(crate) fn interrupt(&self) {
        // With the lock: a thread has not tested yet, or waits already.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Blocks until `ready` holds for the current snapshot, the engine stops, or the time limit passes, if there is one. Returns
    /// whether `ready` holds. Call [`Self::interrupt`] when it depends on more than the snapshot.
    pub(crate) fn wait(&self, limit: Option<(&Clock, Duration)>, ready: impl Fn(&Snapshot) -> bool) -> bool {
        let deadline = limit.map(|(clock, limit)| (clock, clock.now().saturating_add(limit)));
        let mut subscribers = self.lock();
        loop {
            if ready(&self.current.load()) {
                return true;
            }
            let left = deadline.map(|(clock, deadline)| deadline.saturating_sub(clock.now()));
            if subscribers.closed || left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            subscribers = match left {
                None => self.changed.wait(subscribers).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.changed.wait_timeout(subscribers, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

/// A subscription to published collections. The first batch is the whole state. Each later batch is what changed since
/// the batch before: one epoch if the reader keeps up, the net change of several epochs if it does not. A feed holds
/// the last snapshot it has read, never a queue; dropping the feed ends the subscription.
pub struct Feed {
    publisher: Arc<SnapshotPublisher>,
    clock: Clock,
    /// Slots of the subscribed collections; `None` is all.
    slots: Option<Vec<usize>>,
    /// Whether changes that were undone are reported.
    reports_reverted: bool,
    seen: Arc<Snapshot>,
    ticket: Option<u64>,
}

impl Feed {
    pub(crate) fn new(publisher: Arc<SnapshotPublisher>, clock: Clock) -> Self {
        let seen = Arc::new(Snapshot::empty());
        Self { publisher, clock, slots: None, reports_reverted: false, seen, ticket: None }
    }

    /// Limits the feed to this collection and those of earlier calls.
    #[must_use]
    pub fn only<K: Key, V: Value>(mut self, of: &Published<K, V>) -> Self {
        let slots = self.slots.get_or_insert_default();
        slots.push(of.slot);
        slots.sort_unstable();
        slots.dedup();
        self
    }

    /// Also reports a record that has changed since the last batch and has its earlier value again, as an event with equal
    /// values. A reader that acts on records and waits for its effect needs this: the effect was there, and is gone. A record
    /// that changes and changes back within one epoch has not changed.
    #[must_use]
    pub fn with_reverted(mut self) -> Self {
        self.reports_reverted = true;
        self
    }

    /// The changes since the last batch, if there are any. The first call always returns the state, even if it is
    /// empty.
    pub fn try_next(&mut self) -> Option<Batch> {
        let current = self.publisher.snapshot();
        if current.revision == self.seen.revision {
            return None;
        }
        let seen = std::mem::replace(&mut self.seen, current);
        let first = seen.revision == 0;
        let now = &self.seen;
        let changes = if now.revision == seen.revision + 1 && !first {
            let subscribed = |slot: &usize| self.slots.as_ref().is_none_or(|slots| slots.binary_search(slot).is_ok());
            now.changes.iter().filter(|(slot, _)| subscribed(slot)).cloned().collect()
        } else {
            let slots = self.slots.clone().unwrap_or_else(|| (0..now.maps.len()).collect());
            let difference = |slot| (slot, difference(seen.map(slot), now.map(slot), self.reports_reverted));
            slots.into_iter().map(difference).filter(|(_, events)| !events.is_empty()).collect::<Vec<_>>()
        };
        let synced = now.all_synced();
        let report = first || !changes.is_empty() || synced != seen.all_synced();
        report.then(|| Batch { from: seen.epoch, epoch: now.epoch, first, synced, changes, timing: now.timing })
    }

    /// The next batch, or `None` when the time limit passes or the engine stops.
    pub fn next_timeout(&mut self, limit: Duration) -> Option<Batch> {
        let deadline = self.clock.now().saturating_add(limit);
        loop {
            if let Some(batch) = self.try_next() {
                return Some(batch);
            }
            let (publisher, revision) = (self.publisher.clone(), self.seen.revision);
            let left = deadline.saturating_sub(self.clock.now());
            if !publisher.wait(Some((&self.clock, left)), |now| now.revision != revision) {
                return None;
            }
        }
    }

    /// Blocks until there is a later snapshot, or `is_stopped` holds. False when the engine has stopped, and the last
    /// snapshot was read.
    pub(crate) fn wait_for_change(&self, is_stopped: impl Fn() -> bool) -> bool {
        let seen = self.seen.revision;
        self.publisher.wait(None, |now| now.revision != seen || is_stopped())
    }

    /// The snapshot of the last batch.
    pub(crate) fn seen(&self) -> &Snapshot {
        &self.seen
    }

    /// The publisher that it reads.
    pub(crate) fn publisher(&self) -> &Arc<SnapshotPublisher> {
        &self.publisher
    }

    /// The next batch; ready with `None` once the engine has stopped and every batch was returned.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Batch>> {
        loop {
            if let Some(batch) = self.try_next() {
                return Poll::Ready(Some(batch));
            }
            let mut subscribers = self.publisher.lock();
            // A snapshot that was stored before this lock was taken did not wake this feed.
            if self.publisher.current.load().revision != self.seen.revision {
                continue;
            }
            if subscribers.closed {
                return Poll::Ready(None);
            }
            let ticket = *self.ticket.get_or_insert_with(|| {
                subscribers.last_ticket += 1;
                subscribers.last_ticket
            });
            subscribers.wakers.insert(ticket, cx.waker().clone());
            return Poll::Pending;
        }
    }

    /// The next batch, for async readers on any runtime.
    pub async fn next(&mut self) -> Option<Batch> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.publisher.lock().wakers.remove(&ticket);
        }
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Feed({:?})", self.seen)
    }
}

/// The difference of two states of a collection, sorted by key, with or without the records that have equal values and have
/// changed between the states. Shared parts are skipped.
fn difference(old: Option<&PublishedMap>, new: Option<&PublishedMap>, with_reverted: bool) -> Arc<[ErasedEvent]> {
    let empty = PublishedMap::new();
    let event = |item| match item {
        DiffItem::Add(key, record) => {
            let (key, record): (&ContentOrdered, &PublishedRecord) = (key, record);
            ErasedEvent { key: key.0.clone(), old: None, new: Some(record.value.clone()) }
        }
        DiffItem::Update { old: (key, old), new: (_, new) } => {
            ErasedEvent { key: key.0.clone(), old: Some(old.value.clone()), new: Some(new.value.clone()) }
        }
        DiffItem::Remove(key, record) => ErasedEvent { key: key.0.clone(), old: Some(record.value.clone()), new: None },
    };
    let events = old.unwrap_or(&empty).diff(new.unwrap_or(&empty)).map(event);
    events.filter(|event| with_reverted || event.old != event.new).collect()
}

impl Snapshot {
    /// The changes of a collection since an older snapshot of the same engine, sorted by key. Content that both share is
    /// skipped.
    #[must_use]
    pub fn changes_since<K: Key, V: Value>(&self, older: &Self, of: &Published<K, V>) -> Vec<Event<K, V>> {
        difference(older.map(of.slot), self.map(of.slot), false).iter().map(Event::of).collect()
    }
}

/// The net changes between two epochs.
#[derive(Clone, Debug)]
pub struct Batch {
    from: Epoch,
    epoch: Epoch,
    first: bool,
    synced: bool,
    changes: Vec<(usize, Arc<[ErasedEvent]>)>,
    timing: EpochTiming,
}

impl Batch {
    /// The epoch of the reader before this batch.
    #[must_use]
    pub fn from(&self) -> Epoch {
        self.from
    }

    /// The epoch of the reader with this batch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Timing of the last epoch in the batch.
    #[must_use]
    pub fn timing(&self) -> EpochTiming {
        self.timing
    }

    /// Whether this is the first batch of the feed: the whole state, as additions.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Whether all inputs are synced. A batch without changes reports that this has become true.
    #[must_use]
    pub fn all_synced(&self) -> bool {
        self.synced
    }

    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Number of changes in all collections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.iter().map(|(_, events)| events.len()).sum()
    }

    /// The changes of one collection, sorted by key, at most one per key.
    pub fn events<K: Key, V: Value>(&self, of: &Published<K, V>) -> impl Iterator<Item = Event<K, V>> {
        let at = self.changes.binary_search_by_key(&of.slot, |(slot, _)| *slot);
        at.into_iter().flat_map(|at| self.changes[at].1.iter()).map(Event::of)
    }
}

/// What an [`Event`] does to a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EventKind {
    /// There was no such record.
    Added,
    /// The record has another value.
    Updated,
    /// There is no such record any more.
    Removed,
}

/// A change of one record. At least one of `old` and `new` is present. They differ, except in a feed
/// [`with_reverted`](Feed::with_reverted) records.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event<K, V> {
    /// The key of the record.
    pub key: Arc<K>,
    /// The value before the change; `None` if the record is added.
    pub old: Option<Arc<V>>,
    /// The value after the change; `None` if the record is removed.
    pub new: Option<Arc<V>>,
}

impl<K: Key, V: Value> Event<K, V> {
    /// The value after the change or, if the record is removed, before it.
    #[must_use]
    pub fn latest(&self) -> Option<&Arc<V>> {
        self.new.as_ref().or(self.old.as_ref())
    }

    /// Whether the record is added, updated or removed.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match (&self.old, &self.new) {
            (None, _) => EventKind::Added,
            (Some(_), Some(_)) => EventKind::Updated,
            (Some(_), None) => EventKind::Removed,
        }
    }

    fn of(event: &ErasedEvent) -> Self {
        Self {
            key: event.key.arc(),
            old: event.old.as_ref().map(|value| value.arc()),
            new: event.new.as_ref().map(|value| value.arc()),
        }
    }
}
