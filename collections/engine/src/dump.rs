//! The listing of collections, and all records of one of them as JSON.

use std::collections::BTreeMap;

use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use crate::epoch::Epoch;
use crate::node::{CollectionNode, NodeId};
use crate::update::Row;
use crate::value::{Key, Value};

/// A collection or index, and what it derives from.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct CollectionInfo {
    /// Its name, unique in the engine.
    pub name: String,
    /// Its operation: `input`, `fixed`, `map`, `derive`, …
    pub kind: &'static str,
    /// Name of its dataflow.
    pub dataflow: String,
    /// Names of the collections and indexes that it reads.
    pub parents: Vec<String>,
    /// Facts attached by [`Collection::with_metadata`](crate::Collection::with_metadata).
    pub metadata: BTreeMap<String, String>,
    /// Whether snapshots and feeds contain it.
    pub published: bool,
    #[serde(skip)]
    pub(crate) node: NodeId,
    #[serde(skip)]
    pub(crate) slot: Option<usize>,
    #[serde(skip)]
    pub(crate) is_index: bool,
}

impl CollectionInfo {
    pub(crate) fn of(node: NodeId, nodes: &[CollectionNode], dataflows: &[String]) -> Self {
        let info = &nodes[node];
        Self {
            name: info.name.clone(),
            kind: info.kind,
            dataflow: dataflows[info.dataflow].clone(),
            parents: info.parents.iter().map(|parent| nodes[*parent].name.clone()).collect(),
            metadata: info.metadata.clone(),
            published: info.published.is_some(),
            node,
            slot: info.published,
            is_index: info.kind == "index",
        }
    }
}

/// All records of a collection at one epoch, sorted by key. Serialises to
/// `{collection, dataflow, epoch, inputs, kind, metadata, records: [{key, value}], synced}`.
pub struct Dump {
    pub(crate) info: CollectionInfo,
    pub(crate) epoch: Epoch,
    pub(crate) synced: bool,
    pub(crate) rows: Vec<Row>,
}

impl Dump {
    /// The collection.
    #[must_use]
    pub fn info(&self) -> &CollectionInfo {
        &self.info
    }

    /// The epoch of the records.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether every input that the collection reads has its initial state.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Number of records; of an index, number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The records as JSON, converted one at a time; of an index (index key, `[source key, row]`).
    pub fn records(&self) -> impl Iterator<Item = (serde_json::Value, serde_json::Value)> {
        self.rows.iter().map(|(key, value)| (key.json(), value.json()))
    }

    /// The keys, if they have this type.
    pub fn keys<K: Key>(&self) -> impl Iterator<Item = &K> {
        self.rows.iter().filter_map(|(key, _)| key.downcast())
    }

    /// The records of a collection whose keys and values have these types; none if it has others.
    pub fn typed<K: Key, V: Value>(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().filter_map(|(key, value)| Some((key.downcast()?, value.downcast()?)))
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
        out.serialize_field("records", &DumpRecords(&self.rows))?;
        out.serialize_field("synced", &self.synced)?;
        out.end()
    }
}

/// Rows that are converted to JSON one at a time, so that a large dump is never held as JSON.
struct DumpRecords<'a>(&'a [Row]);

impl Serialize for DumpRecords<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct DumpRecord {
            key: serde_json::Value,
            value: serde_json::Value,
        }
        let mut records = serializer.serialize_seq(Some(self.0.len()))?;
        for (key, value) in self.0 {
            records.serialize_element(&DumpRecord { key: key.json(), value: value.json() })?;
        }
        records.end()
    }
}
