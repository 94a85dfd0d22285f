//! Explanations: the records that a record derives from, down to the inputs, and the writes that last changed it.

use std::collections::BTreeSet;

use super::{DataflowThread, EpochRecord};
use crate::epoch::Epoch;
use crate::explanation::{Cause, EpochSummary, Explanation, Reason, Write};
use crate::input_state::InputChange;
use crate::node::NodeId;
use crate::value::Erased;

/// Records in the tree of reasons; beyond that the tree is cut.
const MAX_REASONS: usize = 4_096;
/// Writes listed as the cause of a change.
const MAX_WRITES: usize = 256;

impl DataflowThread {
    pub(super) fn explain(&self, node: NodeId, key: &Erased) -> Explanation {
        let mut walk = ReasonWalk { thread: self, left: MAX_REASONS, seen: BTreeSet::new(), inputs: BTreeSet::new() };
        let why = walk.reason(node, Some(key));
        let inputs = walk.inputs;
        let value = self.published_value(node, key).map(Erased::json);
        let why_now = self.last_change(node, key).map(|epoch| self.cause(epoch, &inputs));
        Explanation { epoch: Epoch(self.epoch), value, why, why_now }
    }

    /// The epoch in the history that last changed a record.
    fn last_change(&self, node: NodeId, key: &Erased) -> Option<&EpochRecord> {
        let slot = self.nodes[node].published?;
        if let Some(epoch) = self.changed_at(slot, key) {
            return self.history.iter().rev().find(|record| record.epoch == epoch);
        }
        // The record is absent: find the epoch that removed it.
        self.history.iter().rev().find(|record| {
            record.outputs.iter().any(|(changed, keys)| {
                *changed == slot && keys.binary_search_by(|changed| changed.by_content(key)).is_ok()
            })
        })
    }

    fn cause(&self, record: &EpochRecord, inputs: &BTreeSet<(NodeId, Erased)>) -> Cause {
        let mut writes: Vec<_> =
            record.inputs.iter().filter(|change| inputs.contains(&(change.node, change.key.clone()))).collect();
        if writes.is_empty() && record.inputs.len() == record.write_count {
            writes = record.inputs.iter().collect();
        }
        Cause { epoch: record.epoch, took: record.took, writes: self.writes(writes) }
    }

    fn writes(&self, mut changes: Vec<&InputChange>) -> Vec<Write> {
        changes.sort_by(|a, b| a.node.cmp(&b.node).then_with(|| a.key.by_content(&b.key)));
        let write = |change: &InputChange| Write {
            collection: self.nodes[change.node].name.clone(),
            key: change.key.json(),
            origin: change.origin.as_deref().cloned(),
            deleted: change.deleted,
        };
        changes.into_iter().take(MAX_WRITES).map(write).collect()
    }

    pub(super) fn summaries(&self) -> Vec<EpochSummary> {
        let name = |slot: usize| self.nodes[self.published[slot].node].name.clone();
        let summary = |record: &EpochRecord| EpochSummary {
            epoch: record.epoch,
            took: record.took,
            writes: self.writes(record.inputs.iter().collect()),
            write_count: record.write_count,
            changed: record.outputs.iter().map(|(slot, keys)| (name(*slot), keys.len())).collect(),
        };
        self.history.iter().map(summary).collect()
    }
}

/// A walk from a record to all records it derives from.
struct ReasonWalk<'a> {
    thread: &'a DataflowThread,
    left: usize,
    seen: BTreeSet<(NodeId, Option<Erased>)>,
    inputs: BTreeSet<(NodeId, Erased)>,
}

impl ReasonWalk<'_> {
    fn reason(&mut self, node: NodeId, key: Option<&Erased>) -> Reason {
        self.left = self.left.saturating_sub(1);
        let thread = self.thread;
        let row = key.and_then(|key| thread.input_row(node, key));
        let mut reason = Reason {
            collection: thread.nodes[node].name.clone(),
            key: key.map(Erased::json),
            present: key.and_then(|key| thread.has_key(node, key)),
            origin: row.and_then(|row| row.origin.as_deref().cloned()),
            because: Vec::new(),
            more: false,
        };
        let Some(key) = key else { return reason };
        if thread.is_input(node) {
            self.inputs.insert((node, key.clone()));
        }
        if !self.seen.insert((node, Some(key.clone()))) {
            return reason;
        }
        for (parent, key) in thread.parents_of(node, key) {
            if self.left == 0 {
                reason.more = true;
                break;
            }
            reason.because.push(self.reason(parent, key.as_ref()));
        }
        reason
    }
}
