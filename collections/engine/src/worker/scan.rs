//! Dumps of a collection while the engine runs: frozen rows where the engine keeps rows, slices between epochs
//! elsewhere.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam_channel::{Sender, TrySendError};

use crate::command::DumpChunk;
use crate::epoch::Epoch;
use crate::input_state::{InputRow, InputState};
use crate::node::{CollectionNode, NodeId, OperatorSource, Provenance};
use crate::operators::lookup::DeriveEntry;
use crate::operators::record::RecordTransform;
use crate::rows::{FrozenRows, RowShard};
use crate::spines::TraceCursor;
use crate::store::IndexRows;
use crate::update::Row;
use crate::value::Erased;

/// Rows of a dump that are read between two epochs.
const ROWS_PER_SLICE: usize = 2_000;

/// Reads the rows that a collection has when the scan is made.
pub(super) enum Scan {
    Frozen(VecDeque<FrozenShard>),
    Trace(TraceCursor),
    Pairs {
        left: TraceCursor,
        right: TraceCursor,
        pair: fn(&Erased, &Erased, &Erased) -> Row,
    },
    Expand {
        input: Box<Scan>,
        transform: Rc<RecordTransform>,
    },
    /// The rows of several collections.
    Several(VecDeque<Scan>),
    Empty,
}

/// A shard of frozen rows.
pub(super) enum FrozenShard {
    Plain(Arc<RowShard<Erased>>),
    Input(Arc<RowShard<InputRow>>),
    Derived(Arc<RowShard<DeriveEntry>>),
    Groups(Arc<RowShard<IndexRows>>),
}

fn frozen<T>(rows: FrozenRows<T>, shard: fn(Arc<RowShard<T>>) -> FrozenShard) -> Scan {
    Scan::Frozen(rows.shards.into_iter().map(shard).collect())
}

impl FrozenShard {
    fn rows(&self, out: &mut Vec<Row>) {
        let pair = |key: &Erased, value: &Erased| (key.clone(), value.clone());
        match self {
            Self::Plain(rows) => out.extend(rows.iter().map(|(key, value)| pair(key, value))),
            Self::Input(rows) => out.extend(rows.iter().map(|(key, row)| pair(key, &row.value))),
            Self::Derived(rows) => rows.iter().for_each(|(key, entry)| entry.each_row(key, |row| out.push(row))),
            Self::Groups(rows) => out.extend(
                rows.iter().flat_map(|(key, group)| group.iter().map(|(k, r)| (key.clone(), Erased::pair(k, r)))),
            ),
        }
    }
}

impl Scan {
    /// A scan of the current rows of `node`. Rows that are not stored are computed again from the parents.
    pub(super) fn of(node: NodeId, nodes: &[CollectionNode], inputs: &[InputState]) -> Self {
        let it = &nodes[node];
        if let Provenance::Input(input) = it.provenance {
            return frozen(inputs[input].rows.freeze(), FrozenShard::Input);
        }
        if let Some(store) = &it.store {
            return frozen(store.borrow().rows.freeze(), FrozenShard::Plain);
        }
        if let Provenance::Derived { state, .. } = &it.provenance {
            return frozen(state.borrow().entries.freeze(), FrozenShard::Derived);
        }
        if let Some(groups) = &it.groups {
            return frozen(groups.borrow().rows.freeze(), FrozenShard::Groups);
        }
        if let Some(cursor) = it.cursor() {
            return Self::Trace(cursor);
        }
        match &it.transform {
            Some((transform, OperatorSource::Parent)) => {
                let input = Box::new(Self::of(it.parents[0], nodes, inputs));
                Self::Expand { input, transform: transform.clone() }
            }
            Some((transform, OperatorSource::Pairs([left, right], pair))) => {
                let cursors = (TraceCursor::of(left), TraceCursor::of(right));
                let (Some(left), Some(right)) = cursors else { return Self::Empty };
                let input = Box::new(Self::Pairs { left, right, pair: *pair });
                Self::Expand { input, transform: transform.clone() }
            }
            // A union that keeps no rows.
            None if matches!(it.provenance, Provenance::SameKey) => {
                Self::Several(it.parents.iter().map(|parent| Self::of(*parent, nodes, inputs)).collect())
            }
            // Every other node has one of the above.
            None => Self::Empty,
        }
    }

    /// Appends about `limit` more rows. False when there are no more.
    fn next(&mut self, limit: usize, out: &mut Vec<Row>) -> bool {
        match self {
            Self::Frozen(shards) => {
                while out.len() < limit {
                    let Some(shard) = shards.pop_front() else { return false };
                    shard.rows(out);
                }
                true
            }
            Self::Trace(cursor) => cursor.next_rows(limit, out),
            Self::Pairs { left, right, pair } => {
                let (mut rows, mut others) = (Vec::new(), Vec::new());
                let more = left.next_rows(limit, &mut rows);
                for (key, row) in rows {
                    right.seek(&key, &mut others);
                    out.extend(others.drain(..).map(|other| pair(&key, &row, &other)));
                }
                more
            }
            Self::Expand { input, transform } => {
                let mut rows = Vec::new();
                let more = input.next(limit, &mut rows);
                for (key, value) in &rows {
                    transform.outputs(key, value, out);
                }
                more
            }
            Self::Several(scans) => {
                while out.len() < limit {
                    let Some(scan) = scans.front_mut() else { return false };
                    if !scan.next(limit, out) {
                        scans.pop_front();
                    }
                }
                true
            }
            Self::Empty => false,
        }
    }
}

/// A dump in progress.
pub(super) struct DumpJob {
    scan: Scan,
    epoch: Epoch,
    reply: Sender<DumpChunk>,
    unsent: Option<DumpChunk>,
    done: bool,
}

impl DumpJob {
    pub(super) fn new(scan: Scan, epoch: Epoch, reply: Sender<DumpChunk>) -> Self {
        Self { scan, epoch, reply, unsent: None, done: false }
    }

    /// Reads and sends one slice. False when the dump is complete or its reader has ended.
    pub(super) fn run_slice(&mut self) -> bool {
        let chunk = match self.unsent.take() {
            Some(chunk) => chunk,
            None if self.done => DumpChunk::End(self.epoch),
            None => {
                let mut rows = Vec::new();
                self.done = !self.scan.next(ROWS_PER_SLICE, &mut rows);
                DumpChunk::Rows(rows)
            }
        };
        let last = matches!(chunk, DumpChunk::End(_));
        match self.reply.try_send(chunk) {
            Ok(()) => !last,
            // The reader is slow; the dataflow thread does not wait for it.
            Err(TrySendError::Full(chunk)) => {
                self.unsent = Some(chunk);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }

    /// Whether a chunk waits for the reader.
    pub(super) fn is_blocked(&self) -> bool {
        self.unsent.is_some()
    }
}
