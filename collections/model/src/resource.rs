//! Encoded xDS resources: the outputs of the dataflow.

use std::fmt;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::{Layer, SlotValues, Template, Text};

/// The xDS resource types (X02).
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[allow(missing_docs, reason = "each variant is the type of that name")]
pub enum ResourceType {
    // In the push order of X11.
    Cluster,
    Endpoint,
    Listener,
    Route,
    VirtualHost,
    Secret,
    ExtensionConfig,
    NameTable,
    ProxyConfig,
    Address,
    Workload,
    Authorization,
}

impl ResourceType {
    /// Every type, in push order (X11).
    pub const ALL: [Self; 12] = [
        Self::Cluster,
        Self::Endpoint,
        Self::Listener,
        Self::Route,
        Self::VirtualHost,
        Self::Secret,
        Self::ExtensionConfig,
        Self::NameTable,
        Self::ProxyConfig,
        Self::Address,
        Self::Workload,
        Self::Authorization,
    ];

    /// The type URL of discovery requests.
    #[must_use]
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoint => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::VirtualHost => "type.googleapis.com/envoy.config.route.v3.VirtualHost",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::ExtensionConfig => "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
            Self::NameTable => "type.googleapis.com/istio.networking.nds.v1.NameTable",
            Self::ProxyConfig => "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig",
            Self::Address => "type.googleapis.com/istio.workload.Address",
            Self::Workload => "type.googleapis.com/istio.workload.Workload",
            Self::Authorization => "type.googleapis.com/istio.security.Authorization",
        }
    }

    /// The type with that URL.
    #[must_use]
    pub fn from_type_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == url)
    }

    /// Whether a client without named subscriptions gets all resources of the type (X09).
    #[must_use]
    pub const fn is_wildcard(self) -> bool {
        !matches!(self, Self::Endpoint | Self::Route | Self::VirtualHost | Self::Secret | Self::ExtensionConfig)
    }

    /// Whether a client subscribes by prefix: `80` for all resources named `80/…`.
    #[must_use]
    pub const fn is_by_prefix(self) -> bool {
        matches!(self, Self::VirtualHost)
    }
}

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

/// The encoded element, without the tag and length of the field; `Hidden` hides the segment of the layers below.
///
/// The segment with an empty name is the rest of the resource: every other field of the message. A resource exists in a
/// scope if a layer of the scope has that segment.
pub type Segment = Resource;
