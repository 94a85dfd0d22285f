//! `derive`: closures that look things up while they run, and run again when something they looked up changes.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use crate::collection::Collection;
use crate::flow::{Core, FlowScope, NodeId};
use crate::index::Index;
use crate::metrics::Gauge;
use crate::rows::Rows;
use crate::spines::{Delta, Raw, Row, Time};
use crate::store::{GroupsRef, StoreRef, by_key};
use crate::transform::Owners;
use crate::value::{Dyn, Key, ReadyState, Types, Value};
use crate::why::Provenance;

/// Names what a `derive` closure may look up. Handed to its set-up closure.
pub struct Deps<'s> {
    flow: Rc<FlowScope<'s>>,
    tables: Vec<Table>,
    inputs: Vec<Raw<'s>>,
    parents: Vec<NodeId>,
}

/// A collection a `derive` closure may look into.
pub struct Dep<K, V> {
    at: u32,
    types: Types<(K, V)>,
}

/// An index a `derive` closure may look into.
pub struct DepBy<I, K, R> {
    at: u32,
    types: Types<(I, K, R)>,
}

impl<K, V> Clone for Dep<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V> Copy for Dep<K, V> {}

impl<I, K, R> Clone for DepBy<I, K, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<I, K, R> Copy for DepBy<I, K, R> {}

impl<'s> Deps<'s> {
    /// Lets the closure look up keys of `collection`, or all of it.
    pub fn on<K: Key, V: Value>(&mut self, collection: &Collection<'s, K, V>) -> Dep<K, V> {
        let (store, changes) = collection.core.store();
        Dep { at: self.add(&collection.core, Table::Store(store), changes), types: PhantomData }
    }

    /// Lets the closure look up keys of `index`.
    pub fn by<I: Key, K: Key, R: Value>(&mut self, index: &Index<'s, I, K, R>) -> DepBy<I, K, R> {
        let (groups, changes) = index.core.groups();
        DepBy { at: self.add(&index.core, Table::Groups(groups), changes), types: PhantomData }
    }

    fn add(&mut self, core: &Core<'s>, table: Table, changes: Raw<'s>) -> u32 {
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
    reads: RefCell<Vec<Read>>,
    discard: Cell<bool>,
}

impl Context {
    /// The value of `key`, if there is one.
    pub fn get<K: Key, V: Value>(&self, dep: &Dep<K, V>, key: &K) -> Option<Arc<V>> {
        let Table::Store(store) = self.table(dep.at) else { return None };
        let store = store.borrow();
        let key = Dyn::new(key.clone());
        let found = store.rows.get_key_value(&key);
        // The stored key shares its memory with all other readers.
        let value = found.map(|(_, value)| value.arc());
        let key = found.map(|(key, _)| key.clone()).unwrap_or(key);
        self.reads.borrow_mut().push(Read { dep: dep.at, key: Some(key) });
        value
    }

    /// The rows of `key`, sorted by source key.
    pub fn by<I: Key, K: Key, R: Value>(&self, dep: &DepBy<I, K, R>, key: &I) -> Vec<(K, Arc<R>)> {
        let Table::Groups(groups) = self.table(dep.at) else { return Vec::new() };
        let groups = groups.borrow();
        let key = Dyn::new(key.clone());
        let found = groups.rows.get_key_value(&key);
        let rows = found
            .map(|(_, group)| group.iter().map(|(key, row)| (key.get::<K>().clone(), row.arc())).collect())
            .unwrap_or_default();
        let key = found.map(|(key, _)| key.clone()).unwrap_or(key);
        self.reads.borrow_mut().push(Read { dep: dep.at, key: Some(key) });
        rows
    }

    /// Everything in the collection, sorted by key. Any change of it runs the closure again for *every* record that
    /// called this: only for small collections.
    pub fn all<K: Key, V: Value>(&self, dep: &Dep<K, V>) -> Vec<(K, Arc<V>)> {
        let Table::Store(store) = self.table(dep.at) else { return Vec::new() };
        self.reads.borrow_mut().push(Read { dep: dep.at, key: None });
        let store = store.borrow();
        let mut rows: Vec<_> =
            store.rows.iter().map(|(key, value)| (key.get::<K>().clone(), value.arc::<V>())).collect();
        rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        rows
    }

    /// Keeps the last output of this record whatever the closure returns. Without a last output the return value counts.
    pub fn discard(&self) {
        self.discard.set(true);
    }

    fn table(&self, at: u32) -> &Table {
        &self.tables[at as usize]
    }
}

/// A look-up that was made: a key of a dependency, or all of it.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) struct Read {
    pub(crate) dep: u32,
    pub(crate) key: Option<Dyn>,
}

impl Hash for Read {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let key = self.key.as_ref().map_or(0, Dyn::hash64);
        state.write_u64(key ^ u64::from(self.dep).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// What a record's last run read and put out.
#[derive(Clone, Default)]
pub(crate) struct Entry {
    pub(crate) reads: Box<[Read]>,
    pub(crate) out: Box<[Row]>,
    /// Whether a run has succeeded: only then is there a last output to keep.
    settled: bool,
}

/// Who made a look-up.
enum Readers {
    One(Dyn),
    Many(HashSet<Dyn, ReadyState>),
}

/// The memory of a `derive` operator.
#[derive(Default)]
pub(crate) struct Derived {
    pub(crate) entries: Rows<Entry>,
    readers: HashMap<Read, Readers, ReadyState>,
}

pub(crate) type DerivedRef = Rc<RefCell<Derived>>;
/// The user's closure, erased.
pub(crate) type Deriver = Box<dyn Fn(&Context, &Dyn, &Dyn, &mut Vec<Row>)>;

/// How a record's closure is run.
struct Task {
    cx: Context,
    gauge: Arc<Gauge>,
    deriver: Deriver,
    rows: Vec<Row>,
}

impl Derived {
    fn add_readers(&mut self, key: &Dyn, reads: &[Read]) {
        for read in reads {
            match self.readers.get_mut(read) {
                None => drop(self.readers.insert(read.clone(), Readers::One(key.clone()))),
                Some(Readers::Many(keys)) => drop(keys.insert(key.clone())),
                Some(one) => {
                    let Readers::One(first) = &*one else { continue };
                    let keys = [first.clone(), key.clone()].into_iter().collect();
                    *one = Readers::Many(keys);
                }
            }
        }
    }

    fn remove_readers(&mut self, key: &Dyn, reads: &[Read]) {
        for read in reads {
            let empty = match self.readers.get_mut(read) {
                None => false,
                Some(Readers::One(reader)) => reader == key,
                Some(Readers::Many(keys)) => keys.remove(key) && keys.is_empty(),
            };
            if empty {
                self.readers.remove(read);
            }
        }
    }

    fn collect_readers(&self, read: &Read, dirty: &mut Vec<Dyn>) {
        match self.readers.get(read) {
            None => {}
            Some(Readers::One(key)) => dirty.push(key.clone()),
            #[expect(clippy::iter_over_hash_type, reason = "the dirty keys are sorted before use")]
            Some(Readers::Many(keys)) => {
                for key in keys {
                    dirty.push(key.clone());
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
                self.collect_readers(&Read { dep, key: Some(changes[0].0.0.clone()) }, &mut dirty);
            }
            if !changes.is_empty() {
                self.collect_readers(&Read { dep, key: None }, &mut dirty);
            }
        }
        dirty.sort_unstable();
        dirty.dedup();
        dirty
    }

    fn forget(&mut self, key: &Dyn, time: Time, out: &mut Vec<Delta>) {
        if let Some(entry) = self.entries.remove(key) {
            self.remove_readers(key, &entry.reads);
            out.extend(entry.out.into_iter().map(|row| (row, time, -1)));
        }
    }

    fn run(&mut self, task: &mut Task, key: &Dyn, value: &Dyn, time: Time, out: &mut Vec<Delta>) {
        let Task { cx, gauge, deriver, rows } = task;
        cx.discard.set(false);
        cx.reads.borrow_mut().clear();
        let done = gauge.contain(key, || deriver(cx, key, value, rows)).is_some();
        let mut entry = self.entries.get_mut(key).map(std::mem::take).unwrap_or_default();
        {
            // Also after a panic: what it read up to then decides whether it would panic again.
            let reads = &mut *cx.reads.borrow_mut();
            reads.sort_unstable();
            reads.dedup();
            if reads[..] != entry.reads[..] {
                self.remove_readers(key, &entry.reads);
                self.add_readers(key, reads);
                entry.reads = reads.as_slice().into();
            }
        }
        if done && !(cx.discard.get() && entry.settled) {
            entry.settled |= !(rows.is_empty() && cx.discard.get());
            rows.sort_unstable();
            rows.dedup();
            if rows[..] != entry.out[..] {
                out.extend(entry.out.iter().map(|row| (row.clone(), time, -1)));
                out.extend(rows.iter().map(|row| (row.clone(), time, 1)));
                entry.out = rows.as_slice().into();
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
    primary: &Core<'s>,
    name: &str,
    renames: bool,
    setup: impl FnOnce(&mut Deps<'s>) -> Deriver,
) -> Rc<Core<'s>> {
    let (store, changes) = primary.store();
    let flow = primary.flow.clone();
    let mut deps = Deps { flow: flow.clone(), tables: Vec::new(), inputs: vec![changes], parents: vec![primary.id] };
    let deriver = setup(&mut deps);
    build(deps, store, name, renames, deriver)
}

fn build<'s>(deps: Deps<'s>, primary: StoreRef, name: &str, renames: bool, deriver: Deriver) -> Rc<Core<'s>> {
    let Deps { flow, tables, inputs, parents } = deps;
    let derived = DerivedRef::default();
    let owners = renames.then(Owners::default);
    let kind = if renames { "derive_many" } else { "derive" };
    let provenance = Provenance::Derived { derived: derived.clone(), owners: owners.clone() };
    let (id, gauge) = flow.node(name, kind, parents, provenance);
    let cx = Context { tables, reads: RefCell::default(), discard: Cell::new(false) };
    let mut task = Task { cx, gauge: gauge.clone(), deriver, rows: Vec::new() };
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
                    Some(value) => derived.run(&mut task, key, value, time, out),
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
        meter.made(out.iter().map(|(_, _, diff)| diff).sum(), out.len());
    };
    let raw = flow.epochwise(&gauge.name, inputs, Box::new(logic));
    flow.core(id, gauge, raw)
}
