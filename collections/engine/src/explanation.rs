//! Explanations of records, and summaries of recent epochs: the data that [`Engine`](crate::Engine) returns.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value as Json;

use crate::epoch::{Epoch, Origin};
use crate::input_state::InputRecord;
use crate::output::Published;
use crate::value::{Erased, Key, Value};

/// Why a record has its value, and why it changed when it did.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The epoch that this describes.
    pub epoch: Epoch,
    /// The value of the record, if its collection is published and has the key.
    pub value: Option<Json>,
    /// The records it derives from. The root of the tree is the record itself.
    pub why: Reason,
    /// The epoch that last changed the record and the writes that caused it, if the history reaches back that far.
    pub why_now: Option<Cause>,
    /// The present input records in the tree. A second engine of the same graph that gets them derives the record too.
    #[serde(skip)]
    pub inputs: Vec<InputRecord>,
}

/// A record that another record derives from.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Reason {
    /// Name of its collection or index.
    pub collection: String,
    /// Its key as JSON; `None` if all records of the collection were read.
    pub key: Option<Json>,
    /// Whether the collection has the key: a look-up that finds no record is a reason too. `None` if that is not known
    /// cheaply.
    pub present: Option<bool>,
    /// Origin of a record of an input, if its source stated one.
    pub origin: Option<Origin>,
    /// The records it derives from in turn; empty for inputs, and for records explained elsewhere in the tree.
    pub because: Vec<Reason>,
    /// Whether the list above is cut.
    pub more: bool,
}

impl Reason {
    /// All input records in the tree.
    #[must_use]
    pub fn inputs(&self) -> Vec<&Self> {
        let mut inputs = Vec::new();
        self.collect_inputs(&mut inputs);
        inputs
    }

    fn collect_inputs<'a>(&'a self, inputs: &mut Vec<&'a Self>) {
        if self.because.is_empty() && self.origin.is_some() {
            inputs.push(self);
        }
        for reason in &self.because {
            reason.collect_inputs(inputs);
        }
    }
}

/// The epoch that changed a record, and the writes that caused the change.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Cause {
    /// Number of the epoch.
    pub epoch: Epoch,
    /// How long ago it was committed.
    pub age: Duration,
    /// How long it took.
    pub took: Duration,
    /// The writes of the epoch that the record derives from; if there are none (the record was removed together with
    /// the records it derived from), all writes of the epoch. Of an epoch with thousands of writes not all are kept.
    pub writes: Vec<Write>,
}

/// A write that changed an input.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Write {
    /// Name of the input.
    pub collection: String,
    /// Key as JSON.
    pub key: Json,
    /// Where the write comes from.
    pub origin: Option<Origin>,
    /// Whether the write removed the key.
    pub deleted: bool,
}

/// A recent epoch.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct EpochSummary {
    /// Its number.
    pub epoch: Epoch,
    /// How long ago it was committed.
    pub age: Duration,
    /// How long it took.
    pub took: Duration,
    /// The writes that changed an input, first those of the records that the query names; long lists are cut.
    pub writes: Vec<Write>,
    /// Number of writes that changed an input.
    pub write_count: usize,
    /// Published collections that it changed, with the number of changed keys.
    pub changed: Vec<(String, usize)>,
    /// The changed keys of these collections.
    #[serde(skip)]
    pub keys: ChangedKeys,
}

/// The keys of published collections that an epoch changed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ChangedKeys {
    /// Changed keys by slot.
    pub(crate) by_slot: Vec<(usize, Vec<Erased>)>,
    pub(crate) omitted: bool,
}

impl ChangedKeys {
    /// The changed keys of a collection, in order.
    pub fn of<K: Key, V: Value>(&self, collection: &Published<K, V>) -> impl Iterator<Item = &K> {
        let keys = self.by_slot.iter().filter(|(slot, _)| *slot == collection.slot).flat_map(|(_, keys)| keys);
        keys.map(Erased::get::<K>)
    }

    /// Whether the epoch changed too many keys, so that the history has none of them.
    #[must_use]
    pub fn omitted(&self) -> bool {
        self.omitted
    }
}

/// The epochs of the history to list.
#[derive(Clone, Debug, Default)]
pub struct HistoryQuery {
    /// Maximum number of epochs: the most recent ones. 0 is all.
    pub(crate) limit: usize,
    /// Only epochs that were committed at most this long ago.
    pub(crate) max_age: Option<Duration>,
    /// Only epochs after this one.
    pub(crate) after: Option<Epoch>,
    /// Only epochs that wrote one of these records: names of inputs, and keys.
    pub(crate) written: Vec<(String, Erased)>,
}

impl HistoryQuery {
    /// The most recent epochs, this many at most; all with 0.
    #[must_use]
    pub fn recent(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Limits the list to epochs that were committed at most this long ago.
    #[must_use]
    pub fn max_age(self, max_age: Duration) -> Self {
        Self { max_age: Some(max_age), ..self }
    }

    /// Limits the list to epochs after this one.
    #[must_use]
    pub fn after(self, epoch: Epoch) -> Self {
        Self { after: Some(epoch), ..self }
    }

    /// Limits the list to epochs that wrote this record of an input, or those of earlier calls.
    #[must_use]
    pub fn written<K: Key>(mut self, input: &str, key: K) -> Self {
        self.written.push((input.to_owned(), Erased::new(key)));
        self
    }
}
