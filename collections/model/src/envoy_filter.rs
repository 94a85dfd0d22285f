//! EnvoyFilters: patches of the generated configuration (T06).

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Attachment, Labels, ResourceType, Text, Timestamp, VersionPattern};

/// Name of the HTTP connection manager, in which patches change HTTP filters and routes.
pub const HTTP_CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";
/// Listener for redirected outbound traffic. A patch matches the port of its filter chains, not its own.
pub const VIRTUAL_OUTBOUND: &str = "virtualOutbound";
/// Listener for redirected inbound traffic. A patch matches the port of its filter chains, not its own.
pub const VIRTUAL_INBOUND: &str = "virtualInbound";

/// Parts of the configuration that patches apply to.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant is the part of that name")]
pub enum ApplyTo {
    Listener,
    FilterChain,
    NetworkFilter,
    HttpFilter,
    RouteConfiguration,
    VirtualHost,
    HttpRoute,
    Cluster,
    ExtensionConfig,
    ListenerFilter,
}

impl ApplyTo {
    /// Full name of its protobuf message.
    #[must_use]
    pub const fn message_name(self) -> &'static str {
        match self {
            Self::Listener => "envoy.config.listener.v3.Listener",
            Self::FilterChain => "envoy.config.listener.v3.FilterChain",
            Self::NetworkFilter => "envoy.config.listener.v3.Filter",
            Self::HttpFilter => "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter",
            Self::RouteConfiguration => "envoy.config.route.v3.RouteConfiguration",
            Self::VirtualHost => "envoy.config.route.v3.VirtualHost",
            Self::HttpRoute => "envoy.config.route.v3.Route",
            Self::Cluster => "envoy.config.cluster.v3.Cluster",
            Self::ExtensionConfig => "envoy.config.core.v3.TypedExtensionConfig",
            Self::ListenerFilter => "envoy.config.listener.v3.ListenerFilter",
        }
    }

    /// Whether values have an order among their siblings.
    #[must_use]
    pub const fn is_ordered(self) -> bool {
        matches!(self, Self::NetworkFilter | Self::HttpFilter | Self::HttpRoute | Self::ListenerFilter)
    }

    /// The types of resources that contain it. Inbound routes are also inside listeners.
    #[must_use]
    pub fn resource_types(self) -> &'static [ResourceType] {
        match self {
            Self::Listener | Self::FilterChain | Self::NetworkFilter | Self::HttpFilter | Self::ListenerFilter => {
                &[ResourceType::Listener]
            }
            Self::RouteConfiguration | Self::VirtualHost | Self::HttpRoute => {
                &[ResourceType::Listener, ResourceType::Route]
            }
            Self::Cluster => &[ResourceType::Cluster],
            Self::ExtensionConfig => &[ResourceType::ExtensionConfig],
        }
    }
}

/// The proxies and the traffic direction that a patch applies to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum PatchContext {
    /// All.
    #[default]
    Any,
    /// Inbound traffic of sidecars.
    SidecarInbound,
    /// Outbound traffic of sidecars.
    SidecarOutbound,
    /// Gateways.
    Gateway,
    /// Waypoints.
    Waypoint,
}

impl PatchContext {
    /// Whether a patch for `self` applies in `context`.
    #[must_use]
    pub fn covers(self, context: Self) -> bool {
        self == Self::Any || self == context
    }
}

/// Operation of a patch. An insertion without a match on a sibling adds the value.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum PatchOperation {
    /// The value is merged into the match; lists are extended.
    Merge,
    /// As `Merge`, but lists are replaced.
    MergeAndReplaceList,
    /// The value is added at the end.
    Add,
    /// The match is removed.
    Remove,
    /// The value is inserted before the match.
    InsertBefore,
    /// The value is inserted after the match.
    InsertAfter,
    /// The value is inserted at the front.
    InsertFirst,
    /// The value replaces the match.
    Replace,
}

impl PatchOperation {
    /// Whether it is one of the two merge operations.
    #[must_use]
    pub fn is_merge(self) -> bool {
        matches!(self, Self::Merge | Self::MergeAndReplaceList)
    }
}

/// Condition on the version of a proxy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum VersionMatch {
    /// No condition.
    #[default]
    Any,
    /// The version matches this regular expression.
    Matches(VersionPattern),
    /// No version matches: the expression cannot be used.
    Never,
}

/// Match on listeners and their content. Empty fields match everything.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ListenerMatch {
    /// Port; 0 is any.
    pub port: u32,
    /// Name.
    pub name: Text,
    /// Name of a listener filter.
    pub listener_filter: Text,
    /// Match on filter chains.
    pub chain: Option<FilterChainMatch>,
}

/// Match on filter chains and their content.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct FilterChainMatch {
    /// Name.
    pub name: Text,
    /// A server name of the chain.
    pub sni: Text,
    /// Transport protocol of the chain.
    pub transport_protocol: Text,
    /// Application protocols, separated by commas; the chain must have all of them.
    pub application_protocols: Text,
    /// Destination port of the chain; 0 is any.
    pub destination_port: u32,
    /// Match on a network filter.
    pub filter: Option<FilterMatch>,
}

/// Match on a network filter.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct FilterMatch {
    /// Name.
    pub name: Text,
    /// Name of an HTTP filter inside the network filter.
    pub sub_filter: Option<Text>,
}

/// Match on route tables and their content. Empty fields match everything.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RouteTableMatch {
    /// Name.
    pub name: Text,
    /// Port; 0 is any.
    pub port: u32,
    /// Name of the server port of a gateway.
    pub port_name: Text,
    /// The gateway, as `namespace/name`.
    pub gateway: Text,
    /// Match on virtual hosts.
    pub virtual_host: Option<VirtualHostMatch>,
}

/// Match on virtual hosts and their content.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct VirtualHostMatch {
    /// Name.
    pub name: Text,
    /// A domain of the virtual host.
    pub domain: Text,
    /// Match on routes.
    pub route: Option<RouteMatch>,
}

/// Match on routes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RouteMatch {
    /// Name.
    pub name: Text,
    /// Action of the route.
    pub action: RouteActionMatch,
}

/// Match on the action of a route.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum RouteActionMatch {
    /// Any action.
    #[default]
    Any,
    /// It routes to a cluster.
    Route,
    /// It redirects.
    Redirect,
    /// It sends a direct response.
    DirectResponse,
}

/// Match on clusters. Empty fields match everything.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ClusterMatch {
    /// Name; if it is set, the other fields are ignored.
    pub name: Text,
    /// Host of the service.
    pub service: Text,
    /// Subset.
    pub subset: Text,
    /// Port; 0 is any.
    pub port: u32,
}

/// Match of a patch.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ObjectMatch {
    /// Everything of its type.
    #[default]
    Any,
    /// In a listener.
    Listener(ListenerMatch),
    /// In a route table.
    RouteTable(RouteTableMatch),
    /// A cluster.
    Cluster(ClusterMatch),
}

/// An encoded message of the type that a patch applies to.
#[derive(Clone, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct PatchValue(pub Bytes);

impl fmt::Debug for PatchValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

// In base64.
impl Serialize for PatchValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for PatchValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(|bytes| Self(bytes.into())).map_err(D::Error::custom)
    }
}

/// One patch.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct EnvoyPatch {
    /// The part that it patches.
    pub apply_to: ApplyTo,
    /// The context it applies in.
    pub context: PatchContext,
    /// The versions of proxies it applies to.
    pub version: VersionMatch,
    /// Metadata that the proxy must have.
    pub metadata: Labels,
    /// The match.
    pub object: ObjectMatch,
    /// The operation.
    pub operation: PatchOperation,
    /// The value; empty for a removal.
    pub value: PatchValue,
}

/// An EnvoyFilter.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct EnvoyFilter {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older ones apply first.
    pub created: Timestamp,
    /// Lower ones apply first.
    pub priority: i32,
    /// Its target in its namespace, or in the whole mesh if that is the root namespace.
    pub attachment: Attachment,
    /// Its patches in order; `None` for an invalid patch, so that the others keep their positions.
    pub patches: Vec<Option<EnvoyPatch>>,
    /// Services that its patches refer to, as `[namespace/]host` (annotation
    /// `envoyfilter.istio.io/referenced-services`).
    pub referenced_services: BTreeSet<Text>,
}

impl EnvoyFilter {
    /// The expressions for versions in its patches.
    pub fn version_patterns(&self) -> impl Iterator<Item = &VersionPattern> {
        let patches = self.patches.iter().flatten();
        patches.filter_map(|patch| match &patch.version {
            VersionMatch::Matches(pattern) => Some(pattern),
            VersionMatch::Any | VersionMatch::Never => None,
        })
    }
}
