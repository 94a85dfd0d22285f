//! Building the graph: dataflows, and the collections without parents.

use std::marker::PhantomData;
use std::rc::Rc;

use crate::build::{BuildState, CollectionCore, DataflowContext};
use crate::collection::Collection;
use crate::input::Input;
use crate::input_state::{InputState, WriteOp};
use crate::node::Provenance;
use crate::operations::derive::Deps;
use crate::operators::lookup::Context;
use crate::value::{Erased, Key, Value};

/// Builds the graph of an engine, on the dataflow thread.
pub struct GraphBuilder {
    pub(crate) build: Rc<BuildState>,
}

impl GraphBuilder {
    /// Adds a dataflow: a part of the graph with a name that listings show. Its collections are used inside `build`
    /// only.
    pub fn dataflow<R>(&mut self, name: &str, build: impl FnOnce(&DataflowBuilder<'_>) -> R) -> R {
        let mut dataflows = self.build.dataflows.borrow_mut();
        dataflows.push(name.to_owned());
        let number = dataflows.len() - 1;
        drop(dataflows);
        let dataflow = Rc::new(DataflowContext::new(number, self.build.clone()));
        build(&DataflowBuilder { dataflow, build_only: PhantomData })
    }
}

/// One dataflow while it is built: makes the collections that have no parents.
pub struct DataflowBuilder<'s> {
    dataflow: Rc<DataflowContext>,
    /// Collections cannot be used after the build, so the lifetime keeps them inside it.
    build_only: PhantomData<&'s ()>,
}

impl<'s> DataflowBuilder<'s> {
    /// A collection that is written from outside, and its writing end.
    pub fn input<K: Key, V: Value>(&self, name: &str) -> (Input<K, V>, Collection<'s, K, V>) {
        self.add_typed_input(name, false)
    }

    /// As [`Self::input`], with writes that go before those of other inputs: for changes that must not wait behind a
    /// long queue.
    pub fn priority_input<K: Key, V: Value>(&self, name: &str) -> (Input<K, V>, Collection<'s, K, V>) {
        self.add_typed_input(name, true)
    }

    fn add_typed_input<K: Key, V: Value>(&self, name: &str, priority: bool) -> (Input<K, V>, Collection<'s, K, V>) {
        let (number, core) = self.add_input(name, "input");
        let collection = Collection::of(core);
        (Input::new(number, collection.name(), priority, self.dataflow.build.queue.clone()), collection)
    }

    /// A collection that never changes. It is synced from the start.
    pub fn fixed<K: Key, V: Value>(&self, name: &str, rows: impl IntoIterator<Item = (K, V)>) -> Collection<'s, K, V> {
        let (number, core) = self.add_input(name, "fixed");
        self.write_initial(number, &core, rows, true);
        Collection::of(core)
    }

    /// An input that has records from the start, and is synced then or later. The first epoch has them.
    pub fn input_with<K: Key, V: Value>(
        &self,
        name: &str,
        rows: impl IntoIterator<Item = (K, V)>,
        is_synced: bool,
    ) -> (Input<K, V>, Collection<'s, K, V>) {
        let (number, core) = self.add_input(name, "input");
        self.write_initial(number, &core, rows, is_synced);
        let collection = Collection::of(core);
        (Input::new(number, collection.name(), false, self.dataflow.build.queue.clone()), collection)
    }

    fn write_initial<K: Key, V: Value>(
        &self,
        number: usize,
        core: &CollectionCore,
        rows: impl IntoIterator<Item = (K, V)>,
        is_synced: bool,
    ) {
        let mut inputs = self.dataflow.build.inputs.borrow_mut();
        let input = &mut inputs[number];
        for (key, value) in rows {
            input.write(WriteOp::Set(Erased::new(key), Erased::new(value), None), &core.gauges);
        }
        if is_synced {
            input.write(WriteOp::Synced, &core.gauges);
        }
    }

    /// At most one value, made by a closure from what it looks up. It has the key `()`.
    pub fn singleton<V: Value, F>(&self, name: &str, setup: impl FnOnce(&mut Deps<'s>) -> F) -> Collection<'s, (), V>
    where
        F: Fn(&Context) -> Option<V> + 'static,
    {
        self.fixed(&format!("{name}/start"), [((), ())]).derive(name, |deps| {
            let f = setup(deps);
            move |cx: &Context, (): &(), (): &()| f(cx)
        })
    }

    /// Any number of records, made by a closure from what it looks up. Each change of that runs the closure again, and the
    /// records that differ change.
    pub fn derive_all<K: Key, V: Value, F>(
        &self,
        name: &str,
        setup: impl FnOnce(&mut Deps<'s>) -> F,
    ) -> Collection<'s, K, V>
    where
        F: Fn(&Context) -> Vec<(K, V)> + 'static,
    {
        self.fixed(&format!("{name}/start"), [((), ())]).derive_many(name, |deps| {
            let f = setup(deps);
            move |cx: &Context, (): &(), (): &()| f(cx)
        })
    }

    /// Calls `build` with a builder that puts `PREFIX/` before the names of the collections made from it, and of those that
    /// derive from these: for a part of a graph that is made several times.
    pub fn with_prefix<R>(&self, prefix: &str, build: impl FnOnce(&Self) -> R) -> R {
        let dataflow = Rc::new(self.dataflow.with_prefix(prefix));
        build(&Self { dataflow, build_only: PhantomData })
    }

    fn add_input(&self, name: &str, kind: &'static str) -> (usize, Rc<CollectionCore>) {
        let dataflow = &self.dataflow;
        let mut inputs = dataflow.build.inputs.borrow_mut();
        let number = inputs.len();
        let (id, gauges) = dataflow.add_node(name, kind, Vec::new(), Provenance::Input(number));
        let (entry, stream) = dataflow.build.network.borrow_mut().add_input();
        inputs.push(InputState::new(id, entry));
        (number, dataflow.core(id, gauges, stream))
    }
}
