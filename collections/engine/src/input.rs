//! The writing end of an input.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::command::{CommandQueue, EngineCommand};
use crate::epoch::Origin;
use crate::input_snapshot::InputsSnapshot;
use crate::input_state::WriteOp;
use crate::value::{Erased, Key, Value};

/// The writing end of an input collection; clones write to the same input. A write never waits, and is ignored once the
/// engine has stopped. The writes of one key apply in order: a later write replaces an earlier one that waits for its
/// epoch.
pub struct Input<K, V> {
    pub(crate) number: usize,
    name: Arc<str>,
    priority: bool,
    queue: CommandQueue,
    types: PhantomData<fn(K, V)>,
}

impl<K, V> Clone for Input<K, V> {
    fn clone(&self) -> Self {
        Self {
            number: self.number,
            name: self.name.clone(),
            priority: self.priority,
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

impl InputsSnapshot {
    /// The value of a key.
    #[must_use]
    pub fn get<K: Key, V: Value>(&self, input: &Input<K, V>, key: &K) -> Option<&V> {
        self.value(input.number, &Erased::new(key.clone()))?.downcast()
    }
}

impl<K: Key, V: Value> Input<K, V> {
    pub(crate) fn new(number: usize, name: &str, priority: bool, queue: CommandQueue) -> Self {
        Self { number, name: name.into(), priority, queue, types: PhantomData }
    }

    /// Name of the collection that it writes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the value of `key`. An equal value is no change.
    pub fn set(&self, key: K, value: V) {
        self.send(WriteOp::Set(Erased::new(key), Erased::new(value), None));
    }

    /// Sets the value of `key` to a value that the caller shares.
    pub fn set_shared(&self, key: K, value: Arc<V>) {
        self.send(WriteOp::Set(Erased::new(key), Erased::shared(value), None));
    }

    /// Sets the value of `key`, with the origin of the write.
    pub fn set_from(&self, key: K, value: V, origin: Origin) {
        self.send(WriteOp::Set(Erased::new(key), Erased::new(value), Some(origin)));
    }

    /// Removes `key`. Removing an absent key is no change.
    pub fn delete(&self, key: K) {
        self.send(WriteOp::Delete(Erased::new(key), None));
    }

    /// Removes `key`, with the origin of the deletion.
    pub fn delete_from(&self, key: K, origin: Origin) {
        self.send(WriteOp::Delete(Erased::new(key), Some(origin)));
    }

    /// Replaces all records by `rows` in one epoch: sets the keys that differ and removes the keys that are not in
    /// `rows`. If a key occurs twice, the later row wins.
    pub fn replace_all(&self, rows: impl IntoIterator<Item = (K, V)>) {
        let rows = rows.into_iter().map(|(key, value)| (Erased::new(key), Erased::new(value), None));
        self.send(WriteOp::Replace(rows.collect()));
    }

    /// As [`Self::replace_all`], with the origin of each record.
    pub fn replace_all_from(&self, rows: impl IntoIterator<Item = (K, V, Origin)>) {
        let rows = rows.into_iter().map(|(key, value, origin)| (Erased::new(key), Erased::new(value), Some(origin)));
        self.send(WriteOp::Replace(rows.collect()));
    }

    /// Marks the initial state as written. A collection that derives from synced inputs only is synced itself.
    pub fn mark_synced(&self) {
        self.send(WriteOp::Synced);
    }

    fn send(&self, op: WriteOp) {
        self.queue.send(self.priority, EngineCommand::Write(self.number, Box::new(op)));
    }
}
