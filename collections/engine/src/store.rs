//! State beside the dataflow: one value a key, and the rows of an index, as of the epoch just completed.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::Gauge;
use crate::network::EpochLogic;
use crate::rows::Rows;
use crate::spines::{Delta, Time};
use crate::value::{Dyn, DynMap};

/// Resolves changes to at most one value a key. When several claim a key, the smallest by content wins, whatever came
/// first, so that the outcome does not depend on the order of arrival.
#[derive(Default)]
pub(crate) struct Claims(DynMap<Vec<(Dyn, isize)>>);

impl Claims {
    /// Keys with more than one claim now.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value `key` has after `changes` (consolidated, all of that key), if it had `current`.
    pub(crate) fn resolve(&mut self, key: &Dyn, current: Option<&Dyn>, changes: &[Delta]) -> Option<Dyn> {
        if !self.0.contains_key(key) {
            match (current, changes) {
                (None, [((_, new), _, 1)]) => return Some(new.clone()),
                (Some(old), [((_, gone), _, -1)]) if old == gone => return None,
                (Some(old), [((_, a), _, -1), ((_, b), _, 1)]) if old == a => return Some(b.clone()),
                (Some(old), [((_, b), _, 1), ((_, a), _, -1)]) if old == a => return Some(b.clone()),
                _ => {}
            }
        }
        let mut claims =
            self.0.remove(key).unwrap_or_else(|| current.map(|value| (value.clone(), 1)).into_iter().collect());
        for ((_, value), _, diff) in changes {
            match claims.iter_mut().find(|(claimed, _)| claimed == value) {
                Some((_, count)) => *count += diff,
                None => claims.push((value.clone(), *diff)),
            }
        }
        claims.retain(|(_, count)| *count != 0);
        let winner = claims
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(value, _)| value)
            .min_by(|a, b| a.by_content(b))
            .cloned();
        if !matches!(claims[..], [] | [(_, 1)]) {
            self.0.insert(key.clone(), claims);
        }
        winner
    }
}

/// Runs of changes that concern one key.
pub(crate) fn by_key(deltas: &[Delta]) -> impl Iterator<Item = &[Delta]> {
    deltas.chunk_by(|a, b| a.0.0 == b.0.0)
}

/// The rows of a collection.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) rows: Rows<Dyn>,
    claims: Claims,
}

pub(crate) type StoreRef = Rc<RefCell<Store>>;

/// Keeps `store` at the epoch that passes by, then forwards the resolved changes.
pub(crate) fn keep_store(store: StoreRef, gauge: Arc<Gauge>) -> EpochLogic {
    let mut counted = 0;
    Box::new(move |time, deltas, out| {
        let mut store = store.borrow_mut();
        let Store { rows, claims } = &mut *store;
        for changes in by_key(&deltas[0]) {
            let key = &changes[0].0.0;
            let old = rows.get(key);
            let new = claims.resolve(key, old, changes);
            apply(rows, key, new, time, out);
        }
        gauge.set_conflicts(claims.len());
        gauge.count_stored(&mut counted, rows.len());
    })
}

/// Sets the value of a key, and puts out what that changes.
pub(crate) fn apply(rows: &mut Rows<Dyn>, key: &Dyn, new: Option<Dyn>, time: Time, out: &mut Vec<Delta>) {
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
pub(crate) type Group = Arc<Vec<(Dyn, Dyn)>>;

/// The rows of an index by its key.
#[derive(Default)]
pub(crate) struct Groups {
    pub(crate) rows: Rows<Group>,
}

pub(crate) type GroupsRef = Rc<RefCell<Groups>>;

/// Keeps `groups` at the epoch that passes by, then forwards the changes.
pub(crate) fn keep_groups(groups: GroupsRef, gauge: Arc<Gauge>) -> EpochLogic {
    let mut counted = 0;
    Box::new(move |_, deltas, out| {
        let mut groups = groups.borrow_mut();
        for changes in by_key(&deltas[0]) {
            let key = &changes[0].0.0;
            groups.apply(key, changes);
        }
        gauge.count_stored(&mut counted, groups.rows.len());
        out.append(&mut deltas[0]);
    })
}

impl Groups {
    fn apply(&mut self, key: &Dyn, changes: &[Delta]) {
        if self.rows.get(key).is_none() {
            self.rows.insert(key.clone(), Group::default());
        }
        let Some(group) = self.rows.get_mut(key) else { return };
        let group = Arc::make_mut(group);
        for ((_, row), _, diff) in changes {
            let Some(pair) = row.as_pair() else { continue };
            let position = group.binary_search_by(|(k, r)| k.by_content(&pair.0).then_with(|| r.by_content(&pair.1)));
            match (position, (*diff).cmp(&0)) {
                (Ok(at), Ordering::Less) => drop(group.remove(at)),
                (Err(at), Ordering::Greater) => {
                    // Most groups stay small and there are many: do not let each keep spare room.
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
