//! A resource assembled from the segments of several layers.

use std::collections::BTreeSet;

use bytes::Bytes;
use sluice_model::{ResourceType, Text};

use super::entry::{Piece, Segments, element_len, segment_field};
use crate::xds::run::Run;
use crate::xds::version::{Digest, Version};
use crate::xds::wire::{Rope, put_field};

/// How the layers' segments go together: the layer with most of them in bulk, and what the others change of it.
pub(crate) struct Assembly<'a> {
    field: u8,
    bulk: Option<&'a Run<Piece>>,
    /// Segments of the other layers that win, in order of their names.
    winners: Vec<(&'a Text, &'a Piece)>,
    own_part: Option<Bytes>,
    digest: Digest,
    elements: usize,
}

impl<'a> Assembly<'a> {
    /// A resource of that type. Layers in order, the most special first; at least one.
    pub(crate) fn new(kind: ResourceType, layers: &[&'a Segments]) -> Self {
        let (most, bulk) = layers
            .iter()
            .enumerate()
            .max_by_key(|(at, layer)| (layer.run.len(), std::cmp::Reverse(*at)))
            .map_or((0, None), |(at, layer)| (at, Some(*layer)));
        let (mut digest, mut elements) = bulk.map_or((Digest::default(), 0), |bulk| (bulk.digest, bulk.elements));
        let mut winners: Vec<(&Text, &Piece)> = Vec::new();
        let mut seen: BTreeSet<&Text> = BTreeSet::new();
        for (at, layer) in layers.iter().enumerate().filter(|(at, _)| *at != most) {
            for (name, piece) in layer.run.iter() {
                let below = bulk.and_then(|bulk| bulk.run.get(name));
                // The bulk layer wins over those that come after it.
                if (at > most && below.is_some()) || !seen.insert(name) {
                    continue;
                }
                if let Some((_, below)) = below {
                    elements -= element_len(name, below);
                    if let Some((version, _)) = &below.content {
                        digest.remove(name.as_bytes(), *version);
                    }
                }
                elements += element_len(name, piece);
                if let Some((version, _)) = &piece.content {
                    digest.add(name.as_bytes(), *version);
                }
                winners.push((name, piece));
            }
        }
        winners.sort_unstable_by_key(|(name, _)| *name);
        let own_part = layers.iter().find_map(|layer| layer.run.get("")).and_then(|(_, piece)| piece.content.as_ref());
        let own_part = own_part.map(|(_, bytes)| bytes.clone());
        Self { field: segment_field(kind), bulk: bulk.map(|bulk| &bulk.run), winners, own_part, digest, elements }
    }

    /// The version; nothing if no layer has the resource's own part, so that there is no resource.
    pub(crate) fn version(&self) -> Option<Version> {
        self.own_part.as_ref().map(|_| self.digest.version())
    }

    /// The message: the resource's own part, then the segments in order of their names.
    pub(crate) fn pieces(&self) -> Vec<Bytes> {
        let mut rope = Rope::default();
        if let Some(own_part) = &self.own_part {
            rope.push(own_part.clone());
        }
        let mut at = (0, 0);
        for (name, piece) in &self.winners {
            let (chunk, row, exact) = self.bulk.map_or((0, 0, false), |bulk| bulk.lower_bound(name));
            self.stretch(at, (chunk, row), &mut rope);
            rope.write(|out| Piece::put(self.field, name, piece, out));
            at = (chunk, row + usize::from(exact));
        }
        self.stretch(at, (usize::MAX, 0), &mut rope);
        debug_assert_eq!(
            rope.len(),
            self.elements + self.own_part.as_ref().map_or(0, Bytes::len),
            "size is known before"
        );
        rope.finish().collect()
    }

    /// Adds the bulk's segments from one place up to another.
    fn stretch(&self, from: (usize, usize), to: (usize, usize), rope: &mut Rope) {
        let chunks = self.bulk.map_or(&[][..], Run::chunks);
        for (at, chunk) in chunks.iter().enumerate().take(to.0.saturating_add(1)).skip(from.0) {
            let start = if at == from.0 { from.1 } else { 0 };
            let end = if at == to.0 { to.1 } else { chunk.rows().len() };
            if start < end {
                rope.push(chunk.wire(0, start..end, |name, piece, out| Piece::put(self.field, name, piece, out)));
            }
        }
    }
}

/// Adds a resource in pieces as a length-delimited field.
pub(crate) fn put_pieces(field: u8, pieces: &[Bytes], rope: &mut Rope) {
    if let [one] = pieces
        && one.len() <= 4096
    {
        rope.write(|out| put_field(field, one, out));
        return;
    }
    let len = pieces.iter().map(Bytes::len).sum();
    rope.write(|out| crate::xds::wire::put_head(field, len, out));
    for piece in pieces {
        rope.push(piece.clone());
    }
}
