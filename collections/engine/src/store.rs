//! Stores beside the dataflow, as of the last completed epoch: one value per key, and the rows of an index.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::CollectionGauges;
use crate::rows::ShardedRows;
use crate::update::{EpochLogic, Time, Update, by_key};
use crate::value::{Erased, ErasedMap};

/// Resolves updates to at most one value per key. When a key has several values, the smallest by content wins, so that
/// the result does not depend on the order of arrival. Only keys with several values are kept here.
#[derive(Clone, Default)]
pub(crate) struct ValueConflicts(ErasedMap<Vec<(Erased, isize)>>);

impl ValueConflicts {
    /// Number of keys with more than one value now.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value of `key` after `changes` (consolidated, all of that key), if its value was `current`.
    pub(crate) fn resolve(&mut self, key: &Erased, current: Option<&Erased>, changes: &[Update]) -> Option<Erased> {
        if !self.0.contains_key(key) {
            match (current, changes) {
                (None, [((_, new), _, 1)]) => return Some(new.clone()),
                (Some(old), [((_, removed), _, -1)]) if old == removed => return None,
                (Some(old), [((_, a), _, -1), ((_, b), _, 1)]) if old == a => return Some(b.clone()),
                (Some(old), [((_, b), _, 1), ((_, a), _, -1)]) if old == a => return Some(b.clone()),
                _ => {}
            }
        }
        let mut values =
            self.0.remove(key).unwrap_or_else(|| current.map(|value| (value.clone(), 1)).into_iter().collect());
        for ((_, value), _, diff) in changes {
            match values.iter_mut().find(|(known, _)| known == value) {
                Some((_, count)) => *count += diff,
                None => values.push((value.clone(), *diff)),
            }
        }
        values.retain(|(_, count)| *count != 0);
        let winner = values
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(value, _)| value)
            .min_by(|a, b| a.by_content(b))
            .cloned();
        if !matches!(values[..], [] | [(_, 1)]) {
            self.0.insert(key.clone(), values);
        }
        winner
    }
}

/// The rows of a collection: one value per key.
#[derive(Clone, Default)]
pub(crate) struct KeyedStore {
    pub(crate) rows: ShardedRows<Erased>,
    conflicts: ValueConflicts,
}

pub(crate) type KeyedStoreRef = Rc<RefCell<KeyedStore>>;

/// An operator that applies each epoch to `store` and forwards the resolved updates.
pub(crate) fn keyed_store_logic(store: KeyedStoreRef, gauges: Arc<CollectionGauges>) -> EpochLogic {
    let mut counted = 0;
    Box::new(move |time, updates, out| {
        let mut store = store.borrow_mut();
        let KeyedStore { rows, conflicts } = &mut *store;
        for changes in by_key(&updates[0]) {
            let key = &changes[0].0.0;
            let old = rows.get(key);
            let new = conflicts.resolve(key, old, changes);
            apply(rows, key, new, time, out);
        }
        gauges.set_conflicts(conflicts.len());
        gauges.count_stored(&mut counted, rows.len());
    })
}

/// Sets the value of a key, and appends the updates that this makes.
pub(crate) fn apply(
    rows: &mut ShardedRows<Erased>,
    key: &Erased,
    new: Option<Erased>,
    time: Time,
    out: &mut Vec<Update>,
) {
    let old = match &new {
        Some(value) => rows.insert(key.clone(), value.clone()),
        None => rows.remove(key),
    };
    if old == new {
        return;
    }
    out.extend(old.map(|value| ((key.clone(), value), time, -1)));
    out.extend(new.map(|value| ((key.clone(), value), time, 1)));
}

/// The rows of one index key: (source key, row), sorted by content.
pub(crate) type IndexRows = Arc<Vec<(Erased, Erased)>>;

/// The rows of an index by index key.
#[derive(Clone, Default)]
pub(crate) struct IndexStore {
    pub(crate) rows: ShardedRows<IndexRows>,
}

pub(crate) type IndexStoreRef = Rc<RefCell<IndexStore>>;

/// An operator that applies each epoch to `groups` and forwards the updates.
pub(crate) fn index_store_logic(groups: IndexStoreRef, gauges: Arc<CollectionGauges>) -> EpochLogic {
    let mut counted = 0;
    Box::new(move |_, updates, out| {
        let mut groups = groups.borrow_mut();
        for changes in by_key(&updates[0]) {
            let key = &changes[0].0.0;
            groups.apply(key, changes);
        }
        gauges.count_stored(&mut counted, groups.rows.len());
        out.append(&mut updates[0]);
    })
}

impl IndexStore {
    fn apply(&mut self, key: &Erased, changes: &[Update]) {
        if self.rows.get(key).is_none() {
            self.rows.insert(key.clone(), IndexRows::default());
        }
        let Some(group) = self.rows.get_mut(key) else { return };
        let group = Arc::make_mut(group);
        for ((_, row), _, diff) in changes {
            let Some(pair) = row.as_pair() else { continue };
            let position = group.binary_search_by(|(k, r)| k.by_content(&pair.0).then_with(|| r.by_content(&pair.1)));
            match (position, (*diff).cmp(&0)) {
                (Ok(at), Ordering::Less) => drop(group.remove(at)),
                (Err(at), Ordering::Greater) => {
                    // There are many groups and most stay small, so they keep no spare capacity.
                    if group.len() < 8 {
                        group.reserve_exact(1);
                    }
                    group.insert(at, (pair.0.clone(), pair.1.clone()));
                }
                _ => {}
            }
        }
        if group.is_empty() {
            self.rows.remove(key);
        }
    }
}
