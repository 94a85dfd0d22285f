//! Sidecars: the hosts that a workload may reach, and its inbound listeners (N21).

use serde::{Deserialize, Serialize};

use crate::{ConnectionPool, Destination, Labels, OutboundPolicy, Protocol, ServerTls, Text, Timestamp};

/// A Sidecar.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Sidecar {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Selector of workloads of its namespace; `None` is every workload that no other Sidecar selects.
    pub workload_selector: Option<Labels>,
    /// Inbound listeners; empty derives them from the services of the workload.
    pub ingress: Vec<SidecarIngress>,
    /// Outbound listeners and hosts; empty is everything.
    pub egress: Vec<SidecarEgress>,
    /// Limits of inbound connections for listeners without their own.
    pub inbound_connection_pool: Option<ConnectionPool>,
    /// Policy for traffic to unknown hosts; `None` is that of the mesh.
    pub outbound: Option<OutboundTraffic>,
}

/// Policy for traffic to unknown hosts.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct OutboundTraffic {
    /// Whether it is allowed.
    pub policy: OutboundPolicy,
    /// Destination that replaces the original destination.
    pub egress_proxy: Option<Destination>,
}

/// A port that a Sidecar declares.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SidecarPort {
    /// Its number; 0 for a Unix domain socket.
    pub number: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its name, may be empty.
    pub name: Text,
}

/// How traffic is captured by a listener.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum CaptureMode {
    /// By the interception mode of the proxy.
    #[default]
    Default,
    /// By iptables.
    Iptables,
    /// Not captured: clients connect to the listener.
    None,
}

/// Address of the application of an inbound listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum LocalEndpoint {
    /// The address that the client connected to.
    #[default]
    Original,
    /// The loopback address.
    Loopback {
        /// Whether to use IPv6.
        v6: bool,
        /// Its port.
        port: u16,
    },
    /// The address of the pod.
    Instance {
        /// Whether to use IPv6.
        v6: bool,
        /// Its port.
        port: u16,
    },
    /// A Unix domain socket, as `unix://path`.
    Socket(Text),
}

/// An inbound listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SidecarIngress {
    /// Its port.
    pub port: SidecarPort,
    /// Bind address, empty for any.
    pub bind: Text,
    /// How traffic is captured.
    pub capture: CaptureMode,
    /// Address of the application.
    pub endpoint: LocalEndpoint,
    /// TLS that the listener terminates.
    pub tls: Option<ServerTls>,
    /// Limits of its connections.
    pub connection_pool: Option<ConnectionPool>,
}

/// A set of hosts that a workload may reach, on one port or on all ports without another listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SidecarEgress {
    /// Its port; `None` is every port.
    pub port: Option<SidecarPort>,
    /// Bind address, empty for the addresses of the services.
    pub bind: Text,
    /// How traffic is captured.
    pub capture: CaptureMode,
    /// The hosts as `namespace/host`: `.` is the namespace of the client, `*` any, and a leading `~` excludes hosts.
    pub hosts: Vec<Text>,
}
