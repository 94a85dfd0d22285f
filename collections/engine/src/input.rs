//! Inputs: keyed upserts that coalesce within an epoch.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use differential_dataflow::consolidation::consolidate_updates;
use serde::Serialize;

use crate::flow::NodeId;
use crate::network::{Inlet, Network};
use crate::rows::Rows;
use crate::spines::{Delta, Time};
use crate::value::{Dyn, DynMap, Key, Value};
use crate::worker::{Command, Queue};

/// Where a write came from, as its source tells: it shows in `why`, and never influences a result.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Origin {
    /// Version of the object at its source, such as a resourceVersion.
    pub version: Arc<str>,
    /// When the source received it, since the Unix epoch, by the caller's clock.
    pub received: Option<Duration>,
}

impl Origin {
    /// An origin of that version, with no time.
    #[must_use]
    pub fn version(version: impl Into<Arc<str>>) -> Self {
        Self { version: version.into(), received: None }
    }
}

/// One write to an input.
#[derive(Debug)]
pub(crate) enum Op {
    Set(Dyn, Dyn, Option<Origin>),
    Delete(Dyn, Option<Origin>),
    Replace(Vec<(Dyn, Dyn, Option<Origin>)>),
    Synced,
}

impl Op {
    /// What it counts against the size of an epoch.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Replace(rows) => rows.len().max(1),
            Self::Set(..) | Self::Delete(..) | Self::Synced => 1,
        }
    }
}

/// The writing end of an input collection; clones write to the same. Writes wait when the queue is full and are ignored
/// once the engine has stopped. One handle's writes apply in order.
pub struct Input<K, V> {
    pub(crate) source: usize,
    name: Arc<str>,
    hot: bool,
    queue: Queue,
    types: PhantomData<fn(K, V)>,
}

impl<K, V> Clone for Input<K, V> {
    fn clone(&self) -> Self {
        Self {
            source: self.source,
            name: self.name.clone(),
            hot: self.hot,
            queue: self.queue.clone(),
            types: PhantomData,
        }
    }
}

impl<K, V> std::fmt::Debug for Input<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Input({})", self.name)
    }
}

impl<K: Key, V: Value> Input<K, V> {
    pub(crate) fn new(source: usize, name: &str, hot: bool, queue: Queue) -> Self {
        Self { source, name: name.into(), hot, queue, types: PhantomData }
    }

    /// Name of the collection it feeds.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives `key` the value. An equal value is no change.
    pub fn set(&self, key: K, value: V) {
        self.send(Op::Set(Dyn::new(key), Dyn::new(value), None));
    }

    /// Gives `key` a value that is kept elsewhere too.
    pub fn set_shared(&self, key: K, value: Arc<V>) {
        self.send(Op::Set(Dyn::new(key), Dyn::shared(value), None));
    }

    /// Gives `key` the value, and says where it came from.
    pub fn set_from(&self, key: K, value: V, origin: Origin) {
        self.send(Op::Set(Dyn::new(key), Dyn::new(value), Some(origin)));
    }

    /// Removes `key`, if it is there.
    pub fn delete(&self, key: K) {
        self.send(Op::Delete(Dyn::new(key), None));
    }

    /// Removes `key`, and says what told so.
    pub fn delete_from(&self, key: K, origin: Origin) {
        self.send(Op::Delete(Dyn::new(key), Some(origin)));
    }

    /// Makes `rows` all there is, in one epoch: sets what differs, removes what is not named. The later of two rows of
    /// one key counts.
    pub fn replace_all(&self, rows: impl IntoIterator<Item = (K, V)>) {
        let rows = rows.into_iter().map(|(key, value)| (Dyn::new(key), Dyn::new(value), None));
        self.send(Op::Replace(rows.collect()));
    }

    /// As [`Self::replace_all`], with the origin of each row.
    pub fn replace_all_from(&self, rows: impl IntoIterator<Item = (K, V, Origin)>) {
        let rows = rows.into_iter().map(|(key, value, origin)| (Dyn::new(key), Dyn::new(value), Some(origin)));
        self.send(Op::Replace(rows.collect()));
    }

    /// Says that the initial state has been written. Whatever derives from synced inputs only is synced itself.
    pub fn mark_synced(&self) {
        self.send(Op::Synced);
    }

    fn send(&self, op: Op) {
        self.queue.send(self.hot, Command::Write(self.source, Box::new(op)));
    }
}

/// The value of a key at its source.
#[derive(Clone)]
pub(crate) struct SourceRow {
    pub(crate) value: Dyn,
    pub(crate) origin: Option<Arc<Origin>>,
}

/// An input on the dataflow thread: what it holds, and what the open epoch does to it.
pub(crate) struct Source {
    pub(crate) node: NodeId,
    inlet: Inlet,
    pub(crate) rows: Rows<SourceRow>,
    pub(crate) synced: bool,
    pending: DynMap<Option<(Dyn, Option<Origin>)>>,
    deleted_by: DynMap<Origin>,
}

/// A change an epoch made to an input.
#[derive(Clone, Debug)]
pub(crate) struct InputChange {
    pub(crate) node: NodeId,
    pub(crate) key: Dyn,
    pub(crate) origin: Option<Arc<Origin>>,
    pub(crate) deleted: bool,
}

impl Source {
    pub(crate) fn new(node: NodeId, inlet: Inlet) -> Self {
        Self {
            node,
            inlet,
            rows: Rows::default(),
            synced: false,
            pending: DynMap::default(),
            deleted_by: DynMap::default(),
        }
    }

    /// Takes a write into the open epoch; the last write of a key counts. Says whether the synced state changed.
    pub(crate) fn write(&mut self, op: Op) -> bool {
        match op {
            Op::Set(key, value, origin) => drop(self.pending.insert(key, Some((value, origin)))),
            Op::Delete(key, origin) => {
                if let Some(origin) = origin {
                    self.deleted_by.insert(key.clone(), origin);
                }
                self.pending.insert(key, None);
            }
            Op::Replace(rows) => {
                self.pending.clear();
                for (key, _) in self.rows.iter() {
                    self.pending.insert(key.clone(), None);
                }
                for (key, value, origin) in rows {
                    self.pending.insert(key, Some((value, origin)));
                }
            }
            Op::Synced => return !std::mem::replace(&mut self.synced, true),
        }
        false
    }

    /// Sends what really changed into the network, and reports it in key-hash order.
    pub(crate) fn flush(&mut self, epoch: Time, network: &mut Network, changes: &mut Vec<InputChange>) {
        let mut deltas: Vec<Delta> = Vec::new();
        let pending: BTreeMap<_, _> = std::mem::take(&mut self.pending).into_iter().collect();
        for (key, new) in pending {
            match new {
                Some((value, origin)) => {
                    let origin = origin.map(Arc::new);
                    if let Some(row) = self.rows.get(&key)
                        && row.value == value
                    {
                        // Same content, newer version: nothing to compute, but `why` should name it.
                        if origin.is_some()
                            && let Some(row) = self.rows.get_mut(&key)
                        {
                            row.origin = origin;
                        }
                        continue;
                    }
                    let row = SourceRow { value: value.clone(), origin: origin.clone() };
                    if let Some(old) = self.rows.insert(key.clone(), row) {
                        deltas.push(((key.clone(), old.value), epoch, -1));
                    }
                    deltas.push(((key.clone(), value), epoch, 1));
                    changes.push(InputChange { node: self.node, key, origin, deleted: false });
                }
                None => {
                    let Some(old) = self.rows.remove(&key) else { continue };
                    deltas.push(((key.clone(), old.value), epoch, -1));
                    let origin = self.deleted_by.remove(&key).map(Arc::new).or(old.origin);
                    changes.push(InputChange { node: self.node, key, origin, deleted: true });
                }
            }
        }
        self.deleted_by.clear();
        consolidate_updates(&mut deltas);
        network.send(&self.inlet, deltas);
    }
}
