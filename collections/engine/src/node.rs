//! Facts about a collection or index: its name, its parents, and where its rows are.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::CollectionGauges;
use crate::operators::chunk::{ChunkRule, ChunkStateRef};
use crate::operators::lookup::{DeriveRule, DeriveStateRef};
use crate::operators::record::{KeyOwners, RecordTransform};
use crate::spines::{TraceCursor, TraceRef};
use crate::store::{IndexStoreRef, KeyedStoreRef};
use crate::update::Row;
use crate::value::Erased;

/// Number of a collection or index, in the order of building: parents before children.
pub(crate) type NodeId = usize;

/// A collection or index.
pub(crate) struct CollectionNode {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    /// Number of its dataflow.
    pub(crate) dataflow: usize,
    pub(crate) parents: Vec<NodeId>,
    pub(crate) gauges: Arc<CollectionGauges>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Its slot among the published collections, if it is published.
    pub(crate) published: Option<usize>,
    pub(crate) provenance: Provenance,
    pub(crate) store: Option<KeyedStoreRef>,
    pub(crate) groups: Option<IndexStoreRef>,
    /// The arrangement of its rows, if a differential operator has one.
    pub(crate) trace: Option<TraceRef>,
    /// The arrangement of the rows that a `group` reads.
    pub(crate) grouped: Option<TraceRef>,
    /// The transform of a record-by-record operator, and what it reads.
    pub(crate) transform: Option<(Rc<RecordTransform>, OperatorSource)>,
}

impl CollectionNode {
    pub(crate) fn new(
        (name, kind): (String, &'static str),
        dataflow: usize,
        parents: Vec<NodeId>,
        gauges: Arc<CollectionGauges>,
        provenance: Provenance,
    ) -> Self {
        Self {
            name,
            kind,
            dataflow,
            parents,
            gauges,
            metadata: BTreeMap::new(),
            published: None,
            provenance,
            store: None,
            groups: None,
            trace: None,
            grouped: None,
            transform: None,
        }
    }

    /// A cursor over its arrangement, if it has one.
    pub(crate) fn cursor(&self) -> Option<TraceCursor> {
        TraceCursor::of(self.trace.as_ref()?)
    }
}

/// The input of a record-by-record operator.
#[derive(Clone)]
pub(crate) enum OperatorSource {
    /// The records of its only parent.
    Parent,
    /// Pairs of the rows of two arrangements.
    Pairs([TraceRef; 2], fn(&Erased, &Erased, &Erased) -> Row),
}

/// How the keys of an operator's output relate to the records of its parents.
pub(crate) enum Provenance {
    /// Written from outside: the number of the input.
    Input(usize),
    /// The same key of every parent.
    SameKey,
    /// A record of the only parent; its key is recorded.
    Renamed(KeyOwners),
    /// The rows of an index: keys of the index's parent.
    IndexRows,
    /// The rows of the only parent, an index, under the same key.
    Grouped,
    /// The records of a chunk of the only parent.
    Chunked(Rc<ChunkRule>, ChunkStateRef),
    /// The same key of the first parent, and its group in the second: the group of a key.
    Restricted(Rc<dyn Fn(&Erased) -> Erased>),
    /// A row of the first parent, an index, with the record of the second; (index key, source key) is recorded.
    JoinedRows(KeyOwners),
    /// The look-ups of the closure.
    Derived {
        /// The operator's state.
        state: DeriveStateRef,
        /// The closure with its dependencies.
        rule: Rc<DeriveRule>,
        /// Output key to key of the primary record, if the operator changes keys.
        owners: Option<KeyOwners>,
    },
}

impl Provenance {
    pub(crate) fn owners(&self) -> Option<KeyOwners> {
        match self {
            Self::Renamed(owners) | Self::JoinedRows(owners) => Some(owners.clone()),
            Self::Derived { owners, .. } => owners.clone(),
            Self::Input(_)
            | Self::SameKey
            | Self::IndexRows
            | Self::Grouped
            | Self::Chunked(..)
            | Self::Restricted(_) => None,
        }
    }
}
