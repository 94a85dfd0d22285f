//! A resource assembled from the segments of several layers.

use std::collections::BTreeSet;

use bytes::Bytes;
use sluice_model::{ResourceType, Text};

use super::entry::{EncodedSegment, LayerSegments, segment_field};
use crate::chunked_map::ChunkedMap;
use crate::version::{Digest, Version};
use crate::wire::ResponseBuffer;

/// The segments of several layers: all segments of the largest layer, with the changes that the other layers make.
pub(crate) struct Assembly<'a> {
    field: Option<u8>,
    /// The layer with the most segments.
    base: Option<&'a ChunkedMap<EncodedSegment>>,
    /// Segments of the other layers that take precedence, in order of their names.
    overrides: Vec<(&'a Text, &'a EncodedSegment)>,
    /// The unnamed segment: the resource's fields that are not segments.
    head: Option<Bytes>,
    digest: Digest,
    element_bytes: usize,
}

impl<'a> Assembly<'a> {
    /// A resource of this type. Layers are in order of precedence; there is at least one.
    pub(crate) fn new(kind: ResourceType, layers: &[&'a LayerSegments]) -> Self {
        let field = segment_field(kind);
        let (largest, base) = layers
            .iter()
            .enumerate()
            .max_by_key(|(at, layer)| (layer.rows.len(), std::cmp::Reverse(*at)))
            .map_or((0, None), |(at, layer)| (at, Some(*layer)));
        let (mut digest, mut element_bytes) =
            base.map_or((Digest::default(), 0), |base| (base.digest, base.element_bytes));
        let mut overrides: Vec<(&Text, &EncodedSegment)> = Vec::new();
        let mut overridden: BTreeSet<&Text> = BTreeSet::new();
        for (at, layer) in layers.iter().enumerate().filter(|(at, _)| *at != largest) {
            for (name, segment) in layer.rows.iter() {
                let below = base.and_then(|base| base.rows.get(name));
                // The base layer takes precedence over the layers after it.
                if (at > largest && below.is_some()) || !overridden.insert(name) {
                    continue;
                }
                if let Some((_, below)) = below {
                    element_bytes -= below.put_len(field, name);
                    if let Some((version, _)) = &below.content {
                        digest.remove(name.as_bytes(), *version);
                    }
                }
                element_bytes += segment.put_len(field, name);
                if let Some((version, _)) = &segment.content {
                    digest.add(name.as_bytes(), *version);
                }
                overrides.push((name, segment));
            }
        }
        overrides.sort_unstable_by_key(|(name, _)| *name);
        let head = layers.iter().find_map(|layer| layer.rows.get("")).and_then(|(_, segment)| segment.content.as_ref());
        let head = head.map(|(_, bytes)| bytes.clone());
        let base = base.map(|base| &base.rows);
        Self { field, base, overrides, head, digest, element_bytes }
    }

    /// The version; `None` if no layer has the unnamed segment, in which case the resource does not exist.
    pub(crate) fn version(&self) -> Option<Version> {
        self.head.as_ref().map(|_| self.digest.version())
    }

    /// The message in chunks: the unnamed segment, then the other segments in order of their names.
    pub(crate) fn chunks(&self) -> Vec<Bytes> {
        let mut buffer = ResponseBuffer::default();
        if let Some(head) = &self.head {
            buffer.push(head.clone());
        }
        let mut at = (0, 0);
        for (name, segment) in &self.overrides {
            let (chunk, row, exact) = self.base.map_or((0, 0, false), |base| base.lower_bound(name));
            self.push_base(at, (chunk, row), &mut buffer);
            buffer.write(|out| EncodedSegment::put(self.field, name, segment, out));
            at = (chunk, row + usize::from(exact));
        }
        self.push_base(at, (usize::MAX, 0), &mut buffer);
        debug_assert_eq!(
            buffer.len(),
            self.element_bytes + self.head.as_ref().map_or(0, Bytes::len),
            "the precomputed size is exact"
        );
        buffer.finish().collect()
    }

    /// Appends the base layer's segments from one position up to another.
    fn push_base(&self, from: (usize, usize), to: (usize, usize), buffer: &mut ResponseBuffer) {
        let chunks = self.base.map_or(&[][..], ChunkedMap::chunks);
        for (at, chunk) in chunks.iter().enumerate().take(to.0.saturating_add(1)).skip(from.0) {
            let start = if at == from.0 { from.1 } else { 0 };
            let end = if at == to.0 { to.1 } else { chunk.rows().len() };
            if start < end {
                let put = |name: &Text, segment: &EncodedSegment, out: &mut _| {
                    EncodedSegment::put(self.field, name, segment, out);
                };
                buffer.push(chunk.encoded(0, start..end, put));
            }
        }
    }
}
