//! Every collection by name, its place in the graph, and all its records as JSON, while the engine runs.

use std::collections::BTreeMap;

use crossbeam_channel::bounded;
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use crate::engine::Engine;
use crate::flow::{Node, NodeId};
use crate::output::Epoch;
use crate::scan::Part;
use crate::spines::Row;
use crate::worker::Command;

/// A collection or index, and what it derives from.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct CollectionInfo {
    /// Its name, unique in the engine.
    pub name: String,
    /// How it was made: `input`, `fixed`, `import`, `map`, `derive` ...
    pub kind: &'static str,
    /// Name of the dataflow it lives in.
    pub dataflow: String,
    /// Names of the collections and indexes it reads.
    pub parents: Vec<String>,
    /// Facts attached by [`Collection::with_metadata`](crate::Collection::with_metadata).
    pub metadata: BTreeMap<String, String>,
    /// Whether snapshots and feeds carry it.
    pub published: bool,
    #[serde(skip)]
    pub(crate) node: NodeId,
    #[serde(skip)]
    pub(crate) slot: Option<usize>,
    #[serde(skip)]
    pub(crate) is_index: bool,
}

impl CollectionInfo {
    pub(crate) fn of(node: NodeId, nodes: &[Node], flows: &[String]) -> Self {
        let it = &nodes[node];
        Self {
            name: it.name.clone(),
            kind: it.kind,
            dataflow: flows[it.flow].clone(),
            parents: it.parents.iter().map(|parent| nodes[*parent].name.clone()).collect(),
            metadata: it.metadata.clone(),
            published: it.published.is_some(),
            node,
            slot: it.published,
            is_index: it.kind == "index",
        }
    }
}

/// All records of a collection at one epoch, sorted by key. Serialises to
/// `{collection, dataflow, epoch, inputs, kind, metadata, records: [{key, value}], synced}`.
pub struct Dump {
    info: CollectionInfo,
    epoch: Epoch,
    synced: bool,
    rows: Vec<Row>,
}

impl Dump {
    /// What was dumped.
    #[must_use]
    pub fn info(&self) -> &CollectionInfo {
        &self.info
    }

    /// The epoch it shows.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Number of records; an index counts rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The records as JSON, one at a time; of an index (index key, `[source key, row]`).
    pub fn records(&self) -> impl Iterator<Item = (serde_json::Value, serde_json::Value)> {
        self.rows.iter().map(|(key, value)| (key.json(), value.json()))
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }
}

impl std::fmt::Debug for Dump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dump({}, {} records, {:?})", self.info.name, self.rows.len(), self.epoch)
    }
}

impl Serialize for Dump {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Dump", 8)?;
        out.serialize_field("collection", &self.info.name)?;
        out.serialize_field("dataflow", &self.info.dataflow)?;
        out.serialize_field("epoch", &self.epoch)?;
        out.serialize_field("inputs", &self.info.parents)?;
        out.serialize_field("kind", self.info.kind)?;
        out.serialize_field("metadata", &self.info.metadata)?;
        out.serialize_field("records", &Records(&self.rows))?;
        out.serialize_field("synced", &self.synced)?;
        out.end()
    }
}

/// Rows, each made into JSON only when its turn comes.
struct Records<'a>(&'a [Row]);

impl Serialize for Records<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Record {
            key: serde_json::Value,
            value: serde_json::Value,
        }
        let mut records = serializer.serialize_seq(Some(self.0.len()))?;
        for (key, value) in self.0 {
            records.serialize_element(&Record { key: key.json(), value: value.json() })?;
        }
        records.end()
    }
}

impl Engine {
    /// Every collection and index, parents before children.
    #[must_use]
    pub fn graph(&self) -> &[CollectionInfo] {
        self.infos()
    }

    /// All records of the collection or index of that name, as of one epoch; `None` when there is no such name or the
    /// engine has stopped. Works while the engine runs: frozen or published rows are read on this thread, others in
    /// slices between epochs.
    #[must_use]
    pub fn dump(&self, name: &str) -> Option<Dump> {
        let info = self.infos().iter().find(|info| info.name == name)?.clone();
        if let Some(slot) = info.slot {
            let snapshot = self.snapshot();
            let rows = snapshot.map(slot)?.iter().map(|(key, record)| (key.0.clone(), record.value.clone())).collect();
            return Some(Dump { epoch: snapshot.epoch(), synced: snapshot.node_synced(info.node), info, rows });
        }
        // Room for a few slices, so that neither side waits for the other each time.
        let (reply, parts) = bounded(4);
        self.tell(Command::Dump(info.node, reply));
        let mut rows = Vec::new();
        let epoch = loop {
            match parts.recv().ok()? {
                Part::Rows(mut more) => rows.append(&mut more),
                Part::End(epoch) => break epoch,
            }
        };
        rows.sort_unstable_by(|a, b| a.0.by_content(&b.0).then_with(|| a.1.by_content(&b.1)));
        if !info.is_index {
            // Of several claims to a key the smallest wins, here as everywhere.
            rows.dedup_by(|later, first| later.0 == first.0);
        }
        Some(Dump { epoch, synced: self.snapshot().node_synced(info.node), info, rows })
    }
}
