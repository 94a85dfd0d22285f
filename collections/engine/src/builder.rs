//! Building the graph: dataflows and the collections that have no parent.

use std::marker::PhantomData;
use std::rc::Rc;

use crate::collection::{Collection, Export};
use crate::flow::{Build, Core, Flow};
use crate::input::{Input, Op, Source};
use crate::spines::{Delta, size_change};
use crate::value::{Dyn, Key, Value};
use crate::why::Provenance;

/// Builds the dataflows of an engine, on its thread.
pub struct GraphBuilder {
    pub(crate) build: Rc<Build>,
}

impl GraphBuilder {
    /// Adds a dataflow: a part of the graph, with a name that listings show.
    pub fn dataflow<R>(&mut self, name: &str, build: impl FnOnce(&DataflowBuilder<'_>) -> R) -> R {
        let mut flows = self.build.flows.borrow_mut();
        flows.push(name.to_owned());
        let number = flows.len() - 1;
        drop(flows);
        build(&DataflowBuilder { flow: Rc::new(Flow { number, build: self.build.clone() }), build_only: PhantomData })
    }
}

/// One dataflow while it is built: makes the collections that have no parent in it.
pub struct DataflowBuilder<'s> {
    flow: Rc<Flow>,
    /// Collections are of no use once the graph is built, so none can be kept.
    build_only: PhantomData<&'s ()>,
}

impl<'s> DataflowBuilder<'s> {
    /// A collection written from outside, and its writing end.
    pub fn input<K: Key, V: Value>(&self, name: &str) -> (Input<K, V>, Collection<'s, K, V>) {
        self.source(name, false)
    }

    /// As [`Self::input`], for changes that must not wait behind a long queue of others: its writes go first.
    pub fn priority_input<K: Key, V: Value>(&self, name: &str) -> (Input<K, V>, Collection<'s, K, V>) {
        self.source(name, true)
    }

    fn source<K: Key, V: Value>(&self, name: &str, hot: bool) -> (Input<K, V>, Collection<'s, K, V>) {
        let (source, collection) = self.add_source(name, "input");
        let collection = Collection::of(collection);
        (Input::new(source, collection.name(), hot, self.flow.build.queue.clone()), collection)
    }

    /// A collection that never changes. It is synced from the start.
    pub fn fixed<K: Key, V: Value>(&self, name: &str, rows: impl IntoIterator<Item = (K, V)>) -> Collection<'s, K, V> {
        let (source, core) = self.add_source(name, "fixed");
        let mut sources = self.flow.build.sources.borrow_mut();
        for (key, value) in rows {
            sources[source].write(Op::Set(Dyn::new(key), Dyn::new(value), None));
        }
        sources[source].write(Op::Synced);
        Collection::of(core)
    }

    fn add_source(&self, name: &str, kind: &'static str) -> (usize, Rc<Core>) {
        let flow = &self.flow;
        let mut sources = flow.build.sources.borrow_mut();
        let source = sources.len();
        let (id, gauge) = flow.node(name, kind, Vec::new(), Provenance::Source(source));
        let (inlet, stream) = flow.build.network.borrow_mut().add_inlet();
        sources.push(Source::new(id, inlet));
        (source, flow.core(id, gauge, stream))
    }

    /// A collection of an earlier dataflow, with its changes in the epoch that made them.
    pub fn import<K: Key, V: Value>(&self, export: &Export<K, V>) -> Collection<'s, K, V> {
        let exported = &export.core;
        let (id, gauge) = self.flow.node(exported.name(), "import", vec![exported.id], Provenance::SameKey);
        let meter = gauge.clone();
        let logic = move |_, deltas: &mut [Vec<Delta>], out: &mut Vec<Delta>| {
            meter.took_in(deltas[0].len());
            meter.made(size_change(&deltas[0]), deltas[0].len());
            out.append(&mut deltas[0]);
        };
        let stream = self.flow.operator(vec![exported.stream()], Box::new(logic));
        Collection::of(self.flow.core(id, gauge, stream))
    }
}
