//! The dataflow thread: takes commands, runs epochs, publishes snapshots.

mod copy;
mod derivations;
mod explain;
mod provenance;
mod scan;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::builder::GraphBuilder;
use crate::command::{CommandReceiver, DerivedGroup, DumpChunk, EngineCommand, GroupReads};
use crate::copied_state::CopiedState;
use crate::engine_state::EngineState;
use crate::epoch::{Epoch, EpochTiming};
use crate::explanation::{EpochSummary, Explanation, HistoryQuery};
use crate::feed::SnapshotPublisher;
use crate::input_snapshot::InputsSnapshot;
use crate::input_state::{InputChange, InputState, WriteOp};
use crate::network::OperatorNetwork;
use crate::node::{CollectionNode, NodeId, Provenance};
use crate::options::EngineOptions;
use crate::output::{ErasedEvent, PublishedCollection, PublishedMap, Snapshot};
use crate::update::Time;
use crate::value::{ContentOrdered, Erased};
use scan::{DumpJob, Scan};

/// Changes of one epoch that the history keeps. Of a larger epoch, such as the initial load, it keeps only the first.
const MAX_HISTORY_ROWS_PER_EPOCH: usize = 4_096;
/// What an epoch, and each changed key, count as in the limit of the history's memory. Most keys are shared with their
/// records, but the keys of removed records are not.
const HISTORY_ROW_BYTES: usize = 256;
/// How long the thread waits for commands before it tries again to send to slow readers of dumps.
const DUMP_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A command that is answered once everything queued before it is committed.
enum PendingReply {
    Flush(Sender<Epoch>),
    Dump(NodeId, Sender<DumpChunk>),
    Explain(NodeId, Erased, Sender<Explanation>),
    History(HistoryQuery, Sender<Vec<EpochSummary>>),
    Inputs(Sender<InputsSnapshot>),
    Copy(Sender<EngineState>),
    Makers(NodeId, Vec<Erased>, Sender<Vec<Vec<Erased>>>),
    Reads(NodeId, Vec<DerivedGroup>, Sender<GroupReads>),
}

/// Counters of epochs: written by the dataflow thread, read by any thread.
#[derive(Default)]
pub(crate) struct EpochCounters {
    pub(crate) epochs: AtomicU64,
    pub(crate) busy_nanos: AtomicU64,
    pub(crate) last_nanos: AtomicU64,
    pub(crate) longest_nanos: AtomicU64,
    pub(crate) last_batch: AtomicU64,
}

/// An epoch in the history.
#[derive(Clone, Debug)]
pub(crate) struct EpochRecord {
    pub(crate) epoch: Epoch,
    /// When it was committed, by the engine's clock.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    /// The first changes of inputs, up to [`MAX_HISTORY_ROWS_PER_EPOCH`].
    pub(crate) inputs: Vec<InputChange>,
    pub(crate) write_count: usize,
    /// Changed keys by slot, sorted. Values would keep alive records that have been replaced.
    pub(crate) outputs: Vec<(usize, Vec<Erased>)>,
    /// There are too many changed keys, so `outputs` is empty.
    pub(crate) outputs_omitted: bool,
}

impl EpochRecord {
    /// What it counts as in the limit of the history's memory.
    fn bytes(&self) -> usize {
        let keys: usize = self.outputs.iter().map(|(_, keys)| keys.len()).sum();
        (1 + self.inputs.len() + keys) * HISTORY_ROW_BYTES
    }
}

/// The state of the dataflow thread.
pub(crate) struct DataflowThread {
    options: EngineOptions,
    pub(crate) nodes: Vec<CollectionNode>,
    inputs: Vec<InputState>,
    network: OperatorNetwork,
    /// The states of the operators.
    states: Vec<Box<dyn CopiedState>>,
    dataflows: Vec<String>,
    published: Vec<PublishedCollection>,
    /// Numbers of the inputs that the open epoch wrote.
    written: Vec<usize>,
    sync_changed: bool,
    publisher: Arc<SnapshotPublisher>,
    counters: Arc<EpochCounters>,
    epoch: Time,
    revision: u64,
    maps: Arc<Vec<PublishedMap>>,
    synced: Arc<Vec<bool>>,
    history: VecDeque<EpochRecord>,
    history_bytes: usize,
}

impl DataflowThread {
    pub(crate) fn new(builder: GraphBuilder, publisher: Arc<SnapshotPublisher>, counters: Arc<EpochCounters>) -> Self {
        let GraphBuilder { build } = builder;
        let inputs = build.inputs.take();
        let written = (0..inputs.len()).collect();
        let published = build.published.take();
        Self {
            options: build.options.clone(),
            nodes: build.nodes.take(),
            inputs,
            network: build.network.take(),
            states: build.states.take(),
            dataflows: build.dataflows.take(),
            maps: Arc::new(published.iter().map(|collection| collection.map.clone()).collect()),
            published,
            written,
            sync_changed: true,
            publisher,
            counters,
            epoch: 0,
            revision: 0,
            synced: Arc::default(),
            history: VecDeque::new(),
            history_bytes: 0,
        }
    }

    /// Executes commands until the stop command.
    pub(crate) fn run(mut self, commands: &CommandReceiver) {
        let mut replies = Vec::new();
        let mut jobs: VecDeque<DumpJob> = VecDeque::new();
        loop {
            wait_for_command(commands, &jobs);
            let (mut weight, mut has_normal) = (0, false);
            loop {
                let is_full = weight >= self.options.batch;
                if !is_full && let Some(command) = commands.next_priority() {
                    weight += self.take(command, &mut replies);
                    continue;
                }
                // At least one other command, so that those with priority never stop the others.
                if is_full && has_normal {
                    break;
                }
                let Some(command) = commands.next_normal() else { break };
                has_normal = true;
                match command {
                    EngineCommand::Stop => return,
                    EngineCommand::Write(..) => {}
                    // A thread that reads after its priority write must see the write.
                    _ => weight += self.take_priority(commands, &mut replies),
                }
                weight += self.take(command, &mut replies);
            }
            let epoch = self.commit(weight);
            for reply in replies.drain(..) {
                self.reply(reply, epoch, &mut jobs);
            }
            // One slice of one dump, then the next epoch.
            if let Some(mut job) = jobs.pop_front()
                && job.run_slice()
            {
                jobs.push_back(job);
            }
        }
    }

    fn reply(&self, reply: PendingReply, epoch: Epoch, jobs: &mut VecDeque<DumpJob>) {
        // The caller may have ended meanwhile, so errors of sending are ignored.
        match reply {
            PendingReply::Flush(sender) => drop(sender.send(epoch)),
            PendingReply::Explain(node, key, sender) => drop(sender.send(self.explain(node, &key))),
            PendingReply::History(query, sender) => drop(sender.send(self.summaries(&query))),
            PendingReply::Inputs(sender) => {
                drop(sender.send(InputsSnapshot::of(epoch, &self.inputs, &self.nodes)));
            }
            PendingReply::Copy(sender) => drop(sender.send(self.copy())),
            PendingReply::Makers(node, keys, sender) => drop(sender.send(self.makers(node, &keys))),
            PendingReply::Reads(node, groups, sender) => {
                let reads = self.reads(node, &groups);
                drop(sender.send((groups, reads)));
            }
            PendingReply::Dump(node, sender) => {
                jobs.push_back(DumpJob::new(Scan::of(node, &self.nodes, &self.inputs), epoch, sender));
            }
        }
    }

    /// Adds one command to the open epoch. Returns its weight.
    fn take(&mut self, command: EngineCommand, replies: &mut Vec<PendingReply>) -> usize {
        let reply = match command {
            EngineCommand::Write(input, op) => return self.write(input, *op),
            EngineCommand::Stop => return 0,
            EngineCommand::Transaction(writes, sender) => {
                replies.push(PendingReply::Flush(sender));
                return writes.into_iter().map(|(input, op)| self.write(input, op)).sum();
            }
            EngineCommand::Flush(sender) => PendingReply::Flush(sender),
            EngineCommand::Dump(node, sender) => PendingReply::Dump(node, sender),
            EngineCommand::Explain(node, key, sender) => PendingReply::Explain(node, key, sender),
            EngineCommand::History(query, sender) => PendingReply::History(query, sender),
            EngineCommand::Inputs(sender) => PendingReply::Inputs(sender),
            EngineCommand::Copy(sender) => PendingReply::Copy(sender),
            EngineCommand::Makers(node, keys, sender) => PendingReply::Makers(node, keys, sender),
            EngineCommand::Reads(node, groups, sender) => PendingReply::Reads(node, groups, sender),
        };
        replies.push(reply);
        0
    }

    /// Takes everything in the priority queue.
    fn take_priority(&mut self, commands: &CommandReceiver, replies: &mut Vec<PendingReply>) -> usize {
        let queued = commands.priority_len();
        std::iter::from_fn(|| commands.next_priority()).take(queued).map(|command| self.take(command, replies)).sum()
    }

    pub(crate) fn dataflow_names(&self) -> &[String] {
        &self.dataflows
    }

    fn write(&mut self, input: usize, op: WriteOp) -> usize {
        let weight = op.weight();
        let gauges = &self.nodes[self.inputs[input].node].gauges;
        gauges.record_input(weight);
        self.sync_changed |= self.inputs[input].write(op, gauges);
        self.written.push(input);
        weight
    }

    /// Runs all writes of the open epoch through the network, and publishes the result.
    pub(crate) fn commit(&mut self, weight: usize) -> Epoch {
        let start = self.options.clock.now();
        let epoch = self.epoch + 1;
        let mut inputs = Vec::new();
        self.written.sort_unstable();
        self.written.dedup();
        for input in self.written.drain(..) {
            let input = &mut self.inputs[input];
            input.flush(epoch, &mut self.network, &mut inputs);
            self.nodes[input.node].gauges.set_size(input.rows.len() as i64);
        }
        if !self.sync_changed && inputs.is_empty() && epoch > 1 {
            return Epoch(self.epoch);
        }
        self.epoch = epoch;
        self.network.run(epoch);
        let changes = self.close(Epoch(epoch));
        let at = self.options.clock.now();
        let took = at.saturating_sub(start);
        let write_count = inputs.len();
        // Deletions are left out: a deleted record may have been received long ago.
        let set = inputs.iter().filter(|input| !input.deleted).filter_map(|input| input.origin.as_ref());
        let received = set.filter_map(|origin| origin.received).min();
        inputs.truncate(MAX_HISTORY_ROWS_PER_EPOCH);
        let keys = |events: &[ErasedEvent]| events.iter().map(|event| event.key.clone()).collect();
        let changed = changes.iter().map(|(_, events)| events.len()).sum::<usize>();
        let outputs_omitted = changed > MAX_HISTORY_ROWS_PER_EPOCH;
        let kept = if outputs_omitted { &[][..] } else { &changes[..] };
        let outputs = kept.iter().map(|(slot, events)| (*slot, keys(events))).collect();
        let epoch_record = EpochRecord { epoch: Epoch(epoch), at, took, inputs, write_count, outputs, outputs_omitted };
        self.add_to_history(epoch_record);
        self.publish(Epoch(epoch), changes, EpochTiming { received, took });
        self.count(took, weight);
        Epoch(epoch)
    }

    /// Applies the epoch to the published collections. Returns the changes, by slot.
    fn close(&mut self, epoch: Epoch) -> Vec<(usize, Arc<[ErasedEvent]>)> {
        let mut changes = Vec::new();
        for (slot, collection) in self.published.iter_mut().enumerate() {
            if collection.buffer.borrow().is_empty() {
                continue;
            }
            let events = collection.close(epoch);
            self.nodes[collection.node].gauges.set_conflicts(collection.conflicts());
            if !events.is_empty() {
                changes.push((slot, events.into()));
            }
        }
        changes
    }

    fn publish(&mut self, epoch: Epoch, changes: Vec<(usize, Arc<[ErasedEvent]>)>, timing: EpochTiming) {
        let wake = self.sync_changed || !changes.is_empty() || self.revision == 0;
        if std::mem::take(&mut self.sync_changed) {
            self.synced = Arc::new(self.synced_nodes());
        }
        if !changes.is_empty() {
            self.maps = Arc::new(self.published.iter().map(|collection| collection.map.clone()).collect());
        }
        self.revision += u64::from(wake);
        let (maps, synced) = (self.maps.clone(), self.synced.clone());
        self.publisher.publish(Snapshot { epoch, revision: self.revision, maps, synced, changes, timing }, wake);
    }

    /// Whether each node is synced: a node is synced when all its parents are. Parents come before children.
    fn synced_nodes(&self) -> Vec<bool> {
        let mut synced: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            synced.push(match node.provenance {
                Provenance::Input(input) => self.inputs[input].synced,
                _ => node.parents.iter().all(|parent| synced[*parent]),
            });
        }
        synced
    }

    fn add_to_history(&mut self, record: EpochRecord) {
        let (now, limits) = (record.at, self.options.history);
        self.history_bytes += record.bytes();
        self.history.push_back(record);
        let is_old = |oldest: &EpochRecord| now.saturating_sub(oldest.at) > limits.age;
        while self.history_bytes > limits.bytes || self.history.front().is_some_and(is_old) {
            let Some(oldest) = self.history.pop_front() else { return };
            self.history_bytes -= oldest.bytes();
        }
    }

    fn count(&self, took: Duration, weight: usize) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counters.epochs.store(self.epoch, Relaxed);
        self.counters.busy_nanos.fetch_add(nanos, Relaxed);
        self.counters.last_nanos.store(nanos, Relaxed);
        self.counters.longest_nanos.fetch_max(nanos, Relaxed);
        self.counters.last_batch.store(weight as u64, Relaxed);
    }

    fn age(&self, record: &EpochRecord) -> Duration {
        self.options.clock.now().saturating_sub(record.at)
    }

    fn published_value(&self, node: NodeId, key: &Erased) -> Option<&Erased> {
        let slot = self.nodes[node].published?;
        self.published[slot].map.get(&ContentOrdered(key.clone())).map(|record| &record.value)
    }

    fn changed_at(&self, slot: usize, key: &Erased) -> Option<Epoch> {
        Some(self.published[slot].map.get(&ContentOrdered(key.clone()))?.changed)
    }
}

/// Waits for the first command of the next epoch, unless a dump has work to do.
fn wait_for_command(commands: &CommandReceiver, jobs: &VecDeque<DumpJob>) {
    if jobs.is_empty() {
        commands.wait(None);
    } else if jobs.iter().all(DumpJob::is_blocked) {
        // No reader of a dump is ready, so the thread waits for a moment instead of spinning.
        commands.wait(Some(DUMP_RETRY_INTERVAL));
    }
}
