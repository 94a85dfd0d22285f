//! Which records of its first parent made the records of a collection, and what else was read for them.

use std::collections::BTreeSet;

use super::DataflowThread;
use crate::command::DerivedGroup;
use crate::node::{NodeId, Provenance};
use crate::value::Erased;

impl DataflowThread {
    /// For each key of a collection: the keys in its first parent that made the record. Of an index that is known from its
    /// rows, and of an input there are none.
    pub(super) fn makers(&self, node: NodeId, keys: &[Erased]) -> Vec<Vec<Erased>> {
        let makers = |key: &Erased| -> Vec<Erased> {
            let owner = |owners: &crate::operators::record::KeyOwners| owners.borrow().get(&key.hash64()).cloned();
            match &self.nodes[node].provenance {
                Provenance::Input(_) | Provenance::IndexRows => Vec::new(),
                Provenance::SameKey | Provenance::Grouped | Provenance::Restricted(_) => vec![key.clone()],
                Provenance::Renamed(owners) => owner(owners).into_iter().collect(),
                Provenance::Chunked(rule, state) => state.borrow().keys(rule, key),
                Provenance::JoinedRows(owners) => {
                    let row = owner(owners);
                    row.as_ref().and_then(Erased::as_pair).map(|pair| pair.0.clone()).into_iter().collect()
                }
                Provenance::Derived { owners: Some(owners), .. } => owner(owners).into_iter().collect(),
                Provenance::Derived { owners: None, .. } => vec![key.clone()],
            }
        };
        keys.iter().map(makers).collect()
    }

    /// The records that were read for each group of outputs, besides the record of the first parent.
    pub(super) fn reads(&self, node: NodeId, groups: &[DerivedGroup]) -> Vec<Vec<(NodeId, Option<Erased>)>> {
        groups.iter().map(|group| self.reads_of(node, group)).collect()
    }

    fn reads_of(&self, node: NodeId, group: &DerivedGroup) -> Vec<(NodeId, Option<Erased>)> {
        let it = &self.nodes[node];
        let outputs: &[Erased] = match &it.provenance {
            // The look-ups belong to the record of the first parent: they are those of each output.
            Provenance::Derived { .. } => &group.outputs[..1.min(group.outputs.len())],
            // These read nothing else.
            Provenance::Input(_) | Provenance::IndexRows | Provenance::Renamed(_) | Provenance::Chunked(..) => &[],
            Provenance::SameKey | Provenance::Grouped | Provenance::JoinedRows(_) | Provenance::Restricted(_) => {
                &group.outputs[..]
            }
        };
        // A look-up that found nothing decides about a derived record. Other operators read what is present.
        let decides = matches!(it.provenance, Provenance::Derived { .. });
        let mut reads = Vec::new();
        let mut seen = BTreeSet::new();
        for (parent, key) in outputs.iter().flat_map(|output| self.parents_of(node, output)) {
            let is_maker = parent == it.parents[0] && key.as_ref() == Some(&group.maker);
            let is_absent = |key: &Erased| !decides && self.has_key(parent, key) == Some(false);
            if !is_maker && !key.as_ref().is_some_and(is_absent) && seen.insert((parent, key.clone())) {
                reads.push((parent, key));
            }
        }
        reads
    }
}
