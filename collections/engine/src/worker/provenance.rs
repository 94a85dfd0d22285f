//! The records of its parents that a record derives from, one operator at a time.

use super::DataflowThread;
use crate::input_state::InputRow;
use crate::node::{NodeId, Provenance};
use crate::spines::TraceCursor;
use crate::value::{Erased, Pair};

impl DataflowThread {
    pub(super) fn is_input(&self, node: NodeId) -> bool {
        matches!(self.nodes[node].provenance, Provenance::Input(_))
    }

    pub(super) fn input_row(&self, node: NodeId, key: &Erased) -> Option<&InputRow> {
        let Provenance::Input(input) = self.nodes[node].provenance else { return None };
        self.inputs[input].rows.get(key)
    }

    /// Whether a collection or index has `key`; `None` if that is not known cheaply.
    pub(super) fn has_key(&self, node: NodeId, key: &Erased) -> Option<bool> {
        let it = &self.nodes[node];
        if self.is_input(node) {
            return Some(self.input_row(node, key).is_some());
        }
        if let Some(store) = &it.store {
            return Some(store.borrow().rows.get(key).is_some());
        }
        if let Some(groups) = &it.groups {
            return Some(groups.borrow().rows.get(key).is_some());
        }
        if it.published.is_some() {
            return Some(self.published_value(node, key).is_some());
        }
        if let Some(mut cursor) = it.cursor() {
            let mut rows = Vec::new();
            cursor.seek(key, &mut rows);
            return Some(!rows.is_empty());
        }
        match &it.provenance {
            Provenance::Renamed(owners) | Provenance::JoinedRows(owners) => {
                Some(owners.borrow().contains_key(&key.hash64()))
            }
            _ => None,
        }
    }

    /// The records of parents that the record of `key` derives from. Without a key: all records of the parent.
    pub(super) fn parents_of(&self, node: NodeId, key: &Erased) -> Vec<(NodeId, Option<Erased>)> {
        let it = &self.nodes[node];
        let mut parents = match &it.provenance {
            Provenance::Input(_) => Vec::new(),
            Provenance::SameKey => it.parents.iter().map(|parent| (*parent, Some(key.clone()))).collect(),
            Provenance::Renamed(owners) => {
                let owner = owners.borrow().get(&key.hash64()).cloned();
                owner.map(|owner| (it.parents[0], Some(owner))).into_iter().collect()
            }
            Provenance::IndexRows => {
                self.source_keys(node, key).into_iter().map(|source| (it.parents[0], Some(source))).collect()
            }
            Provenance::Grouped => self.grouped(node, key),
            Provenance::Chunked(rule, state) => {
                let keys = state.borrow().keys(rule, key);
                keys.into_iter().map(|record| (it.parents[0], Some(record))).collect()
            }
            Provenance::Restricted(group) => {
                vec![(it.parents[0], Some(key.clone())), (it.parents[1], Some(group(key)))]
            }
            Provenance::JoinedRows(owners) => {
                let owner = owners.borrow().get(&key.hash64()).cloned();
                let Some(Pair(index, source)) = owner.as_ref().and_then(Erased::as_pair) else { return Vec::new() };
                let rows_of = self.nodes[it.parents[0]].parents[0];
                vec![(rows_of, Some(source.clone())), (it.parents[1], Some(index.clone()))]
            }
            Provenance::Derived { rule, owners, .. } => {
                let primary = match owners {
                    Some(owners) => owners.borrow().get(&key.hash64()).cloned(),
                    None => Some(key.clone()),
                };
                let Some(primary) = primary else { return Vec::new() };
                let lookups = rule.lookups(&it.gauges, &primary).into_iter();
                let lookups = lookups.map(|lookup| (it.parents[1 + lookup.dep as usize], lookup.key));
                std::iter::once((it.parents[0], Some(primary.clone()))).chain(lookups).collect()
            }
        };
        // The engine orders by hash; users see content order.
        parents.sort_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| match (&a.1, &b.1) {
                (Some(a), Some(b)) => a.by_content(b),
                (a, b) => a.is_some().cmp(&b.is_some()),
            })
        });
        parents.dedup();
        parents
    }

    /// Source keys of the rows of an index key.
    fn source_keys(&self, index: NodeId, key: &Erased) -> Vec<Erased> {
        let it = &self.nodes[index];
        if let Some(groups) = &it.groups {
            let groups = groups.borrow();
            return groups
                .rows
                .get(key)
                .map(|rows| rows.iter().map(|(source, _)| source.clone()).collect())
                .unwrap_or_default();
        }
        it.cursor().map(|mut cursor| arranged_source_keys(&mut cursor, key)).unwrap_or_default()
    }

    fn grouped(&self, node: NodeId, key: &Erased) -> Vec<(NodeId, Option<Erased>)> {
        let it = &self.nodes[node];
        let index = it.parents[0];
        let sources = match it.grouped.as_ref().and_then(TraceCursor::of) {
            Some(mut cursor) => arranged_source_keys(&mut cursor, key),
            None => self.source_keys(index, key),
        };
        if sources.is_empty() {
            // `distinct` counts rows and does not keep them, so the index key is all that is known.
            return vec![(index, Some(key.clone()))];
        }
        let rows_of = self.nodes[index].parents[0];
        sources.into_iter().map(|source| (rows_of, Some(source))).collect()
    }
}

/// Source keys of the rows of `key` in an arrangement of index rows.
fn arranged_source_keys(cursor: &mut TraceCursor, key: &Erased) -> Vec<Erased> {
    let mut rows = Vec::new();
    cursor.seek(key, &mut rows);
    rows.iter().filter_map(Erased::as_pair).map(|pair| pair.0.clone()).collect()
}
