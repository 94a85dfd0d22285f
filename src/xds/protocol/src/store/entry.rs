//! The content of a layer under one name.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sluice_model::{Resource, ResourceType, Scope, SlotValues, Template, Text};

use crate::chunked_map::ChunkedMap;
use crate::version::{Digest, Version};
use crate::wire;

/// The repeated field whose elements are segments, for each type that is assembled from segments; `None` if segments are
/// runs of the message with the tags of fields.
#[must_use]
pub fn segment_field(kind: ResourceType) -> Option<u8> {
    match kind {
        ResourceType::Endpoint => None,
        // `NameTable.table`, a map: its entries are encoded as elements.
        ResourceType::NameTable => Some(1),
        // `RouteConfiguration.virtual_hosts`.
        _ => Some(2),
    }
}

/// The content of a layer under one name: a whole resource or segments of one, rarely both.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerEntry {
    pub(crate) whole: Option<WholeResource>,
    pub(crate) segments: Option<Arc<LayerSegments>>,
}

impl LayerEntry {
    /// Whether the layer has nothing under the name.
    pub(crate) fn is_empty(&self) -> bool {
        self.whole.is_none() && self.segments.is_none()
    }

    /// Whether both have the same content; may return `false` for equal segments.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let segments = match (&self.segments, &other.segments) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        segments && self.whole.as_ref().map(WholeResource::version) == other.whole.as_ref().map(WholeResource::version)
    }

    /// Version and bytes, if they are the same for all scopes that see this layer's entry.
    pub(crate) fn shared(&self) -> Option<(Version, &Bytes)> {
        match (&self.whole, &self.segments) {
            (Some(WholeResource::Encoded { version, bytes }), None) => Some((*version, bytes)),
            _ => None,
        }
    }
}

/// A whole resource of a layer.
#[derive(Clone, Debug)]
pub(crate) enum WholeResource {
    Encoded { version: Version, bytes: Bytes },
    Template(Arc<SlottedTemplate>),
    Hidden,
}

/// A template with its version, so that the version for a proxy is known without filling the slots.
#[derive(Debug)]
pub(crate) struct SlottedTemplate {
    version: Version,
    template: Template,
    slots: BTreeSet<Text>,
}

impl SlottedTemplate {
    pub(crate) fn version_for(&self, slots: &SlotValues) -> Version {
        let mut version = self.version;
        for name in &self.slots {
            let value = slots.get(name).map_or(&[][..], |value| value);
            version = version.with(Version::of(value));
        }
        version
    }

    pub(crate) fn fill(&self, slots: &SlotValues) -> Bytes {
        self.template.fill(slots)
    }
}

impl WholeResource {
    pub(crate) fn new(resource: &Resource) -> Self {
        match resource {
            Resource::Encoded(bytes) => Self::Encoded { version: Version::of(bytes), bytes: bytes.clone() },
            Resource::Hidden => Self::Hidden,
            Resource::Template(template) => {
                let slots = template.slot_names();
                // Slots are filled with their own names, so templates that differ only in the position of a slot have
                // different versions.
                let marks = slots.iter().map(|name| (name.clone(), name.as_bytes().into())).collect();
                let version = Version::of(&template.fill(&marks)).with(Version::of(b"template"));
                Self::Template(Arc::new(SlottedTemplate { version, template: template.clone(), slots }))
            }
        }
    }

    /// The version without the slots' values; `None` if hidden.
    pub(crate) fn version(&self) -> Option<Version> {
        match self {
            Self::Encoded { version, .. } => Some(*version),
            Self::Template(template) => Some(template.version),
            Self::Hidden => None,
        }
    }

    pub(crate) fn version_for(&self, scope: &Scope) -> Option<Version> {
        match self {
            Self::Encoded { version, .. } => Some(*version),
            Self::Template(template) => Some(template.version_for(&scope.slots)),
            Self::Hidden => None,
        }
    }

    pub(crate) fn bytes_for(&self, scope: &Scope) -> Option<Bytes> {
        match self {
            Self::Encoded { bytes, .. } => Some(bytes.clone()),
            Self::Template(template) => Some(template.fill(&scope.slots)),
            Self::Hidden => None,
        }
    }
}

/// A segment: its bytes with their version, or `None` if hidden.
#[derive(Clone, Debug)]
pub(crate) struct EncodedSegment {
    pub(crate) content: Option<(Version, Bytes)>,
}

impl EncodedSegment {
    pub(crate) fn new(segment: &Resource) -> Self {
        // Segments have no slots.
        Self { content: segment.bytes(&SlotValues::new()).map(|bytes| (Version::of(&bytes), bytes)) }
    }

    /// Writes the segment, as an element if the type has a [`segment_field`]. The unnamed segment, which has the resource's
    /// other fields, is not written.
    pub(crate) fn put(field: Option<u8>, name: &Text, segment: &Self, out: &mut BytesMut) {
        let Some((_, bytes)) = segment.content.as_ref().filter(|_| !name.is_empty()) else { return };
        match field {
            Some(field) => wire::put_field(field, bytes, out),
            None => out.extend_from_slice(bytes),
        }
    }

    /// Size of what [`Self::put`] writes.
    pub(crate) fn put_len(&self, field: Option<u8>, name: &str) -> usize {
        match (&self.content, field) {
            (Some((_, bytes)), Some(_)) if !name.is_empty() => wire::field_len(bytes.len()),
            (Some((_, bytes)), None) if !name.is_empty() => bytes.len(),
            _ => 0,
        }
    }
}

/// The segments that a layer has of one resource.
#[derive(Debug, Default)]
pub(crate) struct LayerSegments {
    pub(crate) rows: ChunkedMap<EncodedSegment>,
    /// Digest of all segments that are not hidden, including the unnamed one.
    pub(crate) digest: Digest,
    /// Size of all segments as they are written, in bytes.
    pub(crate) element_bytes: usize,
}

impl LayerSegments {
    /// The segments with these set or removed; `changes` is sorted by name, each name once.
    pub(crate) fn apply(&self, kind: ResourceType, changes: Vec<(Text, Option<EncodedSegment>)>) -> Self {
        let field = segment_field(kind);
        let (mut digest, mut element_bytes) = (self.digest, self.element_bytes);
        for (name, segment) in &changes {
            if let Some((name, old)) = self.rows.get(name) {
                if let Some((version, _)) = &old.content {
                    digest.remove(name.as_bytes(), *version);
                }
                element_bytes -= old.put_len(field, name);
            }
            if let Some(segment) = segment {
                if let Some((version, _)) = &segment.content {
                    digest.add(name.as_bytes(), *version);
                }
                element_bytes += segment.put_len(field, name);
            }
        }
        Self { rows: self.rows.apply(changes), digest, element_bytes }
    }
}
