//! Commands to the dataflow thread, and the two bounded queues that carry them.

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::epoch::Epoch;
use crate::explanation::{EpochSummary, Explanation};
use crate::input_state::WriteOp;
use crate::node::NodeId;
use crate::update::Row;
use crate::value::Erased;

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
    /// The recent epochs.
    History(Sender<Vec<EpochSummary>>),
    /// Ends the thread.
    Stop,
}

/// A part of the reply to a dump command.
pub(crate) enum DumpChunk {
    Rows(Vec<Row>),
    End(Epoch),
}

/// The sending end of the two queues.
#[derive(Clone)]
pub(crate) struct CommandQueue {
    priority: Sender<EngineCommand>,
    normal: Sender<EngineCommand>,
}

/// The receiving end of the two queues.
pub(crate) struct CommandReceiver {
    pub(crate) priority: Receiver<EngineCommand>,
    pub(crate) normal: Receiver<EngineCommand>,
}

impl CommandQueue {
    /// Two queues of `length` commands each.
    pub(crate) fn bounded(length: usize) -> (Self, CommandReceiver) {
        let (priority, priority_end) = bounded(length.max(1));
        let (normal, normal_end) = bounded(length.max(1));
        (Self { priority, normal }, CommandReceiver { priority: priority_end, normal: normal_end })
    }

    /// Waits while the queue is full. Commands to a stopped engine are dropped.
    pub(crate) fn send(&self, priority: bool, command: EngineCommand) {
        let queue = if priority { &self.priority } else { &self.normal };
        // An error means that the thread has ended.
        let _ = queue.send(command);
    }

    pub(crate) fn len(&self) -> usize {
        self.priority.len() + self.normal.len()
    }
}

impl CommandReceiver {
    /// A queued command, priority queue first, if there is one.
    pub(crate) fn try_next(&self) -> Option<EngineCommand> {
        self.priority.try_recv().or_else(|_| self.normal.try_recv()).ok()
    }
}
