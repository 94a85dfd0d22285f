//! The graph while it is built: its nodes, their operators, and the stores that readers of a node share.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::command::CommandQueue;
use crate::copied_state::CopiedState;
use crate::input_state::InputState;
use crate::metrics::{CollectionGauges, PanicLog};
use crate::network::{OperatorNetwork, UpdateStream};
use crate::node::{CollectionNode, NodeId, OperatorSource, Provenance};
use crate::operators::record::{ExpandFn, RecordTransform};
use crate::options::EngineOptions;
use crate::output::PublishedCollection;
use crate::spines::{DifferentialWorker, TraceRef};
use crate::store::{IndexStoreRef, KeyedStoreRef, index_store_logic, keyed_store_logic};
use crate::update::{EpochLogic, Row, Update};
use crate::value::Erased;

/// The parts of the engine that the build creates for the dataflow thread.
pub(crate) struct BuildState {
    pub(crate) options: EngineOptions,
    pub(crate) queue: CommandQueue,
    panic_log: Arc<PanicLog>,
    pub(crate) differential: DifferentialWorker,
    pub(crate) network: RefCell<OperatorNetwork>,
    pub(crate) nodes: RefCell<Vec<CollectionNode>>,
    names: RefCell<BTreeSet<String>>,
    pub(crate) inputs: RefCell<Vec<InputState>>,
    pub(crate) published: RefCell<Vec<PublishedCollection>>,
    /// Names of the dataflows.
    pub(crate) dataflows: RefCell<Vec<String>>,
    /// The states of the operators.
    pub(crate) states: RefCell<Vec<Box<dyn CopiedState>>>,
}

impl BuildState {
    pub(crate) fn new(options: EngineOptions, queue: CommandQueue, panic_log: Arc<PanicLog>) -> Self {
        Self {
            options,
            queue,
            panic_log,
            differential: DifferentialWorker::new(),
            network: RefCell::default(),
            nodes: RefCell::default(),
            names: RefCell::default(),
            inputs: RefCell::default(),
            published: RefCell::default(),
            dataflows: RefCell::default(),
            states: RefCell::default(),
        }
    }
}

/// One dataflow while it is built.
pub(crate) struct DataflowContext {
    number: usize,
    pub(crate) build: Rc<BuildState>,
    /// What the names of its nodes begin with.
    prefix: String,
}

impl DataflowContext {
    pub(crate) fn new(number: usize, build: Rc<BuildState>) -> Self {
        Self { number, build, prefix: String::new() }
    }

    /// The same dataflow, with one more prefix of names.
    pub(crate) fn with_prefix(&self, prefix: &str) -> Self {
        Self { number: self.number, build: self.build.clone(), prefix: format!("{}{prefix}/", self.prefix) }
    }

    /// Adds a node. Names are unique: a second `x` is named `x#2`.
    pub(crate) fn add_node(
        &self,
        name: &str,
        kind: &'static str,
        parents: Vec<NodeId>,
        provenance: Provenance,
    ) -> (NodeId, Arc<CollectionGauges>) {
        let build = &self.build;
        let mut names = build.names.borrow_mut();
        let name = format!("{}{name}", self.prefix);
        let mut unique = name.clone();
        let mut copy = 1;
        while !names.insert(unique.clone()) {
            copy += 1;
            unique = format!("{name}#{copy}");
        }
        let gauges = CollectionGauges::new(unique.clone(), build.options.clock.clone(), build.panic_log.clone());
        let gauges = Arc::new(gauges);
        let mut nodes = build.nodes.borrow_mut();
        nodes.push(CollectionNode::new((unique, kind), self.number, parents, gauges.clone(), provenance));
        (nodes.len() - 1, gauges)
    }

    /// The core of a node with these updates.
    pub(crate) fn core(
        self: &Rc<Self>,
        id: NodeId,
        gauges: Arc<CollectionGauges>,
        stream: UpdateStream,
    ) -> Rc<CollectionCore> {
        let (store, groups) = (OnceCell::new(), OnceCell::new());
        Rc::new(CollectionCore { id, stream, gauges, dataflow: self.clone(), store, groups })
    }

    /// The core of a node whose operator keeps its own store and produces one value per key.
    pub(crate) fn core_with_store(
        self: &Rc<Self>,
        id: NodeId,
        gauges: Arc<CollectionGauges>,
        stream: UpdateStream,
        store: KeyedStoreRef,
    ) -> Rc<CollectionCore> {
        self.build.nodes.borrow_mut()[id].store = Some(self.copied(store.clone()));
        let core = self.core(id, gauges, stream.clone());
        core.store.get_or_init(|| (store, stream));
        core
    }

    pub(crate) fn add_operator(&self, inputs: Vec<UpdateStream>, logic: EpochLogic) -> UpdateStream {
        self.build.network.borrow_mut().add(inputs, logic)
    }

    /// Has the state of an operator copied to second engines, and returns it.
    pub(crate) fn copied<S: CopiedState + Clone + 'static>(&self, state: S) -> S {
        self.build.states.borrow_mut().push(Box::new(state.clone()));
        state
    }

    /// Adds an operator without output.
    pub(crate) fn add_sink(&self, input: UpdateStream, mut take: impl FnMut(&mut Vec<Update>) + 'static) {
        self.add_operator(vec![input], Box::new(move |_, updates, _| take(&mut updates[0])));
    }
}

/// The untyped part of a collection or index: its node, its updates, and the stores that readers share.
pub(crate) struct CollectionCore {
    pub(crate) id: NodeId,
    pub(crate) gauges: Arc<CollectionGauges>,
    pub(crate) dataflow: Rc<DataflowContext>,
    stream: UpdateStream,
    store: OnceCell<(KeyedStoreRef, UpdateStream)>,
    groups: OnceCell<(IndexStoreRef, UpdateStream)>,
}

impl CollectionCore {
    pub(crate) fn name(&self) -> &str {
        &self.gauges.name
    }

    /// The updates, for one more reader.
    pub(crate) fn stream(&self) -> UpdateStream {
        self.stream.clone()
    }

    /// Registers the arrangement of this node's rows, so that dumps and explanations can read it.
    pub(crate) fn set_arrangement(&self, trace: &TraceRef) {
        self.dataflow.build.nodes.borrow_mut()[self.id].trace.get_or_insert_with(|| trace.clone());
    }

    /// The store of a collection, and its resolved updates. All readers share one store.
    pub(crate) fn store(&self) -> (KeyedStoreRef, UpdateStream) {
        self.store
            .get_or_init(|| {
                let store = self.dataflow.copied(KeyedStoreRef::default());
                self.dataflow.build.nodes.borrow_mut()[self.id].store = Some(store.clone());
                let logic = keyed_store_logic(store.clone(), self.gauges.clone());
                (store, self.dataflow.add_operator(vec![self.stream()], logic))
            })
            .clone()
    }

    /// The store of an index, and its updates. All readers share one store.
    pub(crate) fn groups(&self) -> (IndexStoreRef, UpdateStream) {
        self.groups
            .get_or_init(|| {
                let groups = self.dataflow.copied(IndexStoreRef::default());
                self.dataflow.build.nodes.borrow_mut()[self.id].groups = Some(groups.clone());
                let logic = index_store_logic(groups.clone(), self.gauges.clone());
                (groups, self.dataflow.add_operator(vec![self.stream()], logic))
            })
            .clone()
    }

    /// Adds a node that expands each record of this node.
    pub(crate) fn expanded(
        &self,
        (name, kind): (&str, &'static str),
        provenance: Provenance,
        expand: ExpandFn,
    ) -> Rc<Self> {
        let input = |_: &_| (self.stream(), OperatorSource::Parent);
        Self::expand(&self.dataflow, (name, kind), vec![self.id], provenance, expand, input)
    }

    /// Adds a node that expands each pair of rows that two collections or indexes have for a key.
    pub(crate) fn joined(
        (left, right): (&Rc<Self>, &Rc<Self>),
        (name, kind): (&str, &'static str),
        provenance: Provenance,
        expand: ExpandFn,
        pair: fn(&Erased, &Erased, &Erased) -> Row,
    ) -> Rc<Self> {
        let dataflow = &left.dataflow;
        Self::expand(dataflow, (name, kind), vec![left.id, right.id], provenance, expand, |gauges| {
            let (logic, traces, state) = dataflow.build.differential.join(gauges.clone(), pair);
            dataflow.copied(state);
            left.set_arrangement(&traces[0]);
            right.set_arrangement(&traces[1]);
            let pairs = dataflow.add_operator(vec![left.stream(), right.stream()], logic);
            (pairs, OperatorSource::Pairs(traces, pair))
        })
    }

    fn expand(
        dataflow: &Rc<DataflowContext>,
        (name, kind): (&str, &'static str),
        parents: Vec<NodeId>,
        provenance: Provenance,
        expand: ExpandFn,
        input: impl FnOnce(&Arc<CollectionGauges>) -> (UpdateStream, OperatorSource),
    ) -> Rc<Self> {
        let owners = provenance.owners().map(|owners| dataflow.copied(owners));
        let (id, gauges) = dataflow.add_node(name, kind, parents, provenance);
        let transform = RecordTransform::new(gauges.clone(), expand);
        dataflow.copied(transform.kept());
        let (input, source) = input(&gauges);
        dataflow.build.nodes.borrow_mut()[id].transform = Some((transform.clone(), source));
        let stream = dataflow.add_operator(vec![input], transform.logic(owners));
        dataflow.core(id, gauges, stream)
    }
}
