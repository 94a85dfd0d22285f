//! What the build knows: nodes, their edges, and the dataflow a collection lives in.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::Scope;

use crate::engine::EngineOptions;
use crate::input::Source;
use crate::metrics::{Gauge, PanicLog};
use crate::operator::{EpochLogic, epochwise};
use crate::output::Slot;
use crate::spines::{self, Arr, Delta, Raw, Row, Time, Trace, TraceCursor};
use crate::store::{GroupsRef, StoreRef, keep_groups, keep_store};
use crate::transform::{Expand, Transform};
use crate::value::Dyn;
use crate::why::Provenance;
use crate::worker::Queue;

/// Number of a collection or index, in the order of building: parents before children.
pub(crate) type NodeId = usize;

/// A collection or index as the engine lists it.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) flow: usize,
    pub(crate) parents: Vec<NodeId>,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) published: Option<usize>,
    pub(crate) provenance: Provenance,
    pub(crate) store: Option<StoreRef>,
    pub(crate) groups: Option<GroupsRef>,
    pub(crate) trace: Option<Rc<RefCell<Trace>>>,
    /// The rows a grouping operator groups.
    pub(crate) grouped: Option<Rc<RefCell<Trace>>>,
    /// How a record-by-record operator makes its output, and from what.
    pub(crate) transform: Option<(Rc<Transform>, Feedstock)>,
}

impl Node {
    /// Reads its arrangement, if it has one.
    pub(crate) fn cursor(&self) -> Option<TraceCursor> {
        TraceCursor::new(&mut self.trace.as_ref()?.borrow_mut())
    }
}

/// What a record-by-record operator works on.
#[derive(Clone)]
pub(crate) enum Feedstock {
    /// The records of its only parent.
    Parent,
    /// Pairs of the two parents' arrangements.
    Pairs(fn(&Dyn, &Dyn, &Dyn) -> Row),
}

/// Changes on their way from one dataflow to later ones.
pub(crate) struct ExportSlot {
    pub(crate) flow: usize,
    pub(crate) buffer: Rc<RefCell<Vec<Delta>>>,
    /// (dataflow, import within it, its gauge)
    pub(crate) importers: RefCell<Vec<(usize, usize, Arc<Gauge>)>>,
}

/// A dataflow while it runs.
pub(crate) struct Flow {
    pub(crate) name: String,
    pub(crate) probe: timely::dataflow::operators::probe::Handle<Time>,
    pub(crate) sources: Vec<usize>,
    pub(crate) imports: Vec<differential_dataflow::input::InputSession<Time, Row, isize>>,
    pub(crate) traces: Vec<(Arc<Gauge>, Rc<RefCell<Trace>>)>,
}

/// Takes the changes of an epoch out of the dataflow.
pub(crate) type Take = Box<dyn FnMut(&mut Vec<Delta>)>;

/// Everything the build collects for the worker.
pub(crate) struct Build {
    pub(crate) options: EngineOptions,
    pub(crate) queue: Queue,
    pub(crate) panic_log: Arc<PanicLog>,
    pub(crate) nodes: RefCell<Vec<Node>>,
    names: RefCell<BTreeSet<String>>,
    pub(crate) sources: RefCell<Vec<Source>>,
    pub(crate) exports: RefCell<Vec<ExportSlot>>,
    pub(crate) slots: RefCell<Vec<Slot>>,
    pub(crate) flows: RefCell<Vec<Flow>>,
}

impl Build {
    pub(crate) fn new(options: EngineOptions, queue: Queue, panic_log: Arc<PanicLog>) -> Self {
        Self {
            options,
            queue,
            panic_log,
            nodes: RefCell::default(),
            names: RefCell::default(),
            sources: RefCell::default(),
            exports: RefCell::default(),
            slots: RefCell::default(),
            flows: RefCell::default(),
        }
    }
}

/// One dataflow while it is being built.
pub(crate) struct FlowScope<'s> {
    pub(crate) scope: Scope<'s, Time>,
    pub(crate) flow: usize,
    pub(crate) build: Rc<Build>,
    /// Streams nobody reads: the probe has to watch them.
    tails: RefCell<BTreeMap<usize, Raw<'s>>>,
    next_tail: Cell<usize>,
}

impl<'s> FlowScope<'s> {
    pub(crate) fn new(scope: Scope<'s, Time>, flow: usize, build: Rc<Build>) -> Self {
        Self { scope, flow, build, tails: RefCell::default(), next_tail: Cell::new(0) }
    }

    /// Lists a node. Names are unique: a second `x` is called `x#2`.
    pub(crate) fn node(
        &self,
        name: &str,
        kind: &'static str,
        parents: Vec<NodeId>,
        provenance: Provenance,
    ) -> (NodeId, Arc<Gauge>) {
        let mut names = self.build.names.borrow_mut();
        let mut unique = name.to_owned();
        let mut copy = 1;
        while !names.insert(unique.clone()) {
            copy += 1;
            unique = format!("{name}#{copy}");
        }
        let gauge =
            Arc::new(Gauge::new(unique.clone(), self.build.options.clock.clone(), self.build.panic_log.clone()));
        let mut nodes = self.build.nodes.borrow_mut();
        nodes.push(Node {
            name: unique,
            kind,
            flow: self.flow,
            parents,
            gauge: gauge.clone(),
            metadata: BTreeMap::new(),
            published: None,
            provenance,
            store: None,
            groups: None,
            trace: None,
            grouped: None,
            transform: None,
        });
        (nodes.len() - 1, gauge)
    }

    /// Wraps a node's stream.
    pub(crate) fn core(self: &Rc<Self>, id: NodeId, gauge: Arc<Gauge>, raw: Raw<'s>) -> Rc<Core<'s>> {
        Rc::new(Core {
            id,
            tail: self.tail(raw.clone()),
            raw,
            gauge,
            flow: self.clone(),
            arranged: OnceCell::new(),
            store: OnceCell::new(),
            groups: OnceCell::new(),
        })
    }

    /// Wraps the stream of a node that keeps its own store and puts out one value a key.
    pub(crate) fn core_with_store(
        self: &Rc<Self>,
        id: NodeId,
        gauge: Arc<Gauge>,
        raw: Raw<'s>,
        store: StoreRef,
    ) -> Rc<Core<'s>> {
        self.build.nodes.borrow_mut()[id].store = Some(store.clone());
        let core = self.core(id, gauge, raw.clone());
        core.store.get_or_init(|| (store, raw));
        core
    }

    /// Has the probe watch a stream.
    pub(crate) fn tail(&self, raw: Raw<'s>) -> usize {
        let tail = self.next_tail.get();
        self.next_tail.set(tail + 1);
        self.tails.borrow_mut().insert(tail, raw);
        tail
    }

    pub(crate) fn epochwise(&self, name: &str, inputs: Vec<Raw<'s>>, logic: EpochLogic) -> Raw<'s> {
        epochwise(self.scope, name, inputs, logic)
    }

    /// Adds an operator that only takes in.
    pub(crate) fn sink(&self, name: &str, input: Raw<'s>, mut take: Take) {
        let end = self.epochwise(name, vec![input], Box::new(move |_, deltas, _| take(&mut deltas[0])));
        self.tail(end);
    }

    /// Ends the build: one probe over every loose end.
    pub(crate) fn probe(&self) -> timely::dataflow::operators::probe::Handle<Time> {
        use timely::dataflow::operators::Probe;
        let mut tails = std::mem::take(&mut *self.tails.borrow_mut()).into_values();
        let probe = timely::dataflow::operators::probe::Handle::new();
        if let Some(first) = tails.next() {
            spines::concat(first, tails).inner.probe_with(&probe);
        }
        probe
    }
}

/// What is behind a typed collection or index: one node, its stream, and what readers have had built on it.
pub(crate) struct Core<'s> {
    pub(crate) id: NodeId,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) flow: Rc<FlowScope<'s>>,
    raw: Raw<'s>,
    tail: usize,
    arranged: OnceCell<Arr<'s>>,
    store: OnceCell<(StoreRef, Raw<'s>)>,
    groups: OnceCell<(GroupsRef, Raw<'s>)>,
}

impl<'s> Core<'s> {
    pub(crate) fn name(&self) -> &str {
        &self.gauge.name
    }

    /// The changes, for one more reader.
    pub(crate) fn stream(&self) -> Raw<'s> {
        self.flow.tails.borrow_mut().remove(&self.tail);
        self.raw.clone()
    }

    /// The shared arrangement by key.
    pub(crate) fn arranged(&self) -> Arr<'s> {
        self.arranged.get_or_init(|| self.adopt(spines::arrange(self.stream(), self.name()))).clone()
    }

    /// Takes an arrangement that exists already as this node's.
    pub(crate) fn set_arranged(&self, rows: Arr<'s>) {
        let rows = self.adopt(rows);
        self.arranged.get_or_init(|| rows);
    }

    /// Registers the trace, so that it gets compacted, dumped and explained.
    fn adopt(&self, rows: Arr<'s>) -> Arr<'s> {
        let trace = Rc::new(RefCell::new(rows.trace.clone()));
        self.flow.build.nodes.borrow_mut()[self.id].trace = Some(trace.clone());
        self.flow.build.flows.borrow_mut()[self.flow.flow].traces.push((self.gauge.clone(), trace));
        rows
    }

    /// The shared store of a collection, and its resolved changes.
    pub(crate) fn store(&self) -> (StoreRef, Raw<'s>) {
        self.store
            .get_or_init(|| {
                let store = StoreRef::default();
                self.flow.build.nodes.borrow_mut()[self.id].store = Some(store.clone());
                let logic = keep_store(store.clone(), self.gauge.clone());
                (store, self.flow.epochwise(self.name(), vec![self.stream()], logic))
            })
            .clone()
    }

    /// The shared store of an index, and its changes.
    pub(crate) fn groups(&self) -> (GroupsRef, Raw<'s>) {
        self.groups
            .get_or_init(|| {
                let groups = GroupsRef::default();
                self.flow.build.nodes.borrow_mut()[self.id].groups = Some(groups.clone());
                (
                    groups.clone(),
                    self.flow.epochwise(self.name(), vec![self.stream()], keep_groups(groups, self.gauge.clone())),
                )
            })
            .clone()
    }

    /// A node that expands each record of `input` (which may be a join of several parents).
    pub(crate) fn expand(
        flow: &Rc<FlowScope<'s>>,
        (name, kind): (&str, &'static str),
        parents: Vec<NodeId>,
        provenance: Provenance,
        (input, feedstock): (Raw<'s>, Feedstock),
        expand: Expand,
    ) -> Rc<Self> {
        let owners = provenance.owners();
        let (id, gauge) = flow.node(name, kind, parents, provenance);
        let transform = Transform::new(gauge.clone(), expand);
        flow.build.nodes.borrow_mut()[id].transform = Some((transform.clone(), feedstock));
        let raw = flow.epochwise(&gauge.name, vec![input], transform.logic(owners));
        flow.core(id, gauge, raw)
    }
}
