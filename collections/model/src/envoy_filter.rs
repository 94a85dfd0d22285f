//! EnvoyFilters: patches of what proxies are sent (T06).

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::{Attachment, Labels, ResourceType, Text, Timestamp};

/// Parts of the configuration of proxies that can be patched.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
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
    /// Full name of its message.
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

    /// Whether values have places among their siblings.
    #[must_use]
    pub const fn is_ordered(self) -> bool {
        matches!(self, Self::NetworkFilter | Self::HttpFilter | Self::HttpRoute | Self::ListenerFilter)
    }

    /// The resources it is a part of. Routes of a workload's own ports are in its listeners besides.
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

/// On which side of which proxies a patch applies.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum PatchContext {
    /// Everywhere.
    #[default]
    Any,
    /// What a sidecar has for its own workload.
    SidecarInbound,
    /// What a sidecar has for its workload's clients.
    SidecarOutbound,
    /// Gateways.
    Gateway,
    /// Waypoints.
    Waypoint,
}

impl PatchContext {
    /// Whether a patch for `self` concerns what is made in `context`.
    #[must_use]
    pub fn covers(self, context: Self) -> bool {
        self == Self::Any || self == context
    }
}

/// What is done. Where an insertion has no place to go by, it adds.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum PatchOperation {
    /// The value is laid over what matches; lists grow.
    Merge,
    /// The same, but lists are replaced.
    MergeAndReplaceList,
    /// The value is added at the end.
    Add,
    /// What matches goes.
    Remove,
    /// The value goes before what matches.
    InsertBefore,
    /// The value goes behind what matches.
    InsertAfter,
    /// The value goes to the front.
    InsertFirst,
    /// The value takes the place of what matches.
    Replace,
}

impl PatchOperation {
    /// Whether it merges, in one way or the other.
    #[must_use]
    pub fn is_merge(self) -> bool {
        matches!(self, Self::Merge | Self::MergeAndReplaceList)
    }
}

/// The version of a proxy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum VersionMatch {
    /// Any, and none.
    #[default]
    Any,
    /// One that this expression is found in.
    Matches(Text),
    /// None: the expression is too long to be tried.
    Never,
}

/// Which listeners, and what in them. Empty fields match everything.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerMatch {
    /// Port; 0 is any.
    pub port: u32,
    /// Name.
    pub name: Text,
    /// A listener filter.
    pub listener_filter: Text,
    /// Filter chains.
    pub chain: Option<FilterChainMatch>,
}

/// Which filter chains, and what in them.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct FilterChainMatch {
    /// Name.
    pub name: Text,
    /// One of its server names.
    pub sni: Text,
    /// Its transport protocol.
    pub transport_protocol: Text,
    /// Application protocols, with commas; it has all of them.
    pub application_protocols: Text,
    /// Its destination port; 0 is any.
    pub destination_port: u32,
    /// A network filter.
    pub filter: Option<FilterMatch>,
}

/// A network filter.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct FilterMatch {
    /// Name.
    pub name: Text,
    /// The name of an HTTP filter within.
    pub sub_filter: Option<Text>,
}

/// Which route tables, and what in them. Empty fields match everything.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct RouteTableMatch {
    /// Name.
    pub name: Text,
    /// Port; 0 is any.
    pub port: u32,
    /// Name of the port of a gateway's server.
    pub port_name: Text,
    /// The gateway, as `namespace/name`.
    pub gateway: Text,
    /// Virtual hosts.
    pub virtual_host: Option<VirtualHostMatch>,
}

/// Which virtual hosts, and what in them.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct VirtualHostMatch {
    /// Name.
    pub name: Text,
    /// One of its domains.
    pub domain: Text,
    /// Routes.
    pub route: Option<RouteMatch>,
}

/// Which routes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct RouteMatch {
    /// Name.
    pub name: Text,
    /// What they do.
    pub action: RouteActionMatch,
}

/// What a route does.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum RouteActionMatch {
    /// Anything.
    #[default]
    Any,
    /// It leads to a cluster.
    Route,
    /// It redirects.
    Redirect,
    /// It answers itself.
    DirectResponse,
}

/// Which clusters. Empty fields match everything.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ClusterMatch {
    /// Name; nothing else counts with it.
    pub name: Text,
    /// Host of the service.
    pub service: Text,
    /// Subset.
    pub subset: Text,
    /// Port; 0 is any.
    pub port: u32,
}

/// What a patch looks for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ObjectMatch {
    /// Everything of its kind.
    #[default]
    Any,
    /// In listeners.
    Listener(ListenerMatch),
    /// In route tables.
    RouteTable(RouteTableMatch),
    /// Clusters.
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

impl Serialize for PatchValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

/// One patch.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct EnvoyPatch {
    /// What is patched.
    pub apply_to: ApplyTo,
    /// On which side.
    pub context: PatchContext,
    /// Which versions of proxies.
    pub version: VersionMatch,
    /// Texts that the proxy's metadata has.
    pub metadata: Labels,
    /// What is looked for.
    pub object: ObjectMatch,
    /// What is done with it.
    pub operation: PatchOperation,
    /// With what; empty for a removal.
    pub value: PatchValue,
}

/// An EnvoyFilter.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct EnvoyFilter {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older ones apply first.
    pub created: Timestamp,
    /// Lower ones apply first.
    pub priority: i32,
    /// What it is for in its namespace, or in the mesh if that is the root namespace.
    pub attachment: Attachment,
    /// Its patches in order; `None` where one does not apply, so that each keeps its place.
    pub patches: Vec<Option<EnvoyPatch>>,
    /// Services its patches lead to, as `[namespace/]host` (annotation `envoyfilter.istio.io/referenced-services`).
    pub referenced_services: BTreeSet<Text>,
}
