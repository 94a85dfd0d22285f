//! The dataflow thread: commands in, epochs out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select};

use crate::builder::GraphBuilder;
use crate::engine::EngineOptions;
use crate::explain::{EpochSummary, Explanation};
use crate::feed::Hub;
use crate::flow::{Node, NodeId};
use crate::input::{InputChange, Op, Source};
use crate::network::Network;
use crate::output::{Epoch, EpochTiming, RawEvent, Slot, Snapshot};
use crate::scan::{Job, Part, Scan};
use crate::spines::Time;
use crate::value::{ByContent, Dyn};
use crate::why::Provenance;

/// Changes of an epoch the history keeps: a load of everything is not worth remembering row by row.
const HISTORY_ROWS: usize = 4_096;
/// Changes the history keeps over all epochs: storms make it shorter, never larger.
const HISTORY_ROWS_IN_ALL: usize = 65_536;
/// How long to leave a lagging reader of a dump alone.
const READER_PAUSE: Duration = Duration::from_millis(1);

/// What the dataflow thread can be told.
pub(crate) enum Command {
    /// One write to a source.
    Write(usize, Box<Op>),
    /// Writes that become visible together; answered with their epoch.
    Transaction(Vec<(usize, Op)>, Sender<Epoch>),
    /// Answered when everything queued before is committed.
    Flush(Sender<Epoch>),
    /// All rows of a node, in parts.
    Dump(NodeId, Sender<Part>),
    /// Why a record is as it is.
    Explain(NodeId, Dyn, Sender<Explanation>),
    /// The recent epochs.
    History(Sender<Vec<EpochSummary>>),
    /// Ends the thread.
    Stop,
}

/// A question, answered when what was queued before it is committed.
enum Question {
    Flush(Sender<Epoch>),
    Dump(NodeId, Sender<Part>),
    Explain(NodeId, Dyn, Sender<Explanation>),
    History(Sender<Vec<EpochSummary>>),
}

/// The sending end of the two bounded command queues.
#[derive(Clone)]
pub(crate) struct Queue {
    hot: Sender<Command>,
    cold: Sender<Command>,
}

/// The receiving end.
pub(crate) struct Commands {
    hot: Receiver<Command>,
    cold: Receiver<Command>,
}

impl Queue {
    pub(crate) fn bounded(length: usize) -> (Self, Commands) {
        let (hot, hot_end) = bounded(length.max(1));
        let (cold, cold_end) = bounded(length.max(1));
        (Self { hot, cold }, Commands { hot: hot_end, cold: cold_end })
    }

    /// Waits for room. Commands to an engine that has stopped are dropped.
    pub(crate) fn send(&self, hot: bool, command: Command) {
        let queue = if hot { &self.hot } else { &self.cold };
        // An error means the thread is gone: nobody is left to care.
        let _ = queue.send(command);
    }

    pub(crate) fn len(&self) -> usize {
        self.hot.len() + self.cold.len()
    }
}

/// Epoch timing, read from anywhere.
#[derive(Default)]
pub(crate) struct Timing {
    pub(crate) epochs: AtomicU64,
    pub(crate) busy_nanos: AtomicU64,
    pub(crate) last_nanos: AtomicU64,
    pub(crate) longest_nanos: AtomicU64,
    pub(crate) last_batch: AtomicU64,
}

/// An epoch as the history keeps it.
#[derive(Clone, Debug)]
pub(crate) struct EpochRecord {
    pub(crate) epoch: Epoch,
    pub(crate) took: Duration,
    /// Of a very large epoch only the first.
    pub(crate) inputs: Vec<InputChange>,
    pub(crate) write_count: usize,
    /// Keys changed, sorted, by slot. Keys only: values would keep alive what has long been replaced.
    pub(crate) outputs: Vec<(usize, Vec<Dyn>)>,
}

impl EpochRecord {
    fn rows(&self) -> usize {
        self.inputs.len() + self.outputs.iter().map(|(_, keys)| keys.len()).sum::<usize>()
    }
}

/// The state of the dataflow thread.
pub(crate) struct Engineer {
    options: EngineOptions,
    pub(crate) nodes: Vec<Node>,
    pub(crate) sources: Vec<Source>,
    network: Network,
    flows: Vec<String>,
    slots: Vec<Slot>,
    touched: Vec<usize>,
    sync_changed: bool,
    hub: Arc<Hub>,
    timing: Arc<Timing>,
    pub(crate) epoch: Time,
    turn: u64,
    maps: Arc<Vec<crate::output::Map>>,
    synced: Arc<Vec<bool>>,
    pub(crate) history: VecDeque<EpochRecord>,
    history_rows: usize,
}

impl Engineer {
    pub(crate) fn new(builder: GraphBuilder, hub: Arc<Hub>, timing: Arc<Timing>) -> Self {
        let GraphBuilder { build } = builder;
        let sources = build.sources.take();
        let touched = (0..sources.len()).collect();
        let slots = build.slots.take();
        Self {
            options: build.options.clone(),
            nodes: build.nodes.take(),
            sources,
            network: build.network.take(),
            flows: build.flows.take(),
            maps: Arc::new(slots.iter().map(|slot| slot.map.clone()).collect()),
            slots,
            touched,
            sync_changed: true,
            hub,
            timing,
            epoch: 0,
            turn: 0,
            synced: Arc::default(),
            history: VecDeque::new(),
            history_rows: 0,
        }
    }

    /// Works until told to stop.
    pub(crate) fn run(mut self, commands: &Commands) {
        let mut questions = Vec::new();
        let mut jobs: VecDeque<Job> = VecDeque::new();
        loop {
            let Some(first) = commands.first(&mut jobs) else { return };
            let mut next = first;
            let mut weight = 0;
            while let Some(command) = next {
                if matches!(command, Command::Stop) {
                    return;
                }
                weight += self.take(command, commands, &mut questions);
                next = if weight < self.options.batch { commands.next() } else { None };
            }
            let epoch = self.commit(weight);
            for question in questions.drain(..) {
                self.answer(question, epoch, &mut jobs);
            }
            // One slice a turn: epochs go first.
            if let Some(mut job) = jobs.pop_front()
                && job.work()
            {
                jobs.push_back(job);
            }
        }
    }

    fn answer(&self, question: Question, epoch: Epoch, jobs: &mut VecDeque<Job>) {
        // Whoever asked may have gone meanwhile.
        match question {
            Question::Flush(reply) => drop(reply.send(epoch)),
            Question::Explain(node, key, reply) => drop(reply.send(self.explain(node, &key))),
            Question::History(reply) => drop(reply.send(self.summaries())),
            Question::Dump(node, reply) => {
                jobs.push_back(Job::new(Scan::of(node, &self.nodes, &self.sources), epoch, reply));
            }
        }
    }

    /// Takes one command into the open epoch; gives its weight.
    fn take(&mut self, command: Command, commands: &Commands, questions: &mut Vec<Question>) -> usize {
        let question = match command {
            Command::Write(source, op) => return self.write(source, *op),
            Command::Stop => return 0,
            Command::Transaction(writes, reply) => {
                let before = self.take_hot(commands, questions);
                let weight: usize = writes.into_iter().map(|(source, op)| self.write(source, op)).sum();
                questions.push(Question::Flush(reply));
                return before + weight;
            }
            Command::Flush(reply) => Question::Flush(reply),
            Command::Dump(node, reply) => Question::Dump(node, reply),
            Command::Explain(node, key, reply) => Question::Explain(node, key, reply),
            Command::History(reply) => Question::History(reply),
        };
        let weight = self.take_hot(commands, questions);
        questions.push(question);
        weight
    }

    /// Takes all that is in the hot queue: a thread that asks after a hot write expects to see it.
    fn take_hot(&mut self, commands: &Commands, questions: &mut Vec<Question>) -> usize {
        let waiting = commands.hot.len();
        commands.hot.try_iter().take(waiting).map(|command| self.take(command, commands, questions)).sum()
    }

    pub(crate) fn published(&self, node: NodeId, key: &Dyn) -> Option<&Dyn> {
        let slot = self.nodes[node].published?;
        self.slots[slot].map.get(&ByContent(key.clone())).map(|record| &record.value)
    }

    pub(crate) fn changed_at(&self, slot: usize, key: &Dyn) -> Option<Epoch> {
        Some(self.slots[slot].map.get(&ByContent(key.clone()))?.changed)
    }

    pub(crate) fn slot_node(&self, slot: usize) -> NodeId {
        self.slots[slot].node
    }

    pub(crate) fn flow_names(&self) -> &[String] {
        &self.flows
    }

    fn write(&mut self, source: usize, op: Op) -> usize {
        let weight = op.weight();
        self.nodes[self.sources[source].node].gauge.took_in(weight);
        self.sync_changed |= self.sources[source].write(op);
        self.touched.push(source);
        weight
    }

    /// Runs everything written so far through the network, and shows the result.
    pub(crate) fn commit(&mut self, weight: usize) -> Epoch {
        let start = self.options.clock.now();
        let epoch = self.epoch + 1;
        let mut inputs = Vec::new();
        self.touched.sort_unstable();
        self.touched.dedup();
        for source in self.touched.drain(..) {
            let source = &mut self.sources[source];
            source.flush(epoch, &mut self.network, &mut inputs);
            self.nodes[source.node].gauge.set_size(source.rows.len());
        }
        if !self.sync_changed && inputs.is_empty() && epoch > 1 {
            return Epoch(self.epoch);
        }
        self.epoch = epoch;
        self.network.run(epoch);
        let changes = self.close(Epoch(epoch));
        let took = self.options.clock.now().saturating_sub(start);
        let write_count = inputs.len();
        // A record that is deleted may have come long ago.
        let set = inputs.iter().filter(|input| !input.deleted).filter_map(|input| input.origin.as_ref());
        let received = set.filter_map(|origin| origin.received).min();
        inputs.truncate(HISTORY_ROWS);
        let keys = |events: &[RawEvent]| events.iter().map(|event| event.key.clone()).collect();
        let outputs = if changes.iter().map(|(_, events)| events.len()).sum::<usize>() <= HISTORY_ROWS {
            changes.iter().map(|(slot, events)| (*slot, keys(events))).collect()
        } else {
            Vec::new()
        };
        self.remember(EpochRecord { epoch: Epoch(epoch), took, inputs, write_count, outputs });
        self.show(Epoch(epoch), changes, EpochTiming { received, took });
        self.time(took, weight);
        Epoch(epoch)
    }

    /// Brings the published maps to the epoch; gives what changed, by slot.
    fn close(&mut self, epoch: Epoch) -> Vec<(usize, Arc<[RawEvent]>)> {
        let mut changes = Vec::new();
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if slot.buffer.borrow().is_empty() {
                continue;
            }
            let events = slot.close(epoch);
            self.nodes[slot.node].gauge.set_conflicts(slot.conflicts());
            if !events.is_empty() {
                changes.push((number, events.into()));
            }
        }
        changes
    }

    fn show(&mut self, epoch: Epoch, changes: Vec<(usize, Arc<[RawEvent]>)>, timing: EpochTiming) {
        let wake = self.sync_changed || !changes.is_empty() || self.turn == 0;
        if std::mem::take(&mut self.sync_changed) {
            self.synced = Arc::new(self.synced_nodes());
        }
        if !changes.is_empty() {
            self.maps = Arc::new(self.slots.iter().map(|slot| slot.map.clone()).collect());
        }
        self.turn += u64::from(wake);
        let (maps, synced) = (self.maps.clone(), self.synced.clone());
        self.hub.publish(Snapshot { epoch, turn: self.turn, maps, synced, changes, timing }, wake);
    }

    /// A node is synced when all it reads is. Parents come before children.
    fn synced_nodes(&self) -> Vec<bool> {
        let mut synced: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            synced.push(match node.provenance {
                Provenance::Source(source) => self.sources[source].synced,
                _ => node.parents.iter().all(|parent| synced[*parent]),
            });
        }
        synced
    }

    fn remember(&mut self, record: EpochRecord) {
        if self.options.history == 0 {
            return;
        }
        self.history_rows += record.rows();
        self.history.push_back(record);
        while self.history.len() > self.options.history || self.history_rows > HISTORY_ROWS_IN_ALL {
            let Some(oldest) = self.history.pop_front() else { return };
            self.history_rows -= oldest.rows();
        }
    }

    fn time(&self, took: Duration, weight: usize) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.timing.epochs.store(self.epoch, Relaxed);
        self.timing.busy_nanos.fetch_add(nanos, Relaxed);
        self.timing.last_nanos.store(nanos, Relaxed);
        self.timing.longest_nanos.fetch_max(nanos, Relaxed);
        self.timing.last_batch.store(weight as u64, Relaxed);
    }
}

impl Commands {
    /// Waits for a command; with work left to do, only looks. `None` when nobody can send any more.
    fn first(&self, jobs: &mut VecDeque<Job>) -> Option<Option<Command>> {
        if jobs.is_empty() {
            return select! {
                recv(self.hot) -> command => command.ok().map(Some),
                recv(self.cold) -> command => command.ok().map(Some),
            };
        }
        if jobs.iter().all(Job::is_waiting) {
            // All readers lag: do not spin while they catch up.
            return select! {
                recv(self.hot) -> command => command.ok().map(Some),
                recv(self.cold) -> command => command.ok().map(Some),
                default(READER_PAUSE) => Some(None),
            };
        }
        Some(self.next())
    }

    /// What is queued, the hot queue first.
    fn next(&self) -> Option<Command> {
        self.hot.try_recv().or_else(|_| self.cold.try_recv()).ok()
    }
}
