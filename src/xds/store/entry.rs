//! What a layer says of one name.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sluice_model::{Resource, ResourceType, Scope, SlotValues, Template, Text};

use crate::xds::run::Run;
use crate::xds::version::{Digest, Version};
use crate::xds::wire;

/// The field whose elements are segments, of each type that is assembled.
pub(crate) fn segment_field(kind: ResourceType) -> u8 {
    match kind {
        // `NameTable.table`, a map: its entries are elements like any other.
        ResourceType::NameTable => 1,
        // `RouteConfiguration.virtual_hosts`.
        _ => 2,
    }
}

/// What a layer says of one name: a whole resource, or segments of one, seldom both.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) whole: Option<Whole>,
    pub(crate) segments: Option<Arc<Segments>>,
}

impl Entry {
    /// Whether the layer says nothing of the name any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.whole.is_none() && self.segments.is_none()
    }

    /// Whether both say the same; may err towards no.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let segments = match (&self.segments, &other.segments) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        segments && self.whole.as_ref().map(Whole::version) == other.whole.as_ref().map(Whole::version)
    }

    /// The bytes, if they are the same for every scope that sees this layer's word on the name.
    pub(crate) fn shared(&self) -> Option<(Version, &Bytes)> {
        match (&self.whole, &self.segments) {
            (Some(Whole::Encoded { version, bytes }), None) => Some((*version, bytes)),
            _ => None,
        }
    }
}

/// A whole resource of a layer.
#[derive(Clone, Debug)]
pub(crate) enum Whole {
    Encoded { version: Version, bytes: Bytes },
    Template(Arc<SlottedTemplate>),
    Hidden,
}

/// A template with what is needed to know its version for a proxy without filling it.
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

impl Whole {
    pub(crate) fn new(resource: &Resource) -> Self {
        match resource {
            Resource::Encoded(bytes) => Self::Encoded { version: Version::of(bytes), bytes: bytes.clone() },
            Resource::Hidden => Self::Hidden,
            Resource::Template(template) => {
                let slots = template.slot_names();
                // Slots filled with their own names tell templates apart that differ only in where a slot is.
                let marks = slots.iter().map(|name| (name.clone(), name.as_bytes().into())).collect();
                let version = Version::of(&template.fill(&marks)).with(Version::of(b"template"));
                Self::Template(Arc::new(SlottedTemplate { version, template: template.clone(), slots }))
            }
        }
    }

    /// The version apart from slots; nothing if hidden.
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

/// A segment: its bytes with their version, or hidden.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) content: Option<(Version, Bytes)>,
}

impl Piece {
    pub(crate) fn new(segment: &Resource) -> Self {
        // A segment has no slots of its own: what it would fill is nothing.
        Self { content: segment.bytes(&SlotValues::new()).map(|bytes| (Version::of(&bytes), bytes)) }
    }

    /// Writes the segment as an element of that field; the resource's own part is not one.
    pub(crate) fn put(field: u8, name: &Text, piece: &Self, out: &mut BytesMut) {
        if !name.is_empty()
            && let Some((_, bytes)) = &piece.content
        {
            wire::put_field(field, bytes, out);
        }
    }
}

/// The segments that a layer has of one resource.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    pub(crate) run: Run<Piece>,
    /// Of all that are not hidden, the resource's own part included.
    pub(crate) digest: Digest,
    /// Bytes of all elements with tag and length.
    pub(crate) elements: usize,
}

impl Segments {
    /// The segments with these set or removed; `changes` is sorted by name, each name once.
    pub(crate) fn apply(&self, changes: Vec<(Text, Option<Piece>)>) -> Self {
        let (mut digest, mut elements) = (self.digest, self.elements);
        for (name, piece) in &changes {
            if let Some((name, old)) = self.run.get(name) {
                if let Some((version, _)) = &old.content {
                    digest.remove(name.as_bytes(), *version);
                }
                elements -= element_len(name, old);
            }
            if let Some(piece) = piece {
                if let Some((version, _)) = &piece.content {
                    digest.add(name.as_bytes(), *version);
                }
                elements += element_len(name, piece);
            }
        }
        Self { run: self.run.apply(changes), digest, elements }
    }
}

/// Size of the segment as an element of its field.
pub(crate) fn element_len(name: &str, piece: &Piece) -> usize {
    match &piece.content {
        Some((_, bytes)) if !name.is_empty() => wire::field_len(bytes.len()),
        _ => 0,
    }
}
