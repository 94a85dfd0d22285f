//! The records of the groups that another collection names.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::CollectionGauges;
use crate::rows::ShardedRows;
use crate::store::{KeyedStoreRef, ValueConflicts, apply};
use crate::update::{EpochLogic, Time, Update, by_key, size_change};
use crate::value::{Erased, ErasedMap, PrecomputedHash};

/// The groups whose records pass.
pub(crate) struct RestrictRule {
    /// The group of the record with a key, as a key of `groups`.
    pub(crate) group: Box<dyn Fn(&Erased) -> Erased>,
    /// The groups that pass.
    pub(crate) groups: KeyedStoreRef,
    /// The key of `groups` with which all records pass.
    pub(crate) everything: Erased,
}

type RecordKeys = HashSet<Erased, PrecomputedHash>;

/// The records that do not pass, and what finds the records of a group. While all records pass, both are empty.
#[derive(Clone, Default)]
struct RestrictedRecords {
    passing: ErasedMap<RecordKeys>,
    held: ErasedMap<ErasedMap<Erased>>,
    len: usize,
    restricted: bool,
}

/// Where the records that pass are.
struct Passing<'a> {
    rows: &'a mut ShardedRows<Erased>,
    time: Time,
    out: &'a mut Vec<Update>,
}

/// The state of the operator.
#[derive(Clone)]
pub(crate) struct RestrictState {
    records: RestrictedRecords,
    conflicts: ValueConflicts,
}

pub(crate) type RestrictStateRef = Rc<RefCell<RestrictState>>;

impl Default for RestrictState {
    fn default() -> Self {
        let records = RestrictedRecords { restricted: true, ..RestrictedRecords::default() };
        Self { records, conflicts: ValueConflicts::default() }
    }
}

impl RestrictedRecords {
    /// Sets or removes a record.
    fn set(
        &mut self,
        rule: &RestrictRule,
        group: &Erased,
        (key, value): (&Erased, Option<Erased>),
        passing: &mut Passing<'_>,
    ) {
        if !self.restricted {
            apply(passing.rows, key, value, passing.time, passing.out);
            return;
        }
        let passes = rule.groups.borrow().rows.get(group).is_some();
        let (shown, held) = if passes { (value, None) } else { (None, value) };
        change_entry(&mut self.passing, group, |keys: &mut RecordKeys| {
            if shown.is_some() {
                keys.insert(key.clone())
            } else {
                keys.remove(key)
            };
            keys.is_empty()
        });
        let len = &mut self.len;
        change_entry(&mut self.held, group, |rows: &mut ErasedMap<Erased>| {
            let before = rows.len();
            match held {
                Some(value) => rows.insert(key.clone(), value),
                None => rows.remove(key),
            };
            *len = *len + rows.len() - before;
            rows.is_empty()
        });
        apply(passing.rows, key, shown, passing.time, passing.out);
    }

    /// The value of a record, whether it passes or not.
    fn value<'a>(&'a self, group: &Erased, key: &Erased, rows: &'a ShardedRows<Erased>) -> Option<&'a Erased> {
        rows.get(key).or_else(|| self.held.get(group)?.get(key))
    }

    /// Sets all records of a group again, because the group passes now, or does not any more.
    fn set_group(&mut self, rule: &RestrictRule, group: &Erased, passing: &mut Passing<'_>) -> usize {
        let shown: Vec<Erased> = self.passing.get(group).into_iter().flatten().cloned().collect();
        let shown = shown.into_iter().filter_map(|key| Some((key.clone(), passing.rows.get(&key)?.clone())));
        let held = self.held.get(group).into_iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
        let rows: Vec<_> = shown.chain(held).collect();
        for (key, value) in &rows {
            self.set(rule, group, (key, Some(value.clone())), passing);
        }
        rows.len()
    }

    /// Sets all records again, because all pass now, or do not any more.
    fn set_all(&mut self, rule: &RestrictRule, restricted: bool, passing: &mut Passing<'_>) -> usize {
        let shown: Vec<_> = passing.rows.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let before = std::mem::take(self);
        self.restricted = restricted;
        let rows: Vec<_> = shown.into_iter().chain(before.held.into_values().flatten()).collect();
        for (key, value) in &rows {
            self.set(rule, &(rule.group)(key), (key, Some(value.clone())), passing);
        }
        rows.len()
    }
}

/// Changes the entry of a group, and removes it if `change` returns that it is empty.
fn change_entry<T: Default>(map: &mut ErasedMap<T>, group: &Erased, change: impl FnOnce(&mut T) -> bool) {
    if change(map.entry(group.clone()).or_default()) {
        map.remove(group);
    }
}

/// Keeps in `store` the records that pass. The inputs are records and groups. A change of a group visits its records
/// only.
pub(crate) fn restrict_logic(
    rule: RestrictRule,
    state: RestrictStateRef,
    store: KeyedStoreRef,
    gauges: Arc<CollectionGauges>,
) -> EpochLogic {
    let mut stored = 0;
    Box::new(move |time, updates, out| {
        let RestrictState { records, conflicts } = &mut *state.borrow_mut();
        let rows = &mut store.borrow_mut().rows;
        let passing = &mut Passing { rows, time, out };
        let restricted = rule.groups.borrow().rows.get(&rule.everything).is_none();
        let mut visited = 0;
        if restricted != records.restricted {
            visited += records.set_all(&rule, restricted, passing);
        } else if restricted {
            for changes in by_key(&updates[1]) {
                visited += records.set_group(&rule, &changes[0].0.0, passing);
            }
        }
        for changes in by_key(&updates[0]) {
            let key = &changes[0].0.0;
            let Some(group) = gauges.catch_panic(key, || (rule.group)(key)) else { continue };
            let value = conflicts.resolve(key, records.value(&group, key, passing.rows), changes);
            records.set(&rule, &group, (key, value), passing);
            visited += 1;
        }
        gauges.record_input(visited);
        gauges.set_conflicts(conflicts.len());
        gauges.count_stored(&mut stored, passing.rows.len() + records.len);
        differential_dataflow::consolidation::consolidate_updates(out);
        gauges.record_output(size_change(out), out.len());
    })
}
