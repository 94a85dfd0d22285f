//! Resources to send.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use sluice_model::Text;
use sluice_proto::wire::put_field;

use super::entry::LayerEntry;
use super::layer_table::LayerTable;
use crate::chunked_map::Chunk;
use crate::version::{Digest, Version};

/// If at least one in this many rows of a chunk is sent, the whole chunk is encoded and shared.
const CHUNK_SHARE_DIVISOR: usize = 4;

/// A resource as a scope resolves it.
#[derive(Clone, Debug)]
pub struct ResolvedResource {
    /// Its name.
    pub name: Text,
    /// Its content version.
    pub version: Version,
    /// Its aliases; only set for a client that subscribes on demand.
    pub aliases: Vec<Text>,
    pub(crate) chunks: Vec<Bytes>,
}

impl ResolvedResource {
    /// A resource without aliases.
    pub(super) fn new(name: &Text, version: Version, chunks: Vec<Bytes>) -> Self {
        Self { name: name.clone(), version, aliases: Vec::new(), chunks }
    }

    /// The assignment of a cluster without endpoints.
    pub(crate) fn without_endpoints(cluster: &Text) -> Self {
        // Field number of `ClusterLoadAssignment.cluster_name`.
        const CLUSTER_NAME: u32 = 1;
        let mut encoded = Vec::new();
        put_field(CLUSTER_NAME, cluster.as_bytes(), &mut encoded);
        let encoded = Bytes::from(encoded);
        Self::new(cluster, Version::of(&encoded), vec![encoded])
    }

    /// The same resource and version with another encoded message.
    pub(crate) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { chunks: vec![bytes], ..self }
    }

    /// Size of the encoded message in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    /// Whether the encoded message has no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoded message.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self.chunks.as_slice() {
            [one] => one.clone(),
            chunks => chunks.concat().into(),
        }
    }
}

/// Resources to send: a range of a layer's chunk, whose encoded bytes all clients share, or a single resource.
#[derive(Clone, Debug)]
pub(crate) enum ResponseItem {
    Range { chunk: Arc<Chunk<LayerEntry>>, rows: Range<usize> },
    Single(ResolvedResource),
}

impl ResponseItem {
    /// Number of resources.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Range { rows, .. } => rows.len(),
            Self::Single(_) => 1,
        }
    }

    /// The resources one by one.
    pub(crate) fn into_resources(self) -> Vec<ResolvedResource> {
        match self {
            Self::Range { chunk, rows } => {
                chunk.rows().get(rows).unwrap_or_default().iter().filter_map(shared_resource).collect()
            }
            Self::Single(resource) => vec![resource],
        }
    }

    /// Digest of the resources' names and versions.
    pub(crate) fn digest(&self) -> Digest {
        match self {
            Self::Range { chunk, rows } => digest_of_rows(chunk, rows.clone()),
            Self::Single(resource) => {
                let mut digest = Digest::default();
                digest.add(resource.name.as_bytes(), resource.version);
                digest
            }
        }
    }

    /// Names and versions of the resources.
    pub(crate) fn versions(&self) -> Vec<(&Text, Version)> {
        match self {
            Self::Range { chunk, rows } => chunk
                .rows()
                .get(rows.clone())
                .unwrap_or_default()
                .iter()
                .filter_map(|(name, entry)| entry.shared().map(|(version, _)| (name, version)))
                .collect(),
            Self::Single(resource) => vec![(&resource.name, resource.version)],
        }
    }

    /// Appends ranges of a chunk, or their resources one by one if they are too few of the chunk.
    fn push_ranges(chunk: &Arc<Chunk<LayerEntry>>, ranges: Vec<Range<usize>>, items: &mut Vec<Self>) {
        let count: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        if count > 1 && count * CHUNK_SHARE_DIVISOR >= chunk.rows().len() {
            items.extend(ranges.into_iter().map(|rows| Self::Range { chunk: chunk.clone(), rows }));
            return;
        }
        let resources = ranges.into_iter().flat_map(|rows| &chunk.rows()[rows]).filter_map(shared_resource);
        items.extend(resources.map(Self::Single));
    }
}

/// Position of a row in a stack: table, chunk, row.
pub(super) type RowPosition = (usize, usize, usize);

/// Resources that are picked one by one, in order of their names.
#[derive(Default)]
pub(super) struct PickedResources {
    items: Vec<ResponseItem>,
    /// Ranges of rows, by table and chunk.
    rows: BTreeMap<(usize, usize), Vec<Range<usize>>>,
}

impl PickedResources {
    pub(super) fn add(&mut self, resource: ResolvedResource) {
        self.items.push(ResponseItem::Single(resource));
    }

    pub(super) fn add_row(&mut self, (table, chunk, row): RowPosition) {
        let ranges = self.rows.entry((table, chunk)).or_default();
        match ranges.last_mut() {
            Some(last) if last.end == row => last.end += 1,
            _ => ranges.push(row..row + 1),
        }
    }

    /// In as few items as possible. `tables` are those of the stack.
    pub(super) fn into_items(mut self, tables: &[Arc<LayerTable>]) -> Vec<ResponseItem> {
        for ((table, chunk), ranges) in self.rows {
            ResponseItem::push_ranges(&tables[table].chunks()[chunk], ranges, &mut self.items);
        }
        self.items
    }
}

/// The resource of a row, if it is the same for all scopes that see its layer.
fn shared_resource((name, entry): &(Text, LayerEntry)) -> Option<ResolvedResource> {
    let (version, bytes) = entry.shared()?;
    Some(ResolvedResource::new(name, version, vec![bytes.clone()]))
}

/// Digest of the names and versions of a chunk's rows.
pub(super) fn digest_of_rows(chunk: &Chunk<LayerEntry>, rows: Range<usize>) -> Digest {
    let of = |rows: &[(Text, LayerEntry)]| {
        let mut digest = Digest::default();
        for (name, entry) in rows {
            if let Some((version, _)) = entry.shared() {
                digest.add(name.as_bytes(), version);
            }
        }
        digest
    };
    let all = chunk.rows();
    if rows.len() == all.len() { chunk.digest(of) } else { of(all.get(rows).unwrap_or_default()) }
}
