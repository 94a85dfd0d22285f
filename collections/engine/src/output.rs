//! Published collections: their changes in each epoch, and snapshots of all of them at one epoch.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use imbl::OrdMap;

use crate::epoch::{Epoch, EpochTiming};
use crate::filter::RecordFilter;
use crate::node::NodeId;
use crate::store::ValueConflicts;
use crate::update::{Update, by_key};
use crate::value::{ContentOrdered, Erased, Key, TypeMarker, Value};

/// A published collection, to read it from a snapshot or a batch.
pub struct Published<K, V> {
    pub(crate) slot: usize,
    pub(crate) node: NodeId,
    name: Arc<str>,
    types: TypeMarker<(K, V)>,
}

impl<K, V> Published<K, V> {
    pub(crate) fn new(slot: usize, node: NodeId, name: &str) -> Self {
        Self { slot, node, name: name.into(), types: PhantomData }
    }

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
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PublishedRecord {
    pub(crate) value: Erased,
    pub(crate) changed: Epoch,
}

/// The records of a published collection, in the order that users see.
pub(crate) type PublishedMap = OrdMap<ContentOrdered, PublishedRecord>;

/// The records of a published collection, for a second engine.
pub(crate) struct PublishedRows {
    map: PublishedMap,
    conflicts: ValueConflicts,
}

/// A change of a published record, with erased types.
#[derive(Clone, Debug)]
pub(crate) struct ErasedEvent {
    pub(crate) key: Erased,
    pub(crate) old: Option<Erased>,
    pub(crate) new: Option<Erased>,
}

/// A published collection on the dataflow thread.
pub(crate) struct PublishedCollection {
    pub(crate) node: NodeId,
    /// The updates of the open epoch.
    pub(crate) buffer: Rc<RefCell<Vec<Update>>>,
    pub(crate) map: PublishedMap,
    conflicts: ValueConflicts,
}

impl PublishedCollection {
    pub(crate) fn new(node: NodeId, buffer: Rc<RefCell<Vec<Update>>>) -> Self {
        Self { node, buffer, map: PublishedMap::new(), conflicts: ValueConflicts::default() }
    }

    /// A copy for a second engine.
    pub(crate) fn copy(&self) -> PublishedRows {
        PublishedRows { map: self.map.clone(), conflicts: self.conflicts.clone() }
    }

    /// Takes over the records of the same collection of another engine.
    pub(crate) fn restore(&mut self, PublishedRows { map, conflicts }: PublishedRows) {
        (self.map, self.conflicts) = (map, conflicts);
    }

    /// Applies the updates of the epoch. Returns the changes, sorted by key.
    pub(crate) fn close(&mut self, epoch: Epoch) -> Vec<ErasedEvent> {
        let mut updates = std::mem::take(&mut *self.buffer.borrow_mut());
        differential_dataflow::consolidation::consolidate_updates(&mut updates);
        let mut events = Vec::new();
        for changes in by_key(&updates) {
            let key = ContentOrdered(changes[0].0.0.clone());
            let old = self.map.get(&key).map(|record| record.value.clone());
            let new = self.conflicts.resolve(&key.0, old.as_ref(), changes);
            if old == new {
                continue;
            }
            match &new {
                Some(value) => {
                    drop(self.map.insert(key.clone(), PublishedRecord { value: value.clone(), changed: epoch }));
                }
                None => drop(self.map.remove(&key)),
            }
            events.push(ErasedEvent { key: key.0, old, new });
        }
        events.sort_unstable_by(|a, b| a.key.by_content(&b.key));
        events
    }

    /// Number of keys with more than one value.
    pub(crate) fn conflicts(&self) -> usize {
        self.conflicts.len()
    }
}

/// All published collections at one epoch. A snapshot is cheap to hold: it shares unchanged parts with later snapshots.
pub struct Snapshot {
    pub(crate) epoch: Epoch,
    /// Counts the snapshots that differ in what readers see.
    pub(crate) revision: u64,
    pub(crate) maps: Arc<Vec<PublishedMap>>,
    /// Per node.
    pub(crate) synced: Arc<Vec<bool>>,
    /// Changes since the revision before: (slot, events), by slot.
    pub(crate) changes: Vec<(usize, Arc<[ErasedEvent]>)>,
    pub(crate) timing: EpochTiming,
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
            revision: 0,
            maps: Arc::default(),
            synced: Arc::default(),
            changes: Vec::new(),
            timing: EpochTiming::default(),
        }
    }

    /// The epoch of the snapshot.
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

    /// The records from `first` on, sorted by key.
    pub fn iter_from<K: Key, V: Value>(&self, of: &Published<K, V>, first: K) -> impl Iterator<Item = (&K, &V)> {
        let first = ContentOrdered(Erased::new(first));
        let rows = self.map(of.slot).into_iter().flat_map(move |map| map.range(first.clone()..));
        rows.map(|(key, record)| (key.0.get::<K>(), record.value.get::<V>()))
    }

    /// The records that pass a filter, sorted by key.
    #[must_use]
    pub fn fetch<K: Key, V: Value>(&self, of: &Published<K, V>, filter: &RecordFilter<K, V>) -> Vec<(Arc<K>, Arc<V>)> {
        let Some(map) = self.map(of.slot) else { return Vec::new() };
        let passed = |key: &ContentOrdered, record: &PublishedRecord| {
            let meets = filter.meets_conditions(key.0.get(), record.value.get());
            meets.then(|| (key.0.arc::<K>(), record.value.arc::<V>()))
        };
        match filter.only_keys() {
            Some(keys) => {
                let keys = keys.iter().map(|key| ContentOrdered(Erased::new(key.clone())));
                keys.filter_map(|key| passed(&key, map.get(&key)?)).collect()
            }
            None => map.iter().filter_map(|(key, record)| passed(key, record)).collect(),
        }
    }

    /// Number of records.
    #[must_use]
    pub fn len<K: Key, V: Value>(&self, of: &Published<K, V>) -> usize {
        self.map(of.slot).map_or(0, OrdMap::len)
    }

    /// Whether the collection is empty.
    #[must_use]
    pub fn is_empty<K: Key, V: Value>(&self, of: &Published<K, V>) -> bool {
        self.len(of) == 0
    }

    /// Whether every input that the collection reads, directly or indirectly, has its initial state in this snapshot.
    #[must_use]
    pub fn is_synced<K: Key, V: Value>(&self, of: &Published<K, V>) -> bool {
        self.node_synced(of.node)
    }

    pub(crate) fn node_synced(&self, node: NodeId) -> bool {
        self.synced.get(node).copied().unwrap_or(false)
    }

    /// Whether all inputs have their initial state in this snapshot.
    #[must_use]
    pub fn all_synced(&self) -> bool {
        self.revision > 0 && self.synced.iter().all(|synced| *synced)
    }

    pub(crate) fn map(&self, slot: usize) -> Option<&PublishedMap> {
        self.maps.get(slot)
    }

    fn record<K: Key, V: Value>(&self, of: &Published<K, V>, key: &K) -> Option<&PublishedRecord> {
        self.map(of.slot)?.get(&ContentOrdered(Erased::new(key.clone())))
    }
}
