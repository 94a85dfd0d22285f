//! The xDS resource types.

use serde::{Deserialize, Serialize};

/// The xDS resource types (X02).
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant is the type of that name")]
pub enum ResourceType {
    // In the push order of X11.
    Cluster,
    Endpoint,
    LbEndpoint,
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
    Agentgateway,
}

impl ResourceType {
    /// Every type, in push order (X11).
    pub const ALL: [Self; 14] = [
        Self::Cluster,
        Self::Endpoint,
        Self::LbEndpoint,
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
        Self::Agentgateway,
    ];

    /// The type URL of discovery requests.
    #[must_use]
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoint => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::LbEndpoint => "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint",
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
            Self::Agentgateway => "type.googleapis.com/agentgateway.dev.resource.Resource",
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
        !matches!(
            self,
            Self::Endpoint | Self::LbEndpoint | Self::Route | Self::VirtualHost | Self::Secret | Self::ExtensionConfig
        )
    }

    /// Whether a client subscribes by prefix: `80` for all virtual hosts named `80/…`, and `xdstp://…/*` for all endpoints named
    /// `xdstp://…/…`.
    #[must_use]
    pub const fn is_by_prefix(self) -> bool {
        matches!(self, Self::VirtualHost | Self::LbEndpoint)
    }
}
