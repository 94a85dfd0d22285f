//! An ADS client over a real socket that subscribes as Envoy and pilot-agent do, in both protocols.

mod dump;
pub mod follow;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use dump::{Dump, Limits, dump};
pub use stream::{AdsStream, Identity, Update, connect};

/// The xDS protocol of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Incremental.
    Delta,
}

impl Protocol {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::Sotw, Self::Delta];

    /// Lower-case name, as lists of differences use it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sotw => "sotw",
            Self::Delta => "delta",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A resource type by its short name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Kind {
    /// Clusters.
    Cds,
    /// Endpoint assignments.
    Eds,
    /// Listeners.
    Lds,
    /// Route configurations.
    Rds,
    /// Filter configurations by name.
    Ecds,
    /// Secrets.
    Sds,
    /// The name table of the DNS proxy.
    Nds,
    /// ztunnel's workloads and services.
    WdsAddress,
    /// ztunnel's authorization policies.
    WdsAuthz,
}

impl Kind {
    /// All types, in the order in which a client subscribes to them.
    pub const ALL: [Self; 9] = [
        Self::Cds,
        Self::Eds,
        Self::Lds,
        Self::Rds,
        Self::Ecds,
        Self::Sds,
        Self::Nds,
        Self::WdsAddress,
        Self::WdsAuthz,
    ];

    /// Its short name: `CDS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cds => "CDS",
            Self::Eds => "EDS",
            Self::Lds => "LDS",
            Self::Rds => "RDS",
            Self::Ecds => "ECDS",
            Self::Sds => "SDS",
            Self::Nds => "NDS",
            Self::WdsAddress => "WDS_ADDRESS",
            Self::WdsAuthz => "WDS_AUTHZ",
        }
    }

    /// The kind of a short name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its type URL.
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cds => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Eds => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Lds => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Rds => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Ecds => "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
            Self::Sds => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::Nds => "type.googleapis.com/istio.networking.nds.v1.NameTable",
            Self::WdsAddress => "type.googleapis.com/istio.workload.Address",
            Self::WdsAuthz => "type.googleapis.com/istio.security.Authorization",
        }
    }

    /// The kind of a type URL.
    pub(crate) fn of_type_url(type_url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == type_url)
    }

    /// Whether a client subscribes to all resources of it, rather than to names.
    pub const fn is_wildcard(self) -> bool {
        matches!(self, Self::Cds | Self::Lds | Self::Nds | Self::WdsAddress | Self::WdsAuthz)
    }

    /// Whether a state-of-the-world response has all resources, so that an absent one is removed.
    pub(crate) const fn is_full_state(self) -> bool {
        matches!(self, Self::Cds | Self::Lds | Self::Nds)
    }
}
