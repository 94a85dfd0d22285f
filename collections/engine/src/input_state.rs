//! Inputs on the dataflow thread: keyed writes that coalesce within an epoch.

use std::collections::BTreeMap;
use std::sync::Arc;

use differential_dataflow::consolidation::consolidate_updates;

use crate::epoch::Origin;
use crate::metrics::CollectionGauges;
use crate::network::{NetworkInput, OperatorNetwork};
use crate::node::NodeId;
use crate::rows::ShardedRows;
use crate::update::{Time, Update};
use crate::value::{Erased, ErasedMap, Key, Value};

/// One write to an input.
#[derive(Debug)]
pub(crate) enum WriteOp {
    Set(Erased, Erased, Option<Origin>),
    Delete(Erased, Option<Origin>),
    Replace(Vec<(Erased, Erased, Option<Origin>)>),
    /// Only transactions have it: their sender waits, so that no queue grows.
    DeleteWhere(DeleteCondition),
    Synced,
}

/// Whether a record is deleted, by its key and value.
pub(crate) struct DeleteCondition(pub(crate) ErasedCondition);

type ErasedCondition = Box<dyn Fn(&Erased, &Erased) -> bool + Send>;

impl std::fmt::Debug for DeleteCondition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeleteCondition")
    }
}

impl WriteOp {
    /// Number of writes that it counts as in the limit of an epoch.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Replace(rows) => rows.len().max(1),
            Self::Set(..) | Self::Delete(..) | Self::DeleteWhere(_) | Self::Synced => 1,
        }
    }
}

/// The value of a key of an input, and its origin.
#[derive(Clone, Debug)]
pub(crate) struct InputRow {
    pub(crate) value: Erased,
    pub(crate) origin: Option<Arc<Origin>>,
}

/// The rows of an input, and whether it has its initial state.
#[derive(Clone)]
pub(crate) struct InputRows {
    rows: ShardedRows<InputRow>,
    synced: bool,
}

/// An input: its rows, and the writes of the open epoch.
pub(crate) struct InputState {
    pub(crate) node: NodeId,
    entry: NetworkInput,
    pub(crate) rows: ShardedRows<InputRow>,
    pub(crate) synced: bool,
    pending: ErasedMap<Option<(Erased, Option<Origin>)>>,
    deleted_by: ErasedMap<Origin>,
}

/// A record of an input, or the absence of one: to write it to a second engine of the same graph.
#[derive(Clone, Debug)]
pub struct InputRecord {
    /// Number of the input.
    pub(crate) input: usize,
    /// Name of the input.
    pub(crate) collection: Arc<str>,
    pub(crate) key: Erased,
    /// `None` if there is no such record.
    pub(crate) row: Option<InputRow>,
}

impl InputRecord {
    /// Name of the input.
    #[must_use]
    pub fn collection(&self) -> &str {
        &self.collection
    }

    /// The key, if it has this type.
    #[must_use]
    pub fn key<K: Key>(&self) -> Option<&K> {
        self.key.downcast()
    }

    /// The key as JSON.
    #[must_use]
    pub fn key_json(&self) -> serde_json::Value {
        self.key.json()
    }

    /// The value, if there is a record and its value has this type.
    #[must_use]
    pub fn value<V: Value>(&self) -> Option<&V> {
        self.row.as_ref()?.value.downcast()
    }

    /// The value as JSON; `None` if there is no such record.
    #[must_use]
    pub fn value_json(&self) -> Option<serde_json::Value> {
        self.row.as_ref().map(|row| row.value.json())
    }

    /// Whether there is no such record.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.row.is_none()
    }

    /// Where the record comes from, if its source stated that.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.row.as_ref()?.origin.as_deref()
    }

    /// The write that makes another engine have the record, or not have it.
    pub(crate) fn op(&self) -> WriteOp {
        match &self.row {
            Some(row) => WriteOp::Set(self.key.clone(), row.value.clone(), row.origin.as_deref().cloned()),
            None => WriteOp::Delete(self.key.clone(), None),
        }
    }
}

/// A change of an input in an epoch.
#[derive(Clone, Debug)]
pub(crate) struct InputChange {
    pub(crate) node: NodeId,
    pub(crate) key: Erased,
    pub(crate) origin: Option<Arc<Origin>>,
    pub(crate) deleted: bool,
}

impl InputState {
    pub(crate) fn new(node: NodeId, entry: NetworkInput) -> Self {
        Self {
            node,
            entry,
            rows: ShardedRows::default(),
            synced: false,
            pending: ErasedMap::default(),
            deleted_by: ErasedMap::default(),
        }
    }

    /// A copy for a second engine.
    pub(crate) fn copy(&self) -> InputRows {
        InputRows { rows: self.rows.clone(), synced: self.synced }
    }

    /// Takes over the rows of the same input of another engine, in place of the writes of the open epoch.
    pub(crate) fn restore(&mut self, InputRows { rows, synced }: InputRows) {
        self.pending.clear();
        (self.rows, self.synced) = (rows, synced);
    }

    /// Adds a write to the open epoch; the last write of a key wins. Returns whether the synced state changed.
    pub(crate) fn write(&mut self, op: WriteOp, gauges: &CollectionGauges) -> bool {
        match op {
            WriteOp::Set(key, value, origin) => drop(self.pending.insert(key, Some((value, origin)))),
            WriteOp::Delete(key, origin) => {
                if let Some(origin) = origin {
                    self.deleted_by.insert(key.clone(), origin);
                }
                self.pending.insert(key, None);
            }
            WriteOp::Replace(rows) => {
                self.pending.clear();
                for (key, _) in self.rows.iter() {
                    self.pending.insert(key.clone(), None);
                }
                for (key, value, origin) in rows {
                    self.pending.insert(key, Some((value, origin)));
                }
            }
            WriteOp::DeleteWhere(condition) => self.delete_where(&condition, gauges),
            WriteOp::Synced => return !std::mem::replace(&mut self.synced, true),
        }
        false
    }

    /// Deletes the records that meet a condition, with the writes of the open epoch so far.
    fn delete_where(&mut self, DeleteCondition(condition): &DeleteCondition, gauges: &CollectionGauges) {
        // A record for which the condition panics stays.
        let is_deleted = |key: &Erased, value: &Erased| gauges.catch_panic(key, || condition(key, value)) == Some(true);
        self.pending.iter_mut().for_each(|(key, write)| {
            if write.as_ref().is_some_and(|(value, _)| is_deleted(key, value)) {
                *write = None;
            }
        });
        for (key, row) in self.rows.iter() {
            if !self.pending.contains_key(key) && is_deleted(key, &row.value) {
                self.pending.insert(key.clone(), None);
            }
        }
    }

    /// Sends the effective changes of the open epoch to the network, and appends them to `changes` in the order of
    /// their key hashes.
    pub(crate) fn flush(&mut self, epoch: Time, network: &mut OperatorNetwork, changes: &mut Vec<InputChange>) {
        let mut updates: Vec<Update> = Vec::new();
        let pending: BTreeMap<_, _> = std::mem::take(&mut self.pending).into_iter().collect();
        for (key, new) in pending {
            match new {
                Some((value, origin)) => {
                    let origin = origin.map(Arc::new);
                    if let Some(row) = self.rows.get(&key)
                        && row.value == value
                    {
                        // A newer version with the same content: there is nothing to compute, but explanations name it.
                        if origin.is_some()
                            && let Some(row) = self.rows.get_mut(&key)
                        {
                            row.origin = origin;
                        }
                        continue;
                    }
                    let row = InputRow { value: value.clone(), origin: origin.clone() };
                    if let Some(old) = self.rows.insert(key.clone(), row) {
                        updates.push(((key.clone(), old.value), epoch, -1));
                    }
                    updates.push(((key.clone(), value), epoch, 1));
                    changes.push(InputChange { node: self.node, key, origin, deleted: false });
                }
                None => {
                    let Some(old) = self.rows.remove(&key) else { continue };
                    updates.push(((key.clone(), old.value), epoch, -1));
                    let origin = self.deleted_by.remove(&key).map(Arc::new).or(old.origin);
                    changes.push(InputChange { node: self.node, key, origin, deleted: true });
                }
            }
        }
        self.deleted_by.clear();
        consolidate_updates(&mut updates);
        network.send(&self.entry, updates);
    }
}
