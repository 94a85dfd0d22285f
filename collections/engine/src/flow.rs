//! What the build knows: nodes, their edges, and the part of the graph a collection lives in.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::EngineOptions;
use crate::input::Source;
use crate::metrics::{Gauge, PanicLog};
use crate::network::{EpochLogic, Network, Stream};
use crate::output::Slot;
use crate::spines::{Circuits, Delta, Row, TraceCursor, TraceRef};
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
    /// Its rows, where a differential operator arranges them.
    pub(crate) trace: Option<TraceRef>,
    /// The rows a grouping operator groups.
    pub(crate) grouped: Option<TraceRef>,
    /// How a record-by-record operator makes its output, and from what.
    pub(crate) transform: Option<(Rc<Transform>, Feedstock)>,
}

impl Node {
    /// Reads its arrangement, if it has one.
    pub(crate) fn cursor(&self) -> Option<TraceCursor> {
        TraceCursor::of(self.trace.as_ref()?)
    }
}

/// What a record-by-record operator works on.
#[derive(Clone)]
pub(crate) enum Feedstock {
    /// The records of its only parent.
    Parent,
    /// Pairs of the rows of two arrangements.
    Pairs([TraceRef; 2], fn(&Dyn, &Dyn, &Dyn) -> Row),
}

/// Takes the changes of an epoch out of the network.
pub(crate) type Take = Box<dyn FnMut(&mut Vec<Delta>)>;

/// Everything the build collects for the dataflow thread.
pub(crate) struct Build {
    pub(crate) options: EngineOptions,
    pub(crate) queue: Queue,
    pub(crate) panic_log: Arc<PanicLog>,
    pub(crate) circuits: Circuits,
    pub(crate) network: RefCell<Network>,
    pub(crate) nodes: RefCell<Vec<Node>>,
    names: RefCell<BTreeSet<String>>,
    pub(crate) sources: RefCell<Vec<Source>>,
    pub(crate) slots: RefCell<Vec<Slot>>,
    /// Names of the dataflows.
    pub(crate) flows: RefCell<Vec<String>>,
}

impl Build {
    pub(crate) fn new(options: EngineOptions, queue: Queue, panic_log: Arc<PanicLog>) -> Self {
        Self {
            options,
            queue,
            panic_log,
            circuits: Circuits::new(),
            network: RefCell::default(),
            nodes: RefCell::default(),
            names: RefCell::default(),
            sources: RefCell::default(),
            slots: RefCell::default(),
            flows: RefCell::default(),
        }
    }
}

/// One dataflow while it is being built.
pub(crate) struct Flow {
    pub(crate) number: usize,
    pub(crate) build: Rc<Build>,
}

impl Flow {
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
            flow: self.number,
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
    pub(crate) fn core(self: &Rc<Self>, id: NodeId, gauge: Arc<Gauge>, stream: Stream) -> Rc<Core> {
        Rc::new(Core { id, stream, gauge, flow: self.clone(), store: OnceCell::new(), groups: OnceCell::new() })
    }

    /// Wraps the stream of a node that keeps its own store and puts out one value a key.
    pub(crate) fn core_with_store(
        self: &Rc<Self>,
        id: NodeId,
        gauge: Arc<Gauge>,
        stream: Stream,
        store: StoreRef,
    ) -> Rc<Core> {
        self.build.nodes.borrow_mut()[id].store = Some(store.clone());
        let core = self.core(id, gauge, stream.clone());
        core.store.get_or_init(|| (store, stream));
        core
    }

    pub(crate) fn operator(&self, inputs: Vec<Stream>, logic: EpochLogic) -> Stream {
        self.build.network.borrow_mut().add(inputs, logic)
    }

    /// Adds an operator that only takes in.
    pub(crate) fn sink(&self, input: Stream, mut take: Take) {
        self.operator(vec![input], Box::new(move |_, deltas, _| take(&mut deltas[0])));
    }
}

/// What is behind a typed collection or index: one node, its stream, and what readers have had built on it.
pub(crate) struct Core {
    pub(crate) id: NodeId,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) flow: Rc<Flow>,
    stream: Stream,
    store: OnceCell<(StoreRef, Stream)>,
    groups: OnceCell<(GroupsRef, Stream)>,
}

impl Core {
    pub(crate) fn name(&self) -> &str {
        &self.gauge.name
    }

    /// The changes, for one more reader.
    pub(crate) fn stream(&self) -> Stream {
        self.stream.clone()
    }

    /// Remembers where a differential operator arranges this node's rows, so that they can be dumped and explained.
    pub(crate) fn arranged_at(&self, trace: &TraceRef) {
        self.flow.build.nodes.borrow_mut()[self.id].trace.get_or_insert_with(|| trace.clone());
    }

    /// The shared store of a collection, and its resolved changes.
    pub(crate) fn store(&self) -> (StoreRef, Stream) {
        self.store
            .get_or_init(|| {
                let store = StoreRef::default();
                self.flow.build.nodes.borrow_mut()[self.id].store = Some(store.clone());
                let logic = keep_store(store.clone(), self.gauge.clone());
                (store, self.flow.operator(vec![self.stream()], logic))
            })
            .clone()
    }

    /// The shared store of an index, and its changes.
    pub(crate) fn groups(&self) -> (GroupsRef, Stream) {
        self.groups
            .get_or_init(|| {
                let groups = GroupsRef::default();
                self.flow.build.nodes.borrow_mut()[self.id].groups = Some(groups.clone());
                let logic = keep_groups(groups.clone(), self.gauge.clone());
                (groups, self.flow.operator(vec![self.stream()], logic))
            })
            .clone()
    }

    /// A node that expands each record of `input` (which may be a join of several parents).
    pub(crate) fn expand(
        flow: &Rc<Flow>,
        (name, kind): (&str, &'static str),
        parents: Vec<NodeId>,
        provenance: Provenance,
        expand: Expand,
        input: impl FnOnce(&Arc<Gauge>) -> (Stream, Feedstock),
    ) -> Rc<Self> {
        let owners = provenance.owners();
        let (id, gauge) = flow.node(name, kind, parents, provenance);
        let transform = Transform::new(gauge.clone(), expand);
        let (input, feedstock) = input(&gauge);
        flow.build.nodes.borrow_mut()[id].transform = Some((transform.clone(), feedstock));
        let stream = flow.operator(vec![input], transform.logic(owners));
        flow.core(id, gauge, stream)
    }

    /// A node that expands each pair of rows two collections or indexes have under a key.
    pub(crate) fn joined(
        (left, right): (&Rc<Self>, &Rc<Self>),
        (name, kind): (&str, &'static str),
        provenance: Provenance,
        expand: Expand,
        pair: fn(&Dyn, &Dyn, &Dyn) -> Row,
    ) -> Rc<Self> {
        let flow = &left.flow;
        Self::expand(flow, (name, kind), vec![left.id, right.id], provenance, expand, |gauge| {
            let (logic, traces) = flow.build.circuits.join(gauge.clone(), pair);
            left.arranged_at(&traces[0]);
            right.arranged_at(&traces[1]);
            (flow.operator(vec![left.stream(), right.stream()], logic), Feedstock::Pairs(traces, pair))
        })
    }
}
