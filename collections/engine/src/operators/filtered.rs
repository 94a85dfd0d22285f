//! Look-ups with a filter: a record that made one runs again when a change concerns the records that pass the filter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::metrics::CollectionGauges;
use crate::update::{Update, by_key};
use crate::value::{Erased, ErasedMap};

/// Whether changes of a dependency concern a look-up.
pub(crate) type Concerns = Arc<dyn Fn(&[Update]) -> bool + Send + Sync>;

/// A look-up of those records of a dependency that pass a filter.
#[derive(Clone)]
pub(crate) struct FilteredLookup {
    /// Number of the dependency.
    pub(crate) dep: u32,
    /// The only key, or the index key; `None` if any record may pass.
    pub(crate) key: Option<Erased>,
    pub(crate) concerns: Concerns,
}

/// The look-ups with filters of all records of a `derive`. Most derivations have none.
#[derive(Clone, Default)]
pub(crate) struct FilteredReaders {
    /// By key of the record that made them.
    lookups: ErasedMap<Box<[FilteredLookup]>>,
    /// Keys of the records that looked up a key of a dependency, or all of it.
    readers: BTreeMap<(u32, Option<Erased>), BTreeSet<Erased>>,
}

impl FilteredReaders {
    pub(crate) fn is_empty(&self) -> bool {
        self.lookups.is_empty()
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.lookups.len() + self.readers.len()
    }

    /// Replaces the look-ups of a record.
    pub(crate) fn set(&mut self, reader: &Erased, lookups: Vec<FilteredLookup>) {
        self.remove(reader);
        if lookups.is_empty() {
            return;
        }
        for lookup in &lookups {
            self.readers.entry((lookup.dep, lookup.key.clone())).or_default().insert(reader.clone());
        }
        self.lookups.insert(reader.clone(), lookups.into());
    }

    /// Forgets the look-ups of a record.
    pub(crate) fn remove(&mut self, reader: &Erased) {
        let lookups = self.lookups.remove(reader).unwrap_or_default();
        for FilteredLookup { dep, key, .. } in &lookups[..] {
            let looked_up = (*dep, key.clone());
            let Some(readers) = self.readers.get_mut(&looked_up) else { continue };
            readers.remove(reader);
            if readers.is_empty() {
                self.readers.remove(&looked_up);
            }
        }
    }

    /// Appends the keys of the records that the consolidated `changes` of a dependency concern.
    pub(crate) fn collect(&self, dep: u32, changes: &[Update], gauges: &CollectionGauges, dirty: &mut Vec<Erased>) {
        for changes in by_key(changes) {
            self.collect_readers((dep, Some(changes[0].0.0.clone())), changes, gauges, dirty);
        }
        if !changes.is_empty() {
            self.collect_readers((dep, None), changes, gauges, dirty);
        }
    }

    fn collect_readers(
        &self,
        looked_up: (u32, Option<Erased>),
        changes: &[Update],
        gauges: &CollectionGauges,
        dirty: &mut Vec<Erased>,
    ) {
        for reader in self.readers.get(&looked_up).into_iter().flatten() {
            let lookups = self.lookups.get(reader).map(|lookups| &lookups[..]).unwrap_or_default();
            let mut same = lookups.iter().filter(|lookup| lookup.dep == looked_up.0 && lookup.key == looked_up.1);
            // After a panic the record runs again, because it is not known whether the change concerns it.
            let concerns =
                |lookup: &FilteredLookup| gauges.catch_panic(reader, || (lookup.concerns)(changes)).unwrap_or(true);
            if same.any(concerns) {
                dirty.push(reader.clone());
            }
        }
    }
}
