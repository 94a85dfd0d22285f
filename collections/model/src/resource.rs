//! Encoded xDS resources: the outputs of the dataflow.

use std::fmt;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::{Layer, ResourceType, SlotValues, Template, Text};

/// Key of an encoded resource.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ResourceKey {
    /// Its type.
    pub resource_type: ResourceType,
    /// The layer that it belongs to.
    pub layer: Layer,
    /// Its name in xDS.
    pub name: Text,
}

/// An encoded resource, or the fact that a layer hides the resources of that name in the layers below it.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum Resource {
    /// Protobuf bytes of the message.
    Encoded(Bytes),
    /// The message with slots, filled from the scope of a proxy. Only whole resources are templates, never segments.
    Template(Template),
    /// Not visible, also if a lower layer has the resource.
    Hidden,
}

impl Resource {
    /// The bytes for a proxy with these slot values; `None` if the resource is hidden.
    #[must_use]
    pub fn bytes(&self, slots: &SlotValues) -> Option<Bytes> {
        match self {
            Self::Encoded(bytes) => Some(bytes.clone()),
            Self::Template(template) => Some(template.fill(slots)),
            Self::Hidden => None,
        }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encoded(bytes) => write!(f, "Encoded({} bytes)", bytes.len()),
            Self::Template(template) => fmt::Debug::fmt(template, f),
            Self::Hidden => f.write_str("Hidden"),
        }
    }
}

// Only the size: the config dump decodes and redacts the content by its type.
impl Serialize for Resource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

/// Key of a segment: one element of a repeated field of a large resource.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SegmentKey {
    /// Type of the whole resource.
    pub resource_type: ResourceType,
    /// The layer that the segment belongs to.
    pub layer: Layer,
    /// Name of the whole resource, such as the route table `80`.
    pub name: Text,
    /// Name of the segment within the resource, such as that of a virtual host. Segments are in the order of this name.
    pub segment: Text,
}

/// The encoded element, without the tag and length of the field; `Hidden` hides the segment of the layers below. Segments
/// of endpoint assignments are runs of the encoded message.
///
/// The segment with an empty name is the rest of the resource: every other field of the message. A resource exists in a
/// scope if a layer of the scope has that segment.
pub type Segment = Resource;
