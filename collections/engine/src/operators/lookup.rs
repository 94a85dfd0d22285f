//! The operator behind `derive`: closures that look up records of other collections while they run, and run again when
//! a record they looked up changes.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::CollectionGauges;
use crate::operators::filtered::{FilteredLookup, FilteredReaders};
use crate::operators::record::{KeyOwners, update_owners};
use crate::rows::ShardedRows;
use crate::store::{IndexStoreRef, KeyedStoreRef};
use crate::update::{EpochLogic, Row, Time, Update, by_key, size_change};
use crate::value::{Erased, Key, PrecomputedHash, TypeMarker, Value};

/// A collection that a `derive` closure may look up.
pub struct Dep<K, V> {
    pub(super) number: u32,
    types: TypeMarker<(K, V)>,
}

/// An index that a `derive` closure may look up.
pub struct IndexDep<I, K, R> {
    pub(super) number: u32,
    types: TypeMarker<(I, K, R)>,
}

impl<K, V> Dep<K, V> {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, types: PhantomData }
    }
}

impl<I, K, R> IndexDep<I, K, R> {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, types: PhantomData }
    }
}

impl<K, V> Clone for Dep<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V> Copy for Dep<K, V> {}

impl<I, K, R> Clone for IndexDep<I, K, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<I, K, R> Copy for IndexDep<I, K, R> {}

/// The rows of one dependency.
pub(crate) enum LookupTable {
    Collection(KeyedStoreRef),
    Index(IndexStoreRef),
}

/// Gives a `derive` closure access to its dependencies. Every look-up is recorded, whether it finds a record or not.
pub struct Context {
    tables: Vec<LookupTable>,
    lookups: RefCell<Vec<LookupHash>>,
    filtered: RefCell<Vec<FilteredLookup>>,
    /// The look-ups with their keys, while an explanation needs them.
    trail: RefCell<Option<Vec<Lookup>>>,
    discard: Cell<bool>,
}

impl Context {
    pub(crate) fn new(tables: Vec<LookupTable>) -> Self {
        let (lookups, filtered, trail) = (RefCell::default(), RefCell::default(), RefCell::default());
        Self { tables, lookups, filtered, trail, discard: Cell::new(false) }
    }

    /// The value of `key`, if the collection has the key.
    pub fn get<K: Key, V: Value>(&self, dep: &Dep<K, V>, key: &K) -> Option<Arc<V>> {
        let LookupTable::Collection(store) = self.table(dep.number) else { return None };
        let key = Erased::new(key.clone());
        let value = store.borrow().rows.get(&key).map(Erased::arc);
        self.record(dep.number, Some(key));
        value
    }

    /// The rows of an index key, sorted by source key.
    pub fn by<I: Key, K: Key, R: Value>(&self, dep: &IndexDep<I, K, R>, key: &I) -> Vec<(K, Arc<R>)> {
        let LookupTable::Index(groups) = self.table(dep.number) else { return Vec::new() };
        let groups = groups.borrow();
        let key = Erased::new(key.clone());
        let rows = groups
            .rows
            .get(&key)
            .map(|group| group.iter().map(|(key, row)| (key.get::<K>().clone(), row.arc())).collect())
            .unwrap_or_default();
        self.record(dep.number, Some(key));
        rows
    }

    /// All records of the collection, sorted by key. Each change of the collection runs the closure again for *every*
    /// record that called this, so it is only for small collections.
    pub fn all<K: Key, V: Value>(&self, dep: &Dep<K, V>) -> Vec<(K, Arc<V>)> {
        let LookupTable::Collection(store) = self.table(dep.number) else { return Vec::new() };
        self.record(dep.number, None);
        let store = store.borrow();
        let mut rows: Vec<_> =
            store.rows.iter().map(|(key, value)| (key.get::<K>().clone(), value.arc::<V>())).collect();
        rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        rows
    }

    /// Discards the result of this run: the record keeps its last output. If the record has no last output yet, the
    /// result is used.
    pub fn discard_result(&self) {
        self.discard.set(true);
    }

    pub(super) fn record(&self, dep: u32, key: Option<Erased>) {
        self.lookups.borrow_mut().push(lookup_hash(dep, key.as_ref()));
        if let Some(trail) = &mut *self.trail.borrow_mut() {
            trail.push(Lookup { dep, key });
        }
    }

    /// Records a look-up with a filter. A look-up without a key also calls [`Self::trail_passed`].
    pub(super) fn record_filtered(&self, lookup: FilteredLookup) {
        if let (Some(key), Some(trail)) = (&lookup.key, &mut *self.trail.borrow_mut()) {
            trail.push(Lookup { dep: lookup.dep, key: Some(key.clone()) });
        }
        self.filtered.borrow_mut().push(lookup);
    }

    /// Tells an explanation which records passed the filter of a look-up without a key.
    pub(super) fn trail_passed(&self, dep: u32, mut passed: impl Iterator<Item = Erased>) {
        if let Some(trail) = &mut *self.trail.borrow_mut() {
            // That no record passed is a reason too.
            trail.push(Lookup { dep, key: passed.next() });
            trail.extend(passed.map(|key| Lookup { dep, key: Some(key) }));
        }
    }

    pub(super) fn table(&self, number: u32) -> &LookupTable {
        &self.tables[number as usize]
    }
}

/// A look-up of one key of a dependency, or of all its records.
pub(crate) struct Lookup {
    pub(crate) dep: u32,
    pub(crate) key: Option<Erased>,
}

/// A recorded look-up. If two look-ups have the same hash, a closure may run once more than needed, with the same
/// result.
type LookupHash = u64;

fn lookup_hash(dep: u32, key: Option<&Erased>) -> LookupHash {
    // A different odd multiplier for each dependency separates equal keys of several dependencies; the constant
    // separates a look-up of all records from look-ups of keys.
    let key = key.map_or(0x5851_f42d_4c95_7f2d, Erased::hash64);
    (key ^ u64::from(dep)).wrapping_mul(u64::from(dep).wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// The last output of a record. There are many outputs, and most have one row with the record's own key.
#[derive(Clone)]
enum DeriveOutput {
    Nothing,
    SameKey(Erased),
    Rows(Box<[Row]>),
}

impl DeriveOutput {
    /// Takes sorted rows.
    fn of(key: &Erased, rows: &[Row]) -> Self {
        match rows {
            [] => Self::Nothing,
            [(made, value)] if made == key => Self::SameKey(value.clone()),
            rows => Self::Rows(rows.into()),
        }
    }

    fn is(&self, key: &Erased, rows: &[Row]) -> bool {
        match (self, rows) {
            (Self::Nothing, []) => true,
            (Self::SameKey(known), [(made, value)]) => made == key && value == known,
            (Self::Rows(known), rows) => **known == *rows,
            _ => false,
        }
    }

    fn each(&self, key: &Erased, mut take: impl FnMut(Row)) {
        match self {
            Self::Nothing => {}
            Self::SameKey(value) => take((key.clone(), value.clone())),
            Self::Rows(rows) => rows.iter().cloned().for_each(take),
        }
    }
}

/// The look-ups and the output of the last run for a record.
#[derive(Clone, Default)]
pub(crate) struct DeriveEntry {
    /// Sorted.
    lookups: Box<[LookupHash]>,
    /// `None` until a run succeeds: only then there is a last output.
    out: Option<DeriveOutput>,
}

impl DeriveEntry {
    /// Calls `take` with each output row of the record with this key.
    pub(crate) fn each_row(&self, key: &Erased, take: impl FnMut(Row)) {
        if let Some(out) = &self.out {
            out.each(key, take);
        }
    }
}

/// Key hashes of the records that made each look-up. Most look-ups have one reader, and there are many.
#[derive(Clone, Default)]
struct Readers {
    single: HashMap<LookupHash, u64, PrecomputedHash>,
    /// The look-ups with several; they stay here when one is left.
    several: HashMap<LookupHash, HashSet<u64, PrecomputedHash>, PrecomputedHash>,
}

impl Readers {
    /// Number of look-ups.
    fn len(&self) -> usize {
        self.single.len() + self.several.len()
    }

    fn add(&mut self, lookup: LookupHash, reader: u64) {
        if let Some(readers) = self.several.get_mut(&lookup) {
            readers.insert(reader);
        } else if let Some(first) = self.single.insert(lookup, reader).filter(|first| *first != reader) {
            self.single.remove(&lookup);
            self.several.insert(lookup, [first, reader].into_iter().collect());
        }
    }

    fn remove(&mut self, lookup: LookupHash, reader: u64) {
        if let Some(readers) = self.several.get_mut(&lookup) {
            if readers.remove(&reader) && readers.is_empty() {
                self.several.remove(&lookup);
            }
        } else if self.single.get(&lookup) == Some(&reader) {
            self.single.remove(&lookup);
        }
    }

    /// The readers of a look-up, in no particular order.
    fn of(&self, lookup: LookupHash) -> impl Iterator<Item = u64> {
        let several = self.several.get(&lookup).into_iter().flatten();
        self.single.get(&lookup).into_iter().chain(several).copied()
    }
}

/// The state of a `derive` operator.
#[derive(Clone, Default)]
pub(crate) struct DeriveState {
    pub(crate) entries: ShardedRows<DeriveEntry>,
    readers: Readers,
    filtered: FilteredReaders,
}

pub(crate) type DeriveStateRef = Rc<RefCell<DeriveState>>;
/// A user's closure with erased types.
pub(crate) type DeriveFn = Box<dyn Fn(&Context, &Erased, &Erased, &mut Vec<Row>)>;

/// A closure with its dependencies, shared between the operator and explanations.
pub(crate) struct DeriveRule {
    cx: Context,
    derive: DeriveFn,
    primary: KeyedStoreRef,
}

impl DeriveRule {
    pub(crate) fn new(cx: Context, derive: DeriveFn, primary: KeyedStoreRef) -> Self {
        Self { cx, derive, primary }
    }

    fn run(&self, gauges: &CollectionGauges, (key, value): (&Erased, &Erased), rows: &mut Vec<Row>) -> Option<()> {
        self.cx.discard.set(false);
        self.cx.lookups.borrow_mut().clear();
        self.cx.filtered.borrow_mut().clear();
        gauges.catch_panic(key, || (self.derive)(&self.cx, key, value, rows))
    }

    /// The look-ups of a record. Only their hashes are kept, so this runs the closure once more.
    pub(crate) fn lookups(&self, gauges: &CollectionGauges, key: &Erased) -> Vec<Lookup> {
        let primary = self.primary.borrow();
        let Some(value) = primary.rows.get(key) else { return Vec::new() };
        *self.cx.trail.borrow_mut() = Some(Vec::new());
        // After a panic, the result is the look-ups made before it.
        self.run(gauges, (key, value), &mut Vec::new()).unwrap_or_default();
        self.cx.trail.take().unwrap_or_default()
    }
}

/// The state with which the operator runs a rule.
struct DeriveRun {
    rule: Rc<DeriveRule>,
    gauges: Arc<CollectionGauges>,
    rows: Vec<Row>,
}

impl DeriveState {
    fn add_readers(&mut self, key: &Erased, lookups: &[LookupHash]) {
        lookups.iter().for_each(|lookup| self.readers.add(*lookup, key.hash64()));
    }

    /// If another record has the same key hash, these look-ups may also be its own, so they stay.
    fn remove_readers(&mut self, key: &Erased, lookups: &[LookupHash]) {
        let hash = key.hash64();
        if self.entries.keys_of(hash).all(|other| other == key) {
            lookups.iter().for_each(|lookup| self.readers.remove(*lookup, hash));
        }
    }

    fn collect_readers(&self, lookup: LookupHash, dirty: &mut Vec<Erased>) {
        dirty.extend(self.readers.of(lookup).flat_map(|reader| self.entries.keys_of(reader)).cloned());
    }

    /// Keys of the records that must run again, sorted.
    fn dirty(&self, updates: &[Vec<Update>], gauges: &CollectionGauges) -> Vec<Erased> {
        let mut dirty: Vec<Erased> = by_key(&updates[0]).map(|changes| changes[0].0.0.clone()).collect();
        for (dep, changes) in updates[1..].iter().enumerate() {
            let dep = dep as u32;
            for changes in by_key(changes) {
                self.collect_readers(lookup_hash(dep, Some(&changes[0].0.0)), &mut dirty);
            }
            if !changes.is_empty() {
                self.collect_readers(lookup_hash(dep, None), &mut dirty);
            }
            if !self.filtered.is_empty() {
                self.filtered.collect(dep, changes, gauges, &mut dirty);
            }
        }
        dirty.sort_unstable();
        dirty.dedup();
        dirty
    }

    fn remove(&mut self, key: &Erased, time: Time, out: &mut Vec<Update>) {
        if let Some(entry) = self.entries.remove(key) {
            self.remove_readers(key, &entry.lookups);
            if !self.filtered.is_empty() {
                self.filtered.remove(key);
            }
            entry.each_row(key, |row| out.push((row, time, -1)));
        }
    }

    fn run(&mut self, run: &mut DeriveRun, record: (&Erased, &Erased), time: Time, out: &mut Vec<Update>) {
        let DeriveRun { rule, gauges, rows } = run;
        let (key, _) = record;
        let done = rule.run(gauges, record, rows).is_some();
        let mut entry = self.entries.get_mut(key).map(std::mem::take).unwrap_or_default();
        {
            // Also after a panic: the look-ups made before it decide when the closure runs again.
            let lookups = &mut *rule.cx.lookups.borrow_mut();
            lookups.sort_unstable();
            lookups.dedup();
            if lookups[..] != entry.lookups[..] {
                self.remove_readers(key, &entry.lookups);
                self.add_readers(key, lookups);
                entry.lookups = lookups.as_slice().into();
            }
        }
        let filtered = std::mem::take(&mut *rule.cx.filtered.borrow_mut());
        if !filtered.is_empty() || !self.filtered.is_empty() {
            self.filtered.set(key, filtered);
        }
        let discard = rule.cx.discard.get();
        if done && !(discard && (entry.out.is_some() || rows.is_empty())) {
            rows.sort_unstable();
            rows.dedup();
            if !entry.out.as_ref().is_some_and(|known| known.is(key, rows)) {
                entry.each_row(key, |row| out.push((row, time, -1)));
                out.extend(rows.iter().map(|row| (row.clone(), time, 1)));
                entry.out = Some(DeriveOutput::of(key, rows));
            }
        }
        rows.clear();
        match self.entries.get_mut(key) {
            Some(known) => *known = entry,
            None => drop(self.entries.insert(key.clone(), entry)),
        }
    }
}

/// The operator of a rule. Its first input is the updates of the primary collection, the others those of its
/// dependencies, in their order. With `owners` it records which record made which key.
pub(crate) fn derive_logic(
    rule: Rc<DeriveRule>,
    state: DeriveStateRef,
    gauges: Arc<CollectionGauges>,
    owners: Option<KeyOwners>,
) -> EpochLogic {
    let primary = rule.primary.clone();
    let mut run = DeriveRun { rule, gauges: gauges.clone(), rows: Vec::new() };
    let mut stored = 0;
    Box::new(move |time, updates, out| {
        let mut state = state.borrow_mut();
        let dirty = state.dirty(updates, &gauges);
        gauges.timed(dirty.len(), || {
            let primary = primary.borrow();
            for key in &dirty {
                let start = out.len();
                match primary.rows.get(key) {
                    Some(value) => state.run(&mut run, (key, value), time, out),
                    None => state.remove(key, time, out),
                }
                if let Some(owners) = &owners {
                    update_owners(owners, key, &out[start..]);
                }
            }
        });
        let owned = owners.as_ref().map_or(0, |owners| owners.borrow().len());
        gauges.count_stored(&mut stored, state.entries.len() + state.readers.len() + state.filtered.len() + owned);
        differential_dataflow::consolidation::consolidate_updates(out);
        gauges.record_output(size_change(out), out.len());
    })
}
