//! Sidecars: what of the mesh a workload sees, and where it listens (N21).

use serde::Serialize;

use crate::{ConnectionPool, Destination, Labels, OutboundPolicy, Protocol, ServerTls, Text, Timestamp};

/// A Sidecar.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Sidecar {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Workloads of its namespace that it is for; `None` is every one that no other selects.
    pub workload_selector: Option<Labels>,
    /// Where the workload listens; empty is wherever its services say.
    pub ingress: Vec<SidecarIngress>,
    /// What it may reach; empty is everything.
    pub egress: Vec<SidecarEgress>,
    /// Limits of inbound connections where a listener has none of its own.
    pub inbound_connection_pool: Option<ConnectionPool>,
    /// What becomes of traffic to hosts nobody declared; `None` is as the mesh says.
    pub outbound: Option<OutboundTraffic>,
}

/// What becomes of traffic to hosts nobody declared.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct OutboundTraffic {
    /// Whether it may pass.
    pub policy: OutboundPolicy,
    /// Where it goes instead of its original destination.
    pub egress_proxy: Option<Destination>,
}

/// A port as a Sidecar declares it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SidecarPort {
    /// Its number; 0 for a socket in the file system.
    pub number: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its name, may be empty.
    pub name: Text,
}

/// How traffic gets to a listener.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum CaptureMode {
    /// As the proxy gets all its traffic.
    #[default]
    Default,
    /// It is redirected.
    Iptables,
    /// Clients connect to the listener itself.
    None,
}

/// Where the application behind an inbound listener is.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum LocalEndpoint {
    /// At the address the client dialled.
    #[default]
    Original,
    /// At the loopback address.
    Loopback {
        /// Rather that of IPv6.
        v6: bool,
        /// Its port.
        port: u16,
    },
    /// At the address of the pod.
    Instance {
        /// Rather that of IPv6.
        v6: bool,
        /// Its port.
        port: u16,
    },
    /// At a socket in the file system, as `unix://path`.
    Socket(Text),
}

/// An inbound listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SidecarIngress {
    /// Its port.
    pub port: SidecarPort,
    /// Address it listens at, empty for any.
    pub bind: Text,
    /// How traffic gets there.
    pub capture: CaptureMode,
    /// Where it goes.
    pub endpoint: LocalEndpoint,
    /// TLS that ends there.
    pub tls: Option<ServerTls>,
    /// Limits of its connections.
    pub connection_pool: Option<ConnectionPool>,
}

/// A set of hosts a workload may reach, at a port or at all ports no other listener claims.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SidecarEgress {
    /// Its port; `None` is every port.
    pub port: Option<SidecarPort>,
    /// Address it listens at, empty where the services are.
    pub bind: Text,
    /// How traffic gets there.
    pub capture: CaptureMode,
    /// The hosts as `namespace/host`: `.` is the client's namespace, `*` any, and `~` in front leaves hosts out.
    pub hosts: Vec<Text>,
}
