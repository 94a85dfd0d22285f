//! Commands to the dataflow thread, and the two queues that carry them.
//!
//! No sender waits for room, so that a long epoch stops no other thread. The queues stay bounded nevertheless: a write
//! replaces an earlier write of its key that still waits, and the sender of any other command waits for its reply.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::engine_state::EngineState;
use crate::epoch::Epoch;
use crate::explanation::{EpochSummary, Explanation, HistoryQuery};
use crate::input_snapshot::InputsSnapshot;
use crate::input_state::WriteOp;
use crate::node::NodeId;
use crate::update::Row;
use crate::value::{Erased, ErasedMap};

/// A command to the dataflow thread.
pub(crate) enum EngineCommand {
    /// One write to the input of that number.
    Write(usize, Box<WriteOp>),
    /// Writes that become visible together; the reply is their epoch.
    Transaction(Vec<(usize, WriteOp)>, Sender<Epoch>),
    /// The reply is the epoch in which everything queued before is committed.
    Flush(Sender<Epoch>),
    /// All rows of a node, in chunks.
    Dump(NodeId, Sender<DumpChunk>),
    /// Why a record has its value.
    Explain(NodeId, Erased, Sender<Explanation>),
    /// Epochs of the history.
    History(HistoryQuery, Sender<Vec<EpochSummary>>),
    /// The records of all inputs.
    Inputs(Sender<InputsSnapshot>),
    /// The state of the engine.
    Copy(Sender<EngineState>),
    /// For each key of a node, the keys in its first parent that made the record.
    Makers(NodeId, Vec<Erased>, Sender<Vec<Vec<Erased>>>),
    /// The records that were read for each group of outputs of a node. The reply has the groups, too.
    Reads(NodeId, Vec<DerivedGroup>, Sender<GroupReads>),
    /// Ends the thread.
    Stop,
}

/// A part of the reply to a dump command.
pub(crate) enum DumpChunk {
    Rows(Vec<Row>),
    End(Epoch),
}

/// Records of a node that one record of its first parent made.
pub(crate) struct DerivedGroup {
    /// The key in the first parent.
    pub(crate) maker: Erased,
    /// The keys in the node, in order of content.
    pub(crate) outputs: Vec<Erased>,
}

/// Groups of outputs, and for each the records that were read besides its maker; without a key, all of a node.
pub(crate) type GroupReads = (Vec<DerivedGroup>, Vec<Vec<(NodeId, Option<Erased>)>>);

/// The sending end of the two queues.
#[derive(Clone)]
pub(crate) struct CommandQueue(Arc<SharedQueues>);

/// The receiving end of the two queues. When it is dropped, waiting commands are dropped, and later ones are ignored.
pub(crate) struct CommandReceiver(Arc<SharedQueues>);

#[derive(Default)]
struct SharedQueues {
    queues: Mutex<Queues>,
    added: Condvar,
}

#[derive(Default)]
struct Queues {
    priority: WaitingCommands,
    normal: WaitingCommands,
    closed: bool,
}

impl SharedQueues {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommandQueue {
    /// Two empty queues.
    pub(crate) fn new() -> (Self, CommandReceiver) {
        let shared = Arc::new(SharedQueues::default());
        (Self(shared.clone()), CommandReceiver(shared))
    }

    /// Adds a command. Commands to a stopped engine are dropped.
    pub(crate) fn send(&self, priority: bool, command: EngineCommand) {
        let mut queues = self.0.lock();
        if queues.closed {
            return;
        }
        if priority {
            if let EngineCommand::Transaction(writes, _) = &command {
                writes.iter().for_each(|(input, op)| queues.normal.supersede(*input, op));
            }
            queues.priority.push(command);
        } else {
            queues.normal.push(command);
        }
        drop(queues);
        self.0.added.notify_one();
    }

    /// Number of waiting commands.
    pub(crate) fn len(&self) -> usize {
        let queues = self.0.lock();
        queues.priority.len + queues.normal.len
    }
}

impl CommandReceiver {
    /// Waits for a command, for this time at most if there is a limit.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let queues = self.0.lock();
        let is_empty = |queues: &mut Queues| queues.priority.len + queues.normal.len == 0;
        match limit {
            None => drop(self.0.added.wait_while(queues, is_empty)),
            Some(limit) => drop(self.0.added.wait_timeout_while(queues, limit, is_empty)),
        }
    }

    /// A waiting command of the priority queue.
    pub(crate) fn next_priority(&self) -> Option<EngineCommand> {
        self.0.lock().priority.pop()
    }

    /// A waiting command of the other queue.
    pub(crate) fn next_normal(&self) -> Option<EngineCommand> {
        self.0.lock().normal.pop()
    }

    /// Number of waiting commands in the priority queue.
    pub(crate) fn priority_len(&self) -> usize {
        self.0.lock().priority.len
    }
}

impl Drop for CommandReceiver {
    fn drop(&mut self) {
        let dropped = {
            let mut queues = self.0.lock();
            queues.closed = true;
            (std::mem::take(&mut queues.priority), std::mem::take(&mut queues.normal))
        };
        // Senders that wait for a reply are woken.
        drop(dropped);
    }
}

/// The commands of one queue, in the order of arrival. A write that replaces a waiting write takes its place.
#[derive(Default)]
struct WaitingCommands {
    /// A replaced command leaves an empty entry.
    entries: VecDeque<Option<EngineCommand>>,
    /// Number of the first entry, since the start.
    first: u64,
    /// Number of commands.
    len: usize,
    /// Entries that a later write can replace, by input.
    replaceable: Vec<ReplaceableWrites>,
}

/// Numbers of the entries with writes of one input.
#[derive(Default)]
struct ReplaceableWrites {
    keys: ErasedMap<u64>,
    replace_all: Option<u64>,
    synced: Option<u64>,
}

impl WaitingCommands {
    fn push(&mut self, command: EngineCommand) {
        let number = self.first + self.entries.len() as u64;
        match &command {
            EngineCommand::Write(input, op) => match &**op {
                WriteOp::Set(key, ..) | WriteOp::Delete(key, _) => {
                    if let Some(waiting) = self.writes_of(*input).keys.get(key).copied() {
                        let at = self.position(waiting);
                        self.entries[at] = Some(command);
                        return;
                    }
                    let key = key.clone();
                    self.writes_of(*input).keys.insert(key, number);
                }
                WriteOp::Replace(_) => {
                    self.supersede(*input, op);
                    self.writes_of(*input).replace_all = Some(number);
                }
                WriteOp::Synced => {
                    if self.writes_of(*input).synced.is_some() {
                        return;
                    }
                    self.writes_of(*input).synced = Some(number);
                }
                WriteOp::DeleteWhere(_) => {}
            },
            // A later write must not take a place before the transaction.
            EngineCommand::Transaction(writes, _) => writes.iter().for_each(|(input, op)| {
                let waiting = self.writes_of(*input);
                match op {
                    WriteOp::Set(key, ..) | WriteOp::Delete(key, _) => {
                        waiting.keys.remove(key);
                    }
                    WriteOp::Replace(_) | WriteOp::DeleteWhere(_) => {
                        *waiting = ReplaceableWrites { synced: waiting.synced, ..Default::default() }
                    }
                    WriteOp::Synced => {}
                }
            }),
            EngineCommand::Flush(_)
            | EngineCommand::Dump(..)
            | EngineCommand::Explain(..)
            | EngineCommand::History(..)
            | EngineCommand::Inputs(..)
            | EngineCommand::Copy(..)
            | EngineCommand::Makers(..)
            | EngineCommand::Reads(..)
            | EngineCommand::Stop => {}
        }
        self.entries.push_back(Some(command));
        self.len += 1;
    }

    fn pop(&mut self) -> Option<EngineCommand> {
        loop {
            let entry = self.entries.pop_front()?;
            let number = self.first;
            self.first += 1;
            let Some(command) = entry else { continue };
            self.len -= 1;
            if let EngineCommand::Write(input, op) = &command {
                self.forget(*input, op, number);
            }
            return Some(command);
        }
    }

    /// Drops the waiting writes that `op` makes obsolete.
    fn supersede(&mut self, input: usize, op: &WriteOp) {
        let waiting = self.writes_of(input);
        let obsolete: Vec<u64> = match op {
            WriteOp::Set(key, ..) | WriteOp::Delete(key, _) => waiting.keys.remove(key).into_iter().collect(),
            WriteOp::Replace(_) => {
                let keys = std::mem::take(&mut waiting.keys).into_values();
                keys.chain(waiting.replace_all.take()).collect()
            }
            WriteOp::DeleteWhere(_) | WriteOp::Synced => Vec::new(),
        };
        for number in obsolete {
            let at = self.position(number);
            self.entries[at] = None;
            self.len -= 1;
        }
    }

    /// Makes the write that has left the queue no longer replaceable.
    fn forget(&mut self, input: usize, op: &WriteOp, number: u64) {
        let waiting = self.writes_of(input);
        match op {
            WriteOp::Set(key, ..) | WriteOp::Delete(key, _) => {
                if waiting.keys.get(key) == Some(&number) {
                    waiting.keys.remove(key);
                }
            }
            WriteOp::Replace(_) if waiting.replace_all == Some(number) => waiting.replace_all = None,
            WriteOp::Replace(_) | WriteOp::DeleteWhere(_) => {}
            WriteOp::Synced => waiting.synced = None,
        }
    }

    fn writes_of(&mut self, input: usize) -> &mut ReplaceableWrites {
        if self.replaceable.len() <= input {
            self.replaceable.resize_with(input + 1, ReplaceableWrites::default);
        }
        &mut self.replaceable[input]
    }

    fn position(&self, number: u64) -> usize {
        usize::try_from(number - self.first).unwrap_or(usize::MAX)
    }
}
