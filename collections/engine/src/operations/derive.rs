//! `derive` and `derive_many`: closures that look up records of other collections.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use crate::build::{CollectionCore, DataflowContext};
use crate::collection::{Collection, Index};
use crate::network::UpdateStream;
use crate::node::{NodeId, Provenance};
use crate::operators::lookup::{
    Context, Dep, DeriveFn, DeriveRule, DeriveStateRef, IndexDep, LookupTable, derive_logic,
};
use crate::operators::record::KeyOwners;
use crate::store::KeyedStoreRef;
use crate::value::{Erased, Key, TypeMarker, Value};

/// The dependencies of a `derive` closure: what it may look up. The set-up closure of `derive` fills it.
pub struct Deps<'s> {
    dataflow: Rc<DataflowContext>,
    tables: Vec<LookupTable>,
    inputs: Vec<UpdateStream>,
    parents: Vec<NodeId>,
    build_only: TypeMarker<&'s ()>,
}

impl<'s> Deps<'s> {
    /// Lets the closure look up keys of `collection`, or all its records.
    pub fn on<K: Key, V: Value>(&mut self, collection: &Collection<'s, K, V>) -> Dep<K, V> {
        let (store, updates) = collection.core.store();
        Dep::new(self.add(&collection.core, LookupTable::Collection(store), updates))
    }

    /// Lets the closure look up keys of `index`.
    pub fn by<I: Key, K: Key, R: Value>(&mut self, index: &Index<'s, I, K, R>) -> IndexDep<I, K, R> {
        let (groups, updates) = index.core.groups();
        IndexDep::new(self.add(&index.core, LookupTable::Index(groups), updates))
    }

    fn add(&mut self, core: &CollectionCore, table: LookupTable, updates: UpdateStream) -> u32 {
        self.tables.push(table);
        self.inputs.push(updates);
        self.parents.push(core.id);
        (self.tables.len() - 1) as u32
    }
}

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    /// At most one value per record, made by a closure that may look up other collections. Its look-ups are recorded,
    /// and it runs again for a record when the record or anything it looked up for that record changes.
    ///
    /// `setup` names the dependencies and returns the closure.
    pub fn derive<V2: Value, F>(&self, name: &str, setup: impl FnOnce(&mut Deps<'s>) -> F) -> Collection<'s, K, V2>
    where
        F: Fn(&Context, &K, &V) -> Option<V2> + 'static,
    {
        Collection::of(derived(&self.core, name, false, |deps| {
            let f = setup(deps);
            Box::new(move |cx, key, value, out| {
                out.extend(f(cx, key.get(), value.get()).map(|made| (key.clone(), Erased::new(made))));
            })
        }))
    }

    /// As [`Self::derive`], with values that the closure may share.
    pub(crate) fn derive_shared<V2: Value, F>(
        &self,
        name: &str,
        setup: impl FnOnce(&mut Deps<'s>) -> F,
    ) -> Collection<'s, K, V2>
    where
        F: Fn(&Context, &K, &Arc<V>) -> Option<V2> + 'static,
    {
        Collection::of(derived(&self.core, name, false, |deps| {
            let f = setup(deps);
            Box::new(move |cx, key, value, out| {
                out.extend(f(cx, key.get(), &value.arc()).map(|made| (key.clone(), Erased::new(made))));
            })
        }))
    }

    /// As [`Self::derive`], with any number of records for each record. For the new keys see [`Self::flat_map`].
    pub fn derive_many<K2: Key, V2: Value, F>(
        &self,
        name: &str,
        setup: impl FnOnce(&mut Deps<'s>) -> F,
    ) -> Collection<'s, K2, V2>
    where
        F: Fn(&Context, &K, &V) -> Vec<(K2, V2)> + 'static,
    {
        Collection::of(derived(&self.core, name, true, |deps| {
            let f = setup(deps);
            Box::new(move |cx, key, value, out| {
                let made = f(cx, key.get(), value.get()).into_iter();
                out.extend(made.map(|(key, value)| (Erased::new(key), Erased::new(value))));
            })
        }))
    }
}

/// Adds a node for `derive` or, with `renames`, `derive_many`. `setup` names the dependencies and makes the closure.
fn derived<'s>(
    primary: &CollectionCore,
    name: &str,
    renames: bool,
    setup: impl FnOnce(&mut Deps<'s>) -> DeriveFn,
) -> Rc<CollectionCore> {
    let (store, updates) = primary.store();
    let mut deps = Deps {
        dataflow: primary.dataflow.clone(),
        tables: Vec::new(),
        inputs: vec![updates],
        parents: vec![primary.id],
        build_only: PhantomData,
    };
    let derive = setup(&mut deps);
    add_derived(deps, store, name, renames, derive)
}

/// The part of [`derived`] that is compiled once.
fn add_derived(
    deps: Deps<'_>,
    primary: KeyedStoreRef,
    name: &str,
    renames: bool,
    derive: DeriveFn,
) -> Rc<CollectionCore> {
    let Deps { dataflow, tables, inputs, parents, .. } = deps;
    let state = dataflow.copied(DeriveStateRef::default());
    let owners = renames.then(|| dataflow.copied(KeyOwners::default()));
    let rule = Rc::new(DeriveRule::new(Context::new(tables), derive, primary));
    let provenance = Provenance::Derived { state: state.clone(), rule: rule.clone(), owners: owners.clone() };
    let kind = if renames { "derive_many" } else { "derive" };
    let (id, gauges) = dataflow.add_node(name, kind, parents, provenance);
    let logic = derive_logic(rule, state, gauges.clone(), owners);
    let stream = dataflow.add_operator(inputs, logic);
    dataflow.core(id, gauges, stream)
}
