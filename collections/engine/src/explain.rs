//! Why a record is as it is: what it was made of, down to the inputs; and why now: the writes that last changed it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use serde::Serialize;
use serde_json::Value as Json;

use crate::engine::Engine;
use crate::flow::NodeId;
use crate::input::Origin;
use crate::output::{Epoch, Published};
use crate::value::{Dyn, Key, Value};
use crate::worker::{Command, Engineer, EpochRecord};

/// Records a tree of reasons names at most; beyond that it says `more`.
const REASONS_LIMIT: usize = 4_096;
/// Writes named as the cause of a change at most.
const WRITES_LIMIT: usize = 256;

/// Why a record is as it is, and why it changed when it did.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The epoch this describes.
    pub epoch: Epoch,
    /// The record's value, when it is published and there.
    pub value: Option<Json>,
    /// What it was made of; the record itself is the root.
    pub why: Reason,
    /// The epoch that last changed it and the writes that did, if the history reaches back so far.
    pub why_now: Option<Cause>,
}

/// A record that had a part in another.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Reason {
    /// Name of its collection or index.
    pub collection: String,
    /// Its key as JSON; `None` when everything in the collection was read.
    pub key: Option<Json>,
    /// Whether it is there: a look-up that finds nothing is a reason too. `None` when nobody knows cheaply.
    pub present: Option<bool>,
    /// For a record of an input: where it came from, if its source said so.
    pub origin: Option<Origin>,
    /// What it was made of in turn; empty for inputs, and for records explained elsewhere in the tree.
    pub because: Vec<Reason>,
    /// Whether there was more than could be listed.
    pub more: bool,
}

/// The epoch that changed a record, with its writes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Cause {
    /// Its number.
    pub epoch: Epoch,
    /// How long it took.
    pub took: Duration,
    /// The writes among its inputs that the record was made of; when none of them was (a record removed together with
    /// what it was made of), all its inputs. Of an epoch with thousands of writes not all are kept.
    pub writes: Vec<Write>,
}

/// A write that changed an input.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Write {
    /// Name of the input.
    pub collection: String,
    /// Key as JSON.
    pub key: Json,
    /// Where it came from.
    pub origin: Option<Origin>,
    /// Whether it removed the key.
    pub deleted: bool,
}

/// A recent epoch.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct EpochSummary {
    /// Its number.
    pub epoch: Epoch,
    /// How long it took.
    pub took: Duration,
    /// What was written, as far as it was a change; long lists are cut.
    pub writes: Vec<Write>,
    /// How many writes were changes.
    pub write_count: usize,
    /// Published collections it changed, with how many keys.
    pub changed: Vec<(String, usize)>,
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

impl Engine {
    /// Why the record of `key` is as it is; also answers for a key that is not there. `None` when the engine has
    /// stopped.
    #[must_use]
    pub fn explain<K: Key, V: Value>(&self, of: &Published<K, V>, key: &K) -> Option<Explanation> {
        self.explain_erased(of.node, Dyn::new(key.clone()))
    }

    /// As [`Self::explain`] for any collection or index by name, with the key as JSON, as dumps show it. `None` when
    /// there is no such collection or key now.
    #[must_use]
    pub fn explain_json(&self, collection: &str, key: &Json) -> Option<Explanation> {
        let dump = self.dump(collection)?;
        let (key, _) = dump.rows().iter().find(|(known, _)| known.json() == *key)?;
        self.explain_erased(dump.info().node, key.clone())
    }

    fn explain_erased(&self, node: NodeId, key: Dyn) -> Option<Explanation> {
        let (reply, answer) = bounded(1);
        self.tell(Command::Explain(node, key, reply));
        answer.recv().ok()
    }

    /// The recent epochs, oldest first.
    #[must_use]
    pub fn recent_epochs(&self) -> Vec<EpochSummary> {
        let (reply, answer) = bounded(1);
        self.tell(Command::History(reply));
        answer.recv().unwrap_or_default()
    }
}

impl Engineer {
    pub(crate) fn explain(&self, node: NodeId, key: &Dyn) -> Explanation {
        let mut walk = Walk { engineer: self, left: REASONS_LIMIT, seen: BTreeSet::new(), inputs: BTreeSet::new() };
        let why = walk.reason(node, Some(key));
        let inputs = walk.inputs;
        let record = self.published(node, key);
        let why_now = self.last_change(node, key).map(|epoch| self.cause(epoch, &inputs));
        Explanation { epoch: Epoch(self.epoch), value: record.map(|value| value.json()), why, why_now }
    }

    /// The epoch in the history that last changed a record.
    fn last_change(&self, node: NodeId, key: &Dyn) -> Option<&EpochRecord> {
        let slot = self.nodes[node].published?;
        if let Some(epoch) = self.changed_at(slot, key) {
            return self.history.iter().rev().find(|record| record.epoch == epoch);
        }
        // It is gone: the epoch that removed it named it.
        self.history.iter().rev().find(|record| {
            record.outputs.iter().any(|(changed, keys)| {
                *changed == slot && keys.binary_search_by(|changed| changed.by_content(key)).is_ok()
            })
        })
    }

    fn cause(&self, record: &EpochRecord, inputs: &BTreeSet<(NodeId, Dyn)>) -> Cause {
        let mut writes: Vec<_> =
            record.inputs.iter().filter(|change| inputs.contains(&(change.node, change.key.clone()))).collect();
        if writes.is_empty() && record.inputs.len() == record.write_count {
            writes = record.inputs.iter().collect();
        }
        Cause { epoch: record.epoch, took: record.took, writes: self.writes(writes) }
    }

    fn writes(&self, mut changes: Vec<&crate::input::InputChange>) -> Vec<Write> {
        changes.sort_by(|a, b| a.node.cmp(&b.node).then_with(|| a.key.by_content(&b.key)));
        let write = |change: &crate::input::InputChange| Write {
            collection: self.nodes[change.node].name.clone(),
            key: change.key.json(),
            origin: change.origin.as_deref().cloned(),
            deleted: change.deleted,
        };
        changes.into_iter().take(WRITES_LIMIT).map(write).collect()
    }

    pub(crate) fn summaries(&self) -> Vec<EpochSummary> {
        let summary = |record: &EpochRecord| EpochSummary {
            epoch: record.epoch,
            took: record.took,
            writes: self.writes(record.inputs.iter().collect()),
            write_count: record.write_count,
            changed: record
                .outputs
                .iter()
                .map(|(slot, keys)| (self.nodes[self.slot_node(*slot)].name.clone(), keys.len()))
                .collect(),
        };
        self.history.iter().map(summary).collect()
    }
}

/// A walk from a record to all it was made of.
struct Walk<'a> {
    engineer: &'a Engineer,
    left: usize,
    seen: BTreeSet<(NodeId, Option<Dyn>)>,
    inputs: BTreeSet<(NodeId, Dyn)>,
}

impl Walk<'_> {
    fn reason(&mut self, node: NodeId, key: Option<&Dyn>) -> Reason {
        self.left = self.left.saturating_sub(1);
        let it = &self.engineer.nodes[node];
        let mut reason = Reason {
            collection: it.name.clone(),
            key: key.map(Dyn::json),
            present: key.and_then(|key| self.engineer.holds(node, key)),
            origin: key.and_then(|key| self.engineer.origin(node, key)).map(|origin| (*origin).clone()),
            because: Vec::new(),
            more: false,
        };
        let Some(key) = key else { return reason };
        if self.engineer.is_source(node) {
            self.inputs.insert((node, key.clone()));
        }
        if !self.seen.insert((node, Some(key.clone()))) {
            return reason;
        }
        for (parent, key) in self.engineer.parents_of(node, key) {
            if self.left == 0 {
                reason.more = true;
                break;
            }
            reason.because.push(self.reason(parent, key.as_ref()));
        }
        reason
    }
}

impl Engineer {
    fn origin(&self, node: NodeId, key: &Dyn) -> Option<Arc<Origin>> {
        self.source_row(node, key)?.origin.clone()
    }
}
