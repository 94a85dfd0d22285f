//! Building the graph: dataflows and the collections that have no parent.

use std::rc::Rc;

use differential_dataflow::input::InputSession;
use timely::communication::allocator::{Allocator, thread::Thread};
use timely::worker::{Config, Worker};

use crate::collection::{Collection, Export};
use crate::flow::{Build, Flow, FlowScope};
use crate::input::{Input, Op, Source};
use crate::spines::Time;
use crate::value::{Dyn, Key, Value};
use crate::why::Provenance;

/// Builds the dataflows of an engine, on its thread.
pub struct Builder {
    pub(crate) worker: Worker,
    pub(crate) build: Rc<Build>,
}

impl Builder {
    pub(crate) fn new(build: Rc<Build>) -> Self {
        // One worker and no timer: idle means blocked on the command queue.
        let worker = Worker::new(Config::default(), Allocator::Thread(Thread::default()), None);
        Self { worker, build }
    }

    /// Adds a dataflow. Within a commit dataflows run in the order they were added, and only those whose inputs
    /// changed: put what changes often into a small one of its own.
    pub fn dataflow<R>(&mut self, name: &str, build: impl FnOnce(&Graph<'_>) -> R) -> R {
        let mut result = None;
        self.dataflow_erased(name, Box::new(|graph| result = Some(build(graph))));
        match result {
            Some(result) => result,
            None => unreachable!("timely runs the closure it is given"),
        }
    }

    fn dataflow_erased(&mut self, name: &str, build: Box<dyn FnOnce(&Graph<'_>) + '_>) {
        let flow = self.build.flows.borrow().len();
        self.build.flows.borrow_mut().push(Flow {
            name: name.to_owned(),
            probe: timely::dataflow::operators::probe::Handle::new(),
            sources: Vec::new(),
            imports: Vec::new(),
            traces: Vec::new(),
        });
        let shared = self.build.clone();
        let probe = self.worker.dataflow_named::<Time, _, _>(name, |scope| {
            let graph = Graph { flow: Rc::new(FlowScope::new(scope, flow, shared)) };
            build(&graph);
            graph.flow.probe()
        });
        self.build.flows.borrow_mut()[flow].probe = probe;
    }
}

/// One dataflow while it is built: makes the collections that have no parent in it.
pub struct Graph<'s> {
    flow: Rc<FlowScope<'s>>,
}

impl<'s> Graph<'s> {
    /// A collection written from outside, and its writing end.
    pub fn input<K: Key, V: Value>(&self, name: &str) -> (Input<K, V>, Collection<'s, K, V>) {
        self.source(name, false)
    }

    /// As [`Self::input`], for changes that must not wait behind a long queue of others: its writes go first.
    pub fn hot_input<K: Key, V: Value>(&self, name: &str) -> (Input<K, V>, Collection<'s, K, V>) {
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

    fn add_source(&self, name: &str, kind: &'static str) -> (usize, Rc<crate::flow::Core<'s>>) {
        let flow = &self.flow;
        let mut sources = flow.build.sources.borrow_mut();
        let source = sources.len();
        let (id, gauge) = flow.node(name, kind, Vec::new(), Provenance::Source(source));
        let mut session = InputSession::new();
        let raw = session.to_collection(flow.scope);
        sources.push(Source::new(id, flow.flow, session));
        flow.build.flows.borrow_mut()[flow.flow].sources.push(source);
        (source, flow.core(id, gauge, raw))
    }

    /// A collection of an earlier dataflow, with its changes in the epoch that made them.
    ///
    /// # Panics
    /// When the export is not from an earlier dataflow: its changes would come too late.
    pub fn import<K: Key, V: Value>(&self, export: &Export<K, V>) -> Collection<'s, K, V> {
        let flow = &self.flow;
        let name = flow.build.nodes.borrow()[export.node].name.clone();
        let (id, gauge) = flow.node(&name, "import", vec![export.node], Provenance::SameKey);
        let mut session = InputSession::new();
        let raw = session.to_collection(flow.scope);
        let mut flows = flow.build.flows.borrow_mut();
        let imports = &mut flows[flow.flow].imports;
        imports.push(session);
        let exports = flow.build.exports.borrow();
        assert!(exports[export.slot].flow < flow.flow, "{name} is not from an earlier dataflow");
        exports[export.slot].importers.borrow_mut().push((flow.flow, imports.len() - 1, gauge.clone()));
        drop(flows);
        Collection::of(flow.core(id, gauge, raw))
    }
}
