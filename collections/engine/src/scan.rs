//! Reading a whole collection while the engine runs: frozen rows where there are any, slices of work where not.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam_channel::{Sender, TrySendError};

use crate::derive::Entry;
use crate::flow::{Feedstock, Node, NodeId};
use crate::input::{Source, SourceRow};
use crate::output::Epoch;
use crate::rows::{self, Frozen};
use crate::spines::{Row, TraceCursor};
use crate::store::Group;
use crate::transform::Transform;
use crate::value::Dyn;
use crate::why::Provenance;

/// Rows a slice handles before commands get their turn.
const SLICE_ROWS: usize = 2_000;

/// A part of the answer to a dump request.
pub(crate) enum Part {
    Rows(Vec<Row>),
    End(Epoch),
}

/// Reads the rows a collection has at the moment of its making.
pub(crate) enum Scan {
    Frozen(VecDeque<Shard>),
    Trace(TraceCursor),
    Pairs { left: TraceCursor, right: TraceCursor, pair: fn(&Dyn, &Dyn, &Dyn) -> Row },
    Expand { input: Box<Scan>, transform: Rc<Transform> },
    Empty,
}

/// A part of frozen rows.
pub(crate) enum Shard {
    Plain(Arc<rows::Shard<Dyn>>),
    Source(Arc<rows::Shard<SourceRow>>),
    Derived(Arc<rows::Shard<Entry>>),
    Groups(Arc<rows::Shard<Group>>),
}

fn frozen<T>(rows: Frozen<T>, shard: fn(Arc<rows::Shard<T>>) -> Shard) -> Scan {
    Scan::Frozen(rows.shards.into_iter().map(shard).collect())
}

impl Shard {
    fn rows(&self, out: &mut Vec<Row>) {
        let pair = |key: &Dyn, value: &Dyn| (key.clone(), value.clone());
        match self {
            Self::Plain(rows) => out.extend(rows.iter().map(|(key, value)| pair(key, value))),
            Self::Source(rows) => out.extend(rows.iter().map(|(key, row)| pair(key, &row.value))),
            Self::Derived(rows) => rows.iter().for_each(|(key, entry)| entry.made(key, |row| out.push(row))),
            Self::Groups(rows) => out
                .extend(rows.iter().flat_map(|(key, group)| group.iter().map(|(k, r)| (key.clone(), Dyn::pair(k, r))))),
        }
    }
}

impl Scan {
    /// The rows of `node` now. Where they are kept nowhere they are made again from its parents.
    pub(crate) fn of(node: NodeId, nodes: &[Node], sources: &[Source]) -> Self {
        let it = &nodes[node];
        if let Provenance::Source(source) = it.provenance {
            return frozen(sources[source].rows.freeze(), Shard::Source);
        }
        if let Some(store) = &it.store {
            return frozen(store.borrow().rows.freeze(), Shard::Plain);
        }
        if let Provenance::Derived { derived, .. } = &it.provenance {
            return frozen(derived.borrow().entries.freeze(), Shard::Derived);
        }
        if let Some(groups) = &it.groups {
            return frozen(groups.borrow().rows.freeze(), Shard::Groups);
        }
        if let Some(cursor) = it.cursor() {
            return Self::Trace(cursor);
        }
        match &it.transform {
            Some((transform, Feedstock::Parent)) => {
                let input = Box::new(Self::of(it.parents[0], nodes, sources));
                Self::Expand { input, transform: transform.clone() }
            }
            Some((transform, Feedstock::Pairs([left, right], pair))) => {
                let cursors = (TraceCursor::of(left), TraceCursor::of(right));
                let (Some(left), Some(right)) = cursors else { return Self::Empty };
                let input = Box::new(Self::Pairs { left, right, pair: *pair });
                Self::Expand { input, transform: transform.clone() }
            }
            // What is left is an import: the same rows as its export.
            None => it.parents.first().map_or(Self::Empty, |parent| Self::of(*parent, nodes, sources)),
        }
    }

    /// Adds about `limit` more rows; false when there are no more.
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
                let (mut rows, mut found) = (Vec::new(), Vec::new());
                let more = left.next_rows(limit, &mut rows);
                for (key, row) in rows {
                    right.seek(&key, &mut found);
                    out.extend(found.drain(..).map(|other| pair(&key, &row, &other)));
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
            Self::Empty => false,
        }
    }
}

/// A dump in progress on the dataflow thread.
pub(crate) struct Job {
    scan: Scan,
    epoch: Epoch,
    reply: Sender<Part>,
    unsent: Option<Part>,
    done: bool,
}

impl Job {
    pub(crate) fn new(scan: Scan, epoch: Epoch, reply: Sender<Part>) -> Self {
        Self { scan, epoch, reply, unsent: None, done: false }
    }

    /// Does one slice; false when there is nothing left to do, or nobody to do it for.
    pub(crate) fn work(&mut self) -> bool {
        let part = match self.unsent.take() {
            Some(part) => part,
            None if self.done => Part::End(self.epoch),
            None => {
                let mut rows = Vec::new();
                self.done = !self.scan.next(SLICE_ROWS, &mut rows);
                Part::Rows(rows)
            }
        };
        let last = matches!(part, Part::End(_));
        match self.reply.try_send(part) {
            Ok(()) => !last,
            // The reader is busy; the dataflow thread waits for nobody.
            Err(TrySendError::Full(part)) => {
                self.unsent = Some(part);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }

    /// Whether the reader has to catch up first.
    pub(crate) fn is_waiting(&self) -> bool {
        self.unsent.is_some()
    }
}
