//! Explanations: the records that a record derives from, down to the inputs, and the writes that last changed it.

use std::collections::BTreeSet;

use super::{DataflowThread, EpochRecord};
use crate::epoch::Epoch;
use crate::explanation::{Cause, ChangedKeys, EpochSummary, Explanation, HistoryQuery, Reason, Write};
use crate::input_state::{InputChange, InputRecord};
use crate::node::{NodeId, Provenance};
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
        let inputs = inputs.iter().filter_map(|(node, key)| self.input_record(*node, key)).collect();
        Explanation { epoch: Epoch(self.epoch), value, why, why_now, inputs }
    }

    fn input_record(&self, node: NodeId, key: &Erased) -> Option<InputRecord> {
        let Provenance::Input(input) = self.nodes[node].provenance else { return None };
        let row = self.inputs[input].rows.get(key)?;
        Some(InputRecord {
            input,
            collection: self.nodes[node].name.as_str().into(),
            key: key.clone(),
            row: Some(row.clone()),
        })
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
        Cause { epoch: record.epoch, age: self.age(record), took: record.took, writes: self.writes(writes) }
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

    /// The epochs of the history that a query asks for, oldest first.
    pub(super) fn summaries(&self, query: &HistoryQuery) -> Vec<EpochSummary> {
        let find = |name: &str| self.nodes.iter().position(|node| node.name == name);
        let written: Vec<_> = query.written.iter().filter_map(|(input, key)| Some((find(input)?, key))).collect();
        let is_named =
            |change: &InputChange| written.iter().any(|(node, key)| change.node == *node && change.key == **key);
        let is_wanted = |record: &&EpochRecord| query.written.is_empty() || record.inputs.iter().any(is_named);
        let is_recent = |record: &&EpochRecord| {
            query.max_age.is_none_or(|max_age| self.age(record) <= max_age)
                && query.after.is_none_or(|epoch| record.epoch > epoch)
        };
        let limit = if query.limit == 0 { usize::MAX } else { query.limit };
        let recent = self.history.iter().rev().take_while(is_recent).filter(is_wanted).take(limit);
        let mut summaries: Vec<_> = recent.map(|record| self.summary(record, is_named)).collect();
        summaries.reverse();
        summaries
    }

    /// A summary, with the named writes first.
    fn summary(&self, record: &EpochRecord, is_named: impl Fn(&InputChange) -> bool) -> EpochSummary {
        let (named, others): (Vec<_>, Vec<_>) = record.inputs.iter().partition(|change| is_named(change));
        let mut writes = self.writes(named);
        writes.extend(self.writes(others));
        writes.truncate(MAX_WRITES);
        let name = |slot: usize| self.nodes[self.published[slot].node].name.clone();
        EpochSummary {
            epoch: record.epoch,
            age: self.age(record),
            took: record.took,
            writes,
            write_count: record.write_count,
            changed: record.outputs.iter().map(|(slot, keys)| (name(*slot), keys.len())).collect(),
            keys: ChangedKeys { by_slot: record.outputs.clone(), omitted: record.outputs_omitted },
        }
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
