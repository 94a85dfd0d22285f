//! How each operator's outputs relate to its inputs, key by key.

use std::rc::Rc;

use crate::derive::{DerivedRef, Rule};
use crate::flow::NodeId;
use crate::input::SourceRow;
use crate::spines::TraceCursor;
use crate::transform::Owners;
use crate::value::{Dyn, Pair};
use crate::worker::Engineer;

/// Where the record of a key comes from, as its operator knows it.
pub(crate) enum Provenance {
    /// Set from outside: the number of the source.
    Source(usize),
    /// The same key of every parent.
    SameKey,
    /// A record of the only parent, whose key is on record.
    Renamed(Owners),
    /// The rows of an index: keys of the index's parent.
    IndexRows,
    /// The rows of the last parent, an index, under the same key; and the same key of the parents before it.
    Grouped,
    /// A row of the first parent, an index, with the record of the second: (index key, source key) on record.
    JoinedRows(Owners),
    /// What the closure read.
    Derived {
        /// The operator's memory.
        derived: DerivedRef,
        /// How it runs.
        rule: Rc<Rule>,
        /// Output key to primary key, when they differ.
        owners: Option<Owners>,
    },
}

impl Provenance {
    pub(crate) fn owners(&self) -> Option<Owners> {
        match self {
            Self::Renamed(owners) | Self::JoinedRows(owners) => Some(owners.clone()),
            Self::Derived { owners, .. } => owners.clone(),
            Self::Source(_) | Self::SameKey | Self::IndexRows | Self::Grouped => None,
        }
    }
}

impl Engineer {
    pub(crate) fn is_source(&self, node: NodeId) -> bool {
        matches!(self.nodes[node].provenance, Provenance::Source(_))
    }

    pub(crate) fn source_row(&self, node: NodeId, key: &Dyn) -> Option<&SourceRow> {
        let Provenance::Source(source) = self.nodes[node].provenance else { return None };
        self.sources[source].rows.get(key)
    }

    /// Whether a collection or index has `key`, where that is cheap to say.
    pub(crate) fn holds(&self, node: NodeId, key: &Dyn) -> Option<bool> {
        let it = &self.nodes[node];
        if self.is_source(node) {
            return Some(self.source_row(node, key).is_some());
        }
        if let Some(store) = &it.store {
            return Some(store.borrow().rows.get(key).is_some());
        }
        if let Some(groups) = &it.groups {
            return Some(groups.borrow().rows.get(key).is_some());
        }
        if it.published.is_some() {
            return Some(self.published(node, key).is_some());
        }
        if let Some(mut cursor) = it.cursor() {
            let mut rows = Vec::new();
            cursor.seek(key, &mut rows);
            return Some(!rows.is_empty());
        }
        if let Provenance::Renamed(owners) | Provenance::JoinedRows(owners) = &it.provenance {
            return Some(owners.borrow().contains_key(&key.hash64()));
        }
        if it.kind == "import" { self.holds(it.parents[0], key) } else { None }
    }

    /// What the record of `key` was made of: records of parents, or all of a parent.
    pub(crate) fn parents_of(&self, node: NodeId, key: &Dyn) -> Vec<(NodeId, Option<Dyn>)> {
        let it = &self.nodes[node];
        let mut parents = match &it.provenance {
            Provenance::Source(_) => Vec::new(),
            Provenance::SameKey => self.same_key(&it.parents, key),
            Provenance::Renamed(owners) => {
                let owner = owners.borrow().get(&key.hash64()).cloned();
                owner.map(|owner| (it.parents[0], Some(owner))).into_iter().collect()
            }
            Provenance::IndexRows => {
                self.index_rows(node, key).into_iter().map(|source| (it.parents[0], Some(source))).collect()
            }
            Provenance::Grouped => self.grouped(node, key),
            Provenance::JoinedRows(owners) => {
                let owner = owners.borrow().get(&key.hash64()).cloned();
                let Some(Pair(index, source)) = owner.as_ref().and_then(Dyn::as_pair) else { return Vec::new() };
                let rows_of = self.nodes[it.parents[0]].parents[0];
                vec![(rows_of, Some(source.clone())), (it.parents[1], Some(index.clone()))]
            }
            Provenance::Derived { rule, owners, .. } => {
                let primary = match owners {
                    Some(owners) => owners.borrow().get(&key.hash64()).cloned(),
                    None => Some(key.clone()),
                };
                let Some(primary) = primary else { return Vec::new() };
                let reads = rule.reads(&it.gauge, &primary).into_iter();
                let reads = reads.map(|read| (it.parents[1 + read.dep as usize], read.key));
                std::iter::once((it.parents[0], Some(primary.clone()))).chain(reads).collect()
            }
        };
        // Collections order by a hash inside; what people see is ordered by content.
        parents.sort_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| match (&a.1, &b.1) {
                (Some(a), Some(b)) => a.by_content(b),
                (a, b) => a.is_some().cmp(&b.is_some()),
            })
        });
        parents.dedup();
        parents
    }

    fn same_key(&self, parents: &[NodeId], key: &Dyn) -> Vec<(NodeId, Option<Dyn>)> {
        parents.iter().map(|parent| (*parent, Some(key.clone()))).collect()
    }

    /// Source keys of an index key's rows.
    fn index_rows(&self, index: NodeId, key: &Dyn) -> Vec<Dyn> {
        let it = &self.nodes[index];
        if let Some(groups) = &it.groups {
            let groups = groups.borrow();
            return groups
                .rows
                .get(key)
                .map(|rows| rows.iter().map(|(source, _)| source.clone()).collect())
                .unwrap_or_default();
        }
        it.cursor().map(|mut cursor| source_keys(&mut cursor, key)).unwrap_or_default()
    }

    fn grouped(&self, node: NodeId, key: &Dyn) -> Vec<(NodeId, Option<Dyn>)> {
        let it = &self.nodes[node];
        let Some((index, before)) = it.parents.split_last() else { return Vec::new() };
        let own = it.grouped.as_ref().and_then(TraceCursor::of);
        let rows = match own {
            Some(mut cursor) => source_keys(&mut cursor, key),
            None => self.index_rows(*index, key),
        };
        let rows_of = self.nodes[*index].parents[0];
        let mut parents = self.same_key(before, key);
        if rows.is_empty() {
            // Counted only: which rows it were is not kept. The index key is what can be said.
            parents.push((*index, Some(key.clone())));
        }
        parents.extend(rows.into_iter().map(|source| (rows_of, Some(source))));
        parents
    }
}

/// Source keys of the rows of `key` in an arrangement of index rows.
fn source_keys(cursor: &mut TraceCursor, key: &Dyn) -> Vec<Dyn> {
    let mut rows = Vec::new();
    cursor.seek(key, &mut rows);
    rows.iter().filter_map(Dyn::as_pair).map(|pair| pair.0.clone()).collect()
}
