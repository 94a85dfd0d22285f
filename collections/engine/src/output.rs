//! Outputs: the changes of a closed epoch, and a snapshot of all published collections at one epoch.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use serde::Serialize;

use crate::flow::NodeId;
use crate::spines::Delta;
use crate::store::{Claims, by_key};
use crate::value::{ByContent, Dyn, Key, Types, Value};

/// Number of a consistent cut: everything up to it is visible, nothing after it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Epoch(pub u64);

/// Names a published collection when reading a snapshot or a batch.
pub struct Published<K, V> {
    pub(crate) slot: usize,
    pub(crate) node: NodeId,
    pub(crate) name: Arc<str>,
    pub(crate) types: Types<(K, V)>,
}

impl<K, V> Published<K, V> {
    /// Name of the collection.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<K, V> Clone for Published<K, V> {
    fn clone(&self) -> Self {
        Self { slot: self.slot, node: self.node, name: self.name.clone(), types: PhantomData }
    }
}

impl<K, V> std::fmt::Debug for Published<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Published({})", self.name)
    }
}

/// A published record, and the epoch that last changed it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) value: Dyn,
    pub(crate) changed: Epoch,
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

pub(crate) type Map = OrdMap<ByContent, Record>;

/// A change of a published record, erased.
#[derive(Clone, Debug)]
pub(crate) struct RawEvent {
    pub(crate) key: Dyn,
    pub(crate) old: Option<Dyn>,
    pub(crate) new: Option<Dyn>,
}

/// A published collection on the dataflow thread.
pub(crate) struct Slot {
    pub(crate) node: NodeId,
    pub(crate) buffer: Rc<RefCell<Vec<Delta>>>,
    pub(crate) map: Map,
    claims: Claims,
}

impl Slot {
    pub(crate) fn new(node: NodeId, buffer: Rc<RefCell<Vec<Delta>>>) -> Self {
        Self { node, buffer, map: Map::new(), claims: Claims::default() }
    }

    /// Applies what the epoch put out; gives the changes sorted by key.
    pub(crate) fn close(&mut self, epoch: Epoch) -> Vec<RawEvent> {
        let mut deltas = std::mem::take(&mut *self.buffer.borrow_mut());
        differential_dataflow::consolidation::consolidate_updates(&mut deltas);
        let mut events = Vec::new();
        for changes in by_key(&deltas) {
            let key = ByContent(changes[0].0.0.clone());
            let old = self.map.get(&key).map(|record| record.value.clone());
            let new = self.claims.resolve(&key.0, old.as_ref(), changes);
            if old == new {
                continue;
            }
            match &new {
                Some(value) => drop(self.map.insert(key.clone(), Record { value: value.clone(), changed: epoch })),
                None => drop(self.map.remove(&key)),
            }
            events.push(RawEvent { key: key.0, old, new });
        }
        events.sort_unstable_by(|a, b| a.key.by_content(&b.key));
        events
    }

    /// Keys with more than one claim.
    pub(crate) fn conflicts(&self) -> usize {
        self.claims.len()
    }
}

/// All published collections at one epoch. Cheap to hold: it shares what has not changed with its successors.
pub struct Snapshot {
    pub(crate) epoch: Epoch,
    /// Counts snapshots that differ in what they show.
    pub(crate) turn: u64,
    pub(crate) maps: Arc<Vec<Map>>,
    pub(crate) synced: Arc<Vec<bool>>,
    /// What led here from the turn before: (slot, changes), by slot.
    pub(crate) changes: Vec<(usize, Arc<[RawEvent]>)>,
    pub(crate) timing: EpochTiming,
}

/// When the writes of an epoch came in, and what it cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct EpochTiming {
    /// When the source received the earliest of its writes, as their [`Origin`](crate::Origin)s tell; since the Unix epoch.
    pub received: Option<Duration>,
    /// How long the engine took over it.
    pub took: Duration,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({})", self.epoch.0)
    }
}

impl Snapshot {
    pub(crate) fn empty() -> Self {
        Self {
            epoch: Epoch(0),
            turn: 0,
            maps: Arc::default(),
            synced: Arc::default(),
            changes: Vec::new(),
            timing: EpochTiming::default(),
        }
    }

    /// The epoch it shows.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The value of `key`.
    #[must_use]
    pub fn get<K: Key, V: Value>(&self, of: &Published<K, V>, key: &K) -> Option<Arc<V>> {
        Some(self.record(of, key)?.value.arc())
    }

    /// The epoch that last changed `key`.
    #[must_use]
    pub fn changed_at<K: Key, V: Value>(&self, of: &Published<K, V>, key: &K) -> Option<Epoch> {
        Some(self.record(of, key)?.changed)
    }

    /// All records, sorted by key.
    pub fn iter<K: Key, V: Value>(&self, of: &Published<K, V>) -> impl Iterator<Item = (&K, &V)> {
        self.map(of.slot).into_iter().flatten().map(|(key, record)| (key.0.get::<K>(), record.value.get::<V>()))
    }

    /// The records from `from` on, sorted by key.
    pub fn iter_from<K: Key, V: Value>(&self, of: &Published<K, V>, from: &K) -> impl Iterator<Item = (&K, &V)> {
        let from = ByContent(Dyn::new(from.clone()));
        self.map(of.slot)
            .into_iter()
            .flat_map(move |map| map.range((Bound::Included(from.clone()), Bound::Unbounded)))
            .map(|(key, record)| (key.0.get::<K>(), record.value.get::<V>()))
    }

    /// Number of records.
    #[must_use]
    pub fn len<K: Key, V: Value>(&self, of: &Published<K, V>) -> usize {
        self.map(of.slot).map_or(0, OrdMap::len)
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty<K: Key, V: Value>(&self, of: &Published<K, V>) -> bool {
        self.len(of) == 0
    }

    /// Whether every input the collection reads, directly or not, had its initial state by this epoch.
    #[must_use]
    pub fn is_synced<K: Key, V: Value>(&self, of: &Published<K, V>) -> bool {
        self.node_synced(of.node)
    }

    pub(crate) fn node_synced(&self, node: NodeId) -> bool {
        self.synced.get(node).copied().unwrap_or(false)
    }

    /// Whether all inputs had their initial state by this epoch.
    #[must_use]
    pub fn all_synced(&self) -> bool {
        self.turn > 0 && self.synced.iter().all(|synced| *synced)
    }

    pub(crate) fn map(&self, slot: usize) -> Option<&Map> {
        self.maps.get(slot)
    }

    fn record<K: Key, V: Value>(&self, of: &Published<K, V>, key: &K) -> Option<&Record> {
        self.map(of.slot)?.get(&ByContent(Dyn::new(key.clone())))
    }
}
