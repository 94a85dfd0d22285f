//! Sizes of resources that are assembled from segments: they are sent as a whole when one segment changes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::BytesMut;
use sluice_engine::Snapshot;
use sluice_model::{Layer, Resource, ResourceType, SegmentKey, SlotValues, Text};
use sluice_xds_protocol::segment_field;
use sluice_xds_protocol::wire::put_head;

use super::parts::OutputsByType;

/// Sizes of assembled resources in one state of the graph. What a layer has is counted once for all proxies.
pub(super) struct TableSizes<'a> {
    outputs: &'a OutputsByType,
    snapshot: &'a Snapshot,
    layers: BTreeMap<(ResourceType, Layer, Text), Rc<LayerTable>>,
}

/// The encoded sizes of the segments that a layer has of a table.
#[derive(Default)]
struct LayerTable {
    /// 0 for a hidden segment.
    by_segment: BTreeMap<Text, usize>,
    sum: usize,
}

impl<'a> TableSizes<'a> {
    pub(super) fn new(outputs: &'a OutputsByType, snapshot: &'a Snapshot) -> Self {
        Self { outputs, snapshot, layers: BTreeMap::new() }
    }

    /// The size of a table in bytes for proxies with these layers.
    pub(super) fn size(&mut self, kind: ResourceType, layers: &[Layer], name: &Text) -> usize {
        let tables: Vec<_> = layers.iter().map(|layer| self.layer(kind, layer, name)).collect();
        let mut tables: Vec<_> = tables.into_iter().filter(|table| !table.by_segment.is_empty()).collect();
        // The last layer has the most segments. Those above replace some of them.
        let Some(base) = tables.pop() else { return 0 };
        let (mut size, mut seen) = (base.sum, BTreeSet::new());
        for (segment, bytes) in tables.iter().flat_map(|table| &table.by_segment) {
            if seen.insert(segment) {
                size = size + bytes - base.by_segment.get(segment).copied().unwrap_or_default();
            }
        }
        size
    }

    fn layer(&mut self, kind: ResourceType, layer: &Layer, name: &Text) -> Rc<LayerTable> {
        let key = (kind, layer.clone(), name.clone());
        if let Some(known) = self.layers.get(&key) {
            return known.clone();
        }
        let first =
            SegmentKey { resource_type: kind, layer: layer.clone(), name: name.clone(), segment: Text::default() };
        let mut table = LayerTable::default();
        for of in self.outputs.segments_of(kind) {
            let rows = self.snapshot.iter_from(of, first.clone());
            let is_of = |key: &SegmentKey| key.resource_type == kind && key.name == *name && key.layer == *layer;
            for (key, segment) in rows.take_while(|(key, _)| is_of(key)) {
                let bytes = segment_size(kind, &key.segment, segment);
                table.sum += bytes;
                table.by_segment.insert(key.segment.clone(), bytes);
            }
        }
        let table = Rc::new(table);
        self.layers.insert(key, table.clone());
        table
    }
}

/// What a segment adds to the message.
fn segment_size(kind: ResourceType, name: &Text, segment: &Resource) -> usize {
    // Segments are never templates.
    let Some(bytes) = segment.bytes(&SlotValues::default()) else { return 0 };
    match segment_field(kind) {
        Some(field) if !name.is_empty() => {
            let mut head = BytesMut::new();
            put_head(field, bytes.len(), &mut head);
            head.len() + bytes.len()
        }
        _ => bytes.len(),
    }
}
