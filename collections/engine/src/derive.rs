//! `derive`: closures that look things up while they run, and run again when something they looked up changes.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use crate::collection::Collection;
use crate::flow::{Core, Flow, NodeId};
use crate::index::Index;
use crate::metrics::Gauge;
use crate::network::Stream;
use crate::rows::Rows;
use crate::spines::{Delta, Row, Time, size_change};
use crate::store::{GroupsRef, StoreRef, by_key};
use crate::transform::Owners;
use crate::value::{Dyn, Key, ReadyState, Types, Value};
use crate::why::Provenance;

/// Names what a `derive` closure may look up. Handed to its set-up closure.
pub struct Deps<'s> {
    flow: Rc<Flow>,
    tables: Vec<Table>,
    inputs: Vec<Stream>,
    parents: Vec<NodeId>,
    build_only: Types<&'s ()>,
}

/// A collection a `derive` closure may look into.
pub struct Dep<K, V> {
    at: u32,
    types: Types<(K, V)>,
}

/// An index a `derive` closure may look into.
pub struct IndexDep<I, K, R> {
    at: u32,
    types: Types<(I, K, R)>,
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

impl<'s> Deps<'s> {
    /// Lets the closure look up keys of `collection`, or all of it.
    pub fn on<K: Key, V: Value>(&mut self, collection: &Collection<'s, K, V>) -> Dep<K, V> {
        let (store, changes) = collection.core.store();
        Dep { at: self.add(&collection.core, Table::Store(store), changes), types: PhantomData }
    }

    /// Lets the closure look up keys of `index`.
    pub fn by<I: Key, K: Key, R: Value>(&mut self, index: &Index<'s, I, K, R>) -> IndexDep<I, K, R> {
        let (groups, changes) = index.core.groups();
        IndexDep { at: self.add(&index.core, Table::Groups(groups), changes), types: PhantomData }
    }

    fn add(&mut self, core: &Core, table: Table, changes: Stream) -> u32 {
        self.tables.push(table);
        self.inputs.push(changes);
        self.parents.push(core.id);
        (self.tables.len() - 1) as u32
    }
}

enum Table {
    Store(StoreRef),
    Groups(GroupsRef),
}

/// What a `derive` closure looks things up with. Every look-up is recorded, found or not.
pub struct Context {
    tables: Vec<Table>,
    reads: RefCell<Vec<ReadHash>>,
    /// The keys behind the hashes, while somebody wants to know why.
    trail: RefCell<Option<Vec<Read>>>,
    discard: Cell<bool>,
}

impl Context {
    /// The value of `key`, if there is one.
    pub fn get<K: Key, V: Value>(&self, dep: &Dep<K, V>, key: &K) -> Option<Arc<V>> {
        let Table::Store(store) = self.table(dep.at) else { return None };
        let key = Dyn::new(key.clone());
        let value = store.borrow().rows.get(&key).map(Dyn::arc);
        self.record(dep.at, Some(key));
        value
    }

    /// The rows of `key`, sorted by source key.
    pub fn by<I: Key, K: Key, R: Value>(&self, dep: &IndexDep<I, K, R>, key: &I) -> Vec<(K, Arc<R>)> {
        let Table::Groups(groups) = self.table(dep.at) else { return Vec::new() };
        let groups = groups.borrow();
        let key = Dyn::new(key.clone());
        let rows = groups
            .rows
            .get(&key)
            .map(|group| group.iter().map(|(key, row)| (key.get::<K>().clone(), row.arc())).collect())
            .unwrap_or_default();
        self.record(dep.at, Some(key));
        rows
    }

    /// Everything in the collection, sorted by key. Any change of it runs the closure again for *every* record that
    /// called this: only for small collections.
    pub fn all<K: Key, V: Value>(&self, dep: &Dep<K, V>) -> Vec<(K, Arc<V>)> {
        let Table::Store(store) = self.table(dep.at) else { return Vec::new() };
        self.record(dep.at, None);
        let store = store.borrow();
        let mut rows: Vec<_> =
            store.rows.iter().map(|(key, value)| (key.get::<K>().clone(), value.arc::<V>())).collect();
        rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        rows
    }

    /// Keeps the last output of this record whatever the closure returns. Without a last output the return value counts.
    pub fn discard_result(&self) {
        self.discard.set(true);
    }

    fn record(&self, dep: u32, key: Option<Dyn>) {
        self.reads.borrow_mut().push(read_hash(dep, key.as_ref()));
        if let Some(trail) = &mut *self.trail.borrow_mut() {
            trail.push(Read { dep, key });
        }
    }

    fn table(&self, at: u32) -> &Table {
        &self.tables[at as usize]
    }
}

/// A look-up that was made: a key of a dependency, or all of it.
pub(crate) struct Read {
    pub(crate) dep: u32,
    pub(crate) key: Option<Dyn>,
}

/// What is remembered of a look-up. Should two have the same hash, a record runs once too often, and nothing comes of it.
type ReadHash = u64;

fn read_hash(dep: u32, key: Option<&Dyn>) -> ReadHash {
    // An odd multiplier for each dependency keeps apart the same key in several, and all of one from its keys.
    let key = key.map_or(0x5851_f42d_4c95_7f2d, Dyn::hash64);
    (key ^ u64::from(dep)).wrapping_mul(u64::from(dep).wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// What a record put out. There are many of these, and most have one row of their record's own key.
#[derive(Clone)]
enum Output {
    Nothing,
    SameKey(Dyn),
    Rows(Box<[Row]>),
}

impl Output {
    /// Takes sorted rows.
    fn of(key: &Dyn, rows: &[Row]) -> Self {
        match rows {
            [] => Self::Nothing,
            [(made, value)] if made == key => Self::SameKey(value.clone()),
            rows => Self::Rows(rows.into()),
        }
    }

    fn is(&self, key: &Dyn, rows: &[Row]) -> bool {
        match (self, rows) {
            (Self::Nothing, []) => true,
            (Self::SameKey(known), [(made, value)]) => made == key && value == known,
            (Self::Rows(known), rows) => **known == *rows,
            _ => false,
        }
    }

    fn each(&self, key: &Dyn, mut take: impl FnMut(Row)) {
        match self {
            Self::Nothing => {}
            Self::SameKey(value) => take((key.clone(), value.clone())),
            Self::Rows(rows) => rows.iter().cloned().for_each(take),
        }
    }
}

/// What a record's last run read and put out.
#[derive(Clone, Default)]
pub(crate) struct Entry {
    /// Sorted.
    reads: Box<[ReadHash]>,
    /// None until a run has succeeded: only then is there a last output to keep.
    out: Option<Output>,
}

impl Entry {
    /// The rows the record with this key put out.
    pub(crate) fn made(&self, key: &Dyn, take: impl FnMut(Row)) {
        if let Some(out) = &self.out {
            out.each(key, take);
        }
    }
}

/// Hashes of the records that made a look-up.
enum Readers {
    One(u64),
    #[expect(clippy::box_collection, reason = "most look-ups have one reader, and there are many")]
    Many(Box<HashSet<u64, ReadyState>>),
}

/// The memory of a `derive` operator.
#[derive(Default)]
pub(crate) struct Derived {
    pub(crate) entries: Rows<Entry>,
    readers: HashMap<ReadHash, Readers, ReadyState>,
}

pub(crate) type DerivedRef = Rc<RefCell<Derived>>;
/// The user's closure, erased.
pub(crate) type Deriver = Box<dyn Fn(&Context, &Dyn, &Dyn, &mut Vec<Row>)>;

/// How a record's closure is run: shared between the dataflow and whoever asks why.
pub(crate) struct Rule {
    cx: Context,
    deriver: Deriver,
    primary: StoreRef,
}

impl Rule {
    fn run(&self, gauge: &Gauge, (key, value): (&Dyn, &Dyn), rows: &mut Vec<Row>) -> Option<()> {
        self.cx.discard.set(false);
        self.cx.reads.borrow_mut().clear();
        gauge.contain(key, || (self.deriver)(&self.cx, key, value, rows))
    }

    /// What a record reads: by running its closure once more, as only hashes are kept.
    pub(crate) fn reads(&self, gauge: &Gauge, key: &Dyn) -> Vec<Read> {
        let primary = self.primary.borrow();
        let Some(value) = primary.rows.get(key) else { return Vec::new() };
        *self.cx.trail.borrow_mut() = Some(Vec::new());
        // A panic is known already, and what was read up to it is the answer.
        self.run(gauge, (key, value), &mut Vec::new()).unwrap_or_default();
        self.cx.trail.take().unwrap_or_default()
    }
}

/// A rule at work.
struct Run {
    rule: Rc<Rule>,
    gauge: Arc<Gauge>,
    rows: Vec<Row>,
}

impl Derived {
    fn add_readers(&mut self, key: &Dyn, reads: &[ReadHash]) {
        let key = key.hash64();
        for read in reads {
            match self.readers.get_mut(read) {
                None => drop(self.readers.insert(*read, Readers::One(key))),
                Some(Readers::Many(keys)) => drop(keys.insert(key)),
                Some(one) => {
                    let Readers::One(first) = *one else { continue };
                    *one = Readers::Many(Box::new([first, key].into_iter().collect()));
                }
            }
        }
    }

    /// Should another record have the hash of this one, its look-ups may be among these: then they stay.
    fn remove_readers(&mut self, key: &Dyn, reads: &[ReadHash]) {
        let hash = key.hash64();
        if self.entries.keys_of(hash).any(|other| other != key) {
            return;
        }
        for read in reads {
            let empty = match self.readers.get_mut(read) {
                None => false,
                Some(Readers::One(reader)) => *reader == hash,
                Some(Readers::Many(keys)) => keys.remove(&hash) && keys.is_empty(),
            };
            if empty {
                self.readers.remove(read);
            }
        }
    }

    fn collect_readers(&self, read: ReadHash, dirty: &mut Vec<Dyn>) {
        let mut collect = |hash| dirty.extend(self.entries.keys_of(hash).cloned());
        match self.readers.get(&read) {
            None => {}
            Some(Readers::One(key)) => collect(*key),
            #[expect(clippy::iter_over_hash_type, reason = "the dirty keys are sorted before use")]
            Some(Readers::Many(keys)) => {
                for key in keys.iter() {
                    collect(*key);
                }
            }
        }
    }

    /// Records that must run again, sorted.
    fn dirty(&self, deltas: &[Vec<Delta>]) -> Vec<Dyn> {
        let mut dirty: Vec<Dyn> = by_key(&deltas[0]).map(|changes| changes[0].0.0.clone()).collect();
        for (dep, changes) in deltas[1..].iter().enumerate() {
            let dep = dep as u32;
            for changes in by_key(changes) {
                self.collect_readers(read_hash(dep, Some(&changes[0].0.0)), &mut dirty);
            }
            if !changes.is_empty() {
                self.collect_readers(read_hash(dep, None), &mut dirty);
            }
        }
        dirty.sort_unstable();
        dirty.dedup();
        dirty
    }

    fn forget(&mut self, key: &Dyn, time: Time, out: &mut Vec<Delta>) {
        if let Some(entry) = self.entries.remove(key) {
            self.remove_readers(key, &entry.reads);
            entry.made(key, |row| out.push((row, time, -1)));
        }
    }

    fn run(&mut self, run: &mut Run, record: (&Dyn, &Dyn), time: Time, out: &mut Vec<Delta>) {
        let Run { rule, gauge, rows } = run;
        let (key, _) = record;
        let done = rule.run(gauge, record, rows).is_some();
        let mut entry = self.entries.get_mut(key).map(std::mem::take).unwrap_or_default();
        {
            // Also after a panic: what it read up to then decides whether it would panic again.
            let reads = &mut *rule.cx.reads.borrow_mut();
            reads.sort_unstable();
            reads.dedup();
            if reads[..] != entry.reads[..] {
                self.remove_readers(key, &entry.reads);
                self.add_readers(key, reads);
                entry.reads = reads.as_slice().into();
            }
        }
        let discard = rule.cx.discard.get();
        if done && !(discard && (entry.out.is_some() || rows.is_empty())) {
            rows.sort_unstable();
            rows.dedup();
            if !entry.out.as_ref().is_some_and(|known| known.is(key, rows)) {
                entry.made(key, |row| out.push((row, time, -1)));
                out.extend(rows.iter().map(|row| (row.clone(), time, 1)));
                entry.out = Some(Output::of(key, rows));
            }
        }
        rows.clear();
        match self.entries.get_mut(key) {
            Some(known) => *known = entry,
            None => drop(self.entries.insert(key.clone(), entry)),
        }
    }
}

/// Builds the operator behind `derive` and `derive_many`. `setup` makes the closure once the dependencies are named.
pub(crate) fn derive<'s>(
    primary: &Core,
    name: &str,
    renames: bool,
    setup: impl FnOnce(&mut Deps<'s>) -> Deriver,
) -> Rc<Core> {
    let (store, changes) = primary.store();
    let flow = primary.flow.clone();
    let mut deps = Deps {
        flow: flow.clone(),
        tables: Vec::new(),
        inputs: vec![changes],
        parents: vec![primary.id],
        build_only: PhantomData,
    };
    let deriver = setup(&mut deps);
    build(deps, store, name, renames, deriver)
}

fn build(deps: Deps<'_>, primary: StoreRef, name: &str, renames: bool, deriver: Deriver) -> Rc<Core> {
    let Deps { flow, tables, inputs, parents, .. } = deps;
    let derived = DerivedRef::default();
    let owners = renames.then(Owners::default);
    let kind = if renames { "derive_many" } else { "derive" };
    let cx = Context { tables, reads: RefCell::default(), trail: RefCell::default(), discard: Cell::new(false) };
    let rule = Rc::new(Rule { cx, deriver, primary: primary.clone() });
    let provenance = Provenance::Derived { derived: derived.clone(), rule: rule.clone(), owners: owners.clone() };
    let (id, gauge) = flow.node(name, kind, parents, provenance);
    let mut run = Run { rule, gauge: gauge.clone(), rows: Vec::new() };
    let meter = gauge.clone();
    let mut counted = 0;
    let logic = move |time: Time, deltas: &mut [Vec<Delta>], out: &mut Vec<Delta>| {
        let mut derived = derived.borrow_mut();
        let dirty = derived.dirty(deltas);
        meter.timed(dirty.len(), || {
            let primary = primary.borrow();
            for key in &dirty {
                let start = out.len();
                match primary.rows.get(key) {
                    Some(value) => derived.run(&mut run, (key, value), time, out),
                    None => derived.forget(key, time, out),
                }
                if let Some(owners) = &owners {
                    crate::transform::own(&mut owners.borrow_mut(), key, &out[start..]);
                }
            }
        });
        let owned = owners.as_ref().map_or(0, |owners| owners.borrow().len());
        meter.count_stored(&mut counted, derived.entries.len() + derived.readers.len() + owned);
        differential_dataflow::consolidation::consolidate_updates(out);
        meter.made(size_change(out), out.len());
    };
    let stream = flow.operator(inputs, Box::new(logic));
    flow.core(id, gauge, stream)
}
