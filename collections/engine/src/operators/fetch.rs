//! Fetches with filters, in closures of `derive` (K04, K05).

use std::sync::Arc;

use crate::filter::RecordFilter;
use crate::operators::filtered::{Concerns, FilteredLookup};
use crate::operators::lookup::{Context, Dep, IndexDep, LookupTable};
use crate::update::{Update, size_change};
use crate::value::{Erased, Key, Value};

/// Finds the record in an update of a collection, or the row in an update of an index.
type Access<K, V> = for<'a> fn(&'a Update) -> Option<(&'a K, &'a V)>;

fn record<K: Key, V: Value>(update: &Update) -> Option<(&K, &V)> {
    let ((key, value), ..) = update;
    Some((key.get(), value.get()))
}

fn index_row<K: Key, R: Value>(update: &Update) -> Option<(&K, &R)> {
    let ((_, row), ..) = update;
    let pair = row.as_pair()?;
    Some((pair.0.get(), pair.1.get()))
}

/// Both the old and the new value count: a record may pass the filter with either of them only.
fn any_passes<K: Key, V: Value>(filter: &RecordFilter<K, V>, access: Access<K, V>) -> Concerns {
    let filter = filter.clone();
    Arc::new(move |updates: &[Update]| updates.iter().filter_map(access).any(|(key, value)| filter.matches(key, value)))
}

/// Whether the parts of the records that pass are others than before.
fn parts_differ<K: Key, V: Value, S: PartialEq + 'static>(
    filter: &RecordFilter<K, V>,
    access: Access<K, V>,
    part: Arc<dyn Fn(&V) -> S + Send + Sync>,
) -> Concerns {
    let filter = filter.clone();
    Arc::new(move |updates: &[Update]| {
        let parts = |added: bool| {
            let rows = updates.iter().filter(move |(_, _, diff)| (*diff > 0) == added).filter_map(access);
            let rows = rows.filter(|(key, value)| filter.matches(key, value));
            rows.map(|(key, value)| (key, part(value))).collect::<Vec<_>>()
        };
        let mut removed = parts(false);
        let is_new = |row: &(&K, S)| match removed.iter().position(|old| old == row) {
            Some(at) => {
                removed.swap_remove(at);
                false
            }
            None => true,
        };
        parts(true).iter().any(is_new) || !removed.is_empty()
    })
}

impl Context {
    /// The records of a collection that pass a filter, sorted by key. The closure runs again when a change concerns one of
    /// them, and not for changes of other records.
    ///
    /// Without keys in the filter, the fetch visits all records of the collection, and each change of the collection is
    /// tested with the filter of each record that made such a fetch. Of large collections, fetch keys, or an index
    /// ([`Self::fetch_by`]).
    pub fn fetch<K: Key, V: Value>(&self, dep: &Dep<K, V>, filter: &RecordFilter<K, V>) -> Vec<(K, Arc<V>)> {
        let concerns = || any_passes(filter, record::<K, V>);
        self.fetch_records(dep, filter, filter.has_conditions(), &concerns)
    }

    /// The one record that passes a filter, as [`Self::fetch`].
    ///
    /// # Panics
    /// Several records pass. The derived record keeps its last output then.
    pub fn fetch_one<K: Key, V: Value>(&self, dep: &Dep<K, V>, filter: &RecordFilter<K, V>) -> Option<(K, Arc<V>)> {
        let mut found = self.fetch(dep, filter);
        assert!(found.len() < 2, "fetch_one: {} records pass the filter {filter:?}", found.len());
        found.pop()
    }

    /// A part of each record that passes a filter, as [`Self::fetch`]. The closure does not run again for changes of
    /// records that keep the part.
    pub fn fetch_part<K: Key, V: Value, S: PartialEq + 'static>(
        &self,
        dep: &Dep<K, V>,
        filter: &RecordFilter<K, V>,
        part: impl Fn(&V) -> S + Send + Sync + 'static,
    ) -> Vec<(K, S)> {
        let part: Arc<dyn Fn(&V) -> S + Send + Sync> = Arc::new(part);
        let concerns = || parts_differ(filter, record::<K, V>, part.clone());
        let records = self.fetch_records(dep, filter, true, &concerns);
        records.into_iter().map(|(key, value)| (key, part(&value))).collect()
    }

    /// Whether the collection has a key. The closure does not run again for changes of its value.
    pub fn exists<K: Key, V: Value>(&self, dep: &Dep<K, V>, key: &K) -> bool {
        let LookupTable::Collection(store) = self.table(dep.number) else { return false };
        let key = Erased::new(key.clone());
        let exists = store.borrow().rows.get(&key).is_some();
        let concerns: Concerns = Arc::new(|updates: &[Update]| size_change(updates) != 0);
        self.record_filtered(FilteredLookup { dep: dep.number, key: Some(key), concerns });
        exists
    }

    /// The rows of an index key that pass a filter, sorted by source key. The closure runs again when a change concerns
    /// one of them, and not for changes of other rows of that key.
    pub fn fetch_by<I: Key, K: Key, R: Value>(
        &self,
        dep: &IndexDep<I, K, R>,
        key: &I,
        filter: &RecordFilter<K, R>,
    ) -> Vec<(K, Arc<R>)> {
        self.fetch_rows(dep, key, filter, any_passes(filter, index_row::<K, R>))
    }

    /// A part of each row of an index key that passes a filter, as [`Self::fetch_by`]. The closure does not run again for
    /// changes of rows that keep the part.
    pub fn fetch_part_by<I: Key, K: Key, R: Value, S: PartialEq + 'static>(
        &self,
        dep: &IndexDep<I, K, R>,
        key: &I,
        filter: &RecordFilter<K, R>,
        part: impl Fn(&R) -> S + Send + Sync + 'static,
    ) -> Vec<(K, S)> {
        let part: Arc<dyn Fn(&R) -> S + Send + Sync> = Arc::new(part);
        let rows = self.fetch_rows(dep, key, filter, parts_differ(filter, index_row::<K, R>, part.clone()));
        rows.into_iter().map(|(key, row)| (key, part(&row))).collect()
    }

    /// Makes the record depend on a trigger or on any other singleton, without reading it (K11).
    pub fn depend_on<V: Value>(&self, dep: &Dep<(), V>) {
        self.record(dep.number, Some(Erased::new(())));
    }

    /// Reads the records and records the look-ups: with `concerns` if not every change of the record concerns the caller.
    fn fetch_records<K: Key, V: Value>(
        &self,
        dep: &Dep<K, V>,
        filter: &RecordFilter<K, V>,
        is_filtered: bool,
        concerns: &dyn Fn() -> Concerns,
    ) -> Vec<(K, Arc<V>)> {
        let LookupTable::Collection(store) = self.table(dep.number) else { return Vec::new() };
        let (store, number) = (store.borrow(), dep.number);
        let Some(keys) = filter.only_keys() else {
            // Before a condition of the filter can panic: the record depends on the collection then, too.
            match is_filtered {
                true => self.record_filtered(FilteredLookup { dep: number, key: None, concerns: concerns() }),
                false => self.record(number, None),
            }
            let records = store.rows.iter().map(|(key, value)| (key, key.get::<K>(), value));
            let mut found: Vec<_> =
                records.filter(|(_, key, value)| filter.meets_conditions(key, value.get())).collect();
            found.sort_unstable_by(|a, b| a.1.cmp(b.1));
            if is_filtered {
                self.trail_passed(number, found.iter().map(|(key, ..)| (*key).clone()));
            }
            return found.into_iter().map(|(_, key, value)| (key.clone(), value.arc())).collect();
        };
        let mut found = Vec::new();
        let shared = is_filtered.then(concerns);
        for key in keys {
            let erased = Erased::new(key.clone());
            match &shared {
                Some(concerns) => {
                    let lookup = FilteredLookup { dep: number, key: Some(erased.clone()), concerns: concerns.clone() };
                    self.record_filtered(lookup);
                }
                None => self.record(number, Some(erased.clone())),
            }
            if let Some(value) = store.rows.get(&erased)
                && filter.meets_conditions(key, value.get())
            {
                found.push((key.clone(), value.arc()));
            }
        }
        found
    }

    fn fetch_rows<I: Key, K: Key, R: Value>(
        &self,
        dep: &IndexDep<I, K, R>,
        key: &I,
        filter: &RecordFilter<K, R>,
        concerns: Concerns,
    ) -> Vec<(K, Arc<R>)> {
        let LookupTable::Index(groups) = self.table(dep.number) else { return Vec::new() };
        let key = Erased::new(key.clone());
        self.record_filtered(FilteredLookup { dep: dep.number, key: Some(key.clone()), concerns });
        match groups.borrow().rows.get(&key) {
            Some(group) => {
                let rows = group.iter().map(|(key, row)| (key.get::<K>(), row));
                let rows = rows.filter(|(key, row)| filter.matches(key, row.get()));
                rows.map(|(key, row)| (key.clone(), row.arc())).collect()
            }
            None => Vec::new(),
        }
    }
}
