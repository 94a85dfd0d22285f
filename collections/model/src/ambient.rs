//! Ambient mode: services and waypoints as ztunnel sees them (A03, A05).

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    Host, IpFamilies, LabelSelector, Labels, ObjectKey, Protocol, ServiceKey, ServiceSource, Text, Timestamp,
    TrafficDistribution,
};

/// Port that proxies accept HBONE on.
pub const HBONE_PORT: u16 = 15008;

/// Settings of tunnels between networks of an ambient mesh.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TunnelSwitches {
    /// There are several networks (`AMBIENT_ENABLE_MULTI_NETWORK`).
    pub multi_network: bool,
    /// Waypoints send to no other network (`AMBIENT_ENABLE_MULTI_NETWORK_WAYPOINT=false`).
    pub local_waypoints: bool,
    /// Ingress gateways send to other networks (`AMBIENT_ENABLE_MULTI_NETWORK_INGRESS`).
    #[serde(default)]
    pub ingress: bool,
    /// Peer metadata is sent and read as baggage (`AMBIENT_ENABLE_BAGGAGE`).
    pub baggage: bool,
}

/// Destination of HBONE connections.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum HboneDestination {
    /// The service of that host.
    Service(ServiceKey),
    /// An address in a network.
    Address {
        /// The network, empty if there is only one.
        network: Text,
        /// The address.
        address: IpAddr,
    },
}

impl HboneDestination {
    /// The service, if it is one.
    #[must_use]
    pub fn service(&self) -> Option<&ServiceKey> {
        match self {
            Self::Service(service) => Some(service),
            Self::Address { .. } => None,
        }
    }
}

/// Destination and port of HBONE connections.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HboneAddress {
    /// The destination.
    pub destination: HboneDestination,
    /// The port.
    pub port: u32,
}

/// How ztunnel passes connections to an instance of a waypoint (`ambient.istio.io/waypoint-inbound-binding`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct InboundBinding {
    /// Connections carry the PROXY protocol, so that the waypoint knows the identity of the client.
    pub proxy_protocol: bool,
    /// The port; 0 is the port that the client requested.
    pub port: u32,
}

/// Namespaces whose objects may use a waypoint (`allowedRoutes` of its listener).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum WaypointClients {
    /// The namespace of the waypoint.
    #[default]
    Same,
    /// No namespace.
    NoNamespace,
    /// All namespaces.
    All,
    /// Namespaces that match the selector.
    Selected(LabelSelector),
}

/// A waypoint: a Gateway of the Gateway API that has addresses.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Waypoint {
    /// The Gateway.
    pub key: ObjectKey,
    /// Its HBONE address; `None` if none of its addresses is usable.
    pub address: Option<HboneAddress>,
    /// How ztunnel passes connections to its instances, if not as to other workloads.
    pub binding: Option<InboundBinding>,
    /// It handles traffic for services.
    pub serves_services: bool,
    /// It handles traffic for workloads.
    pub serves_workloads: bool,
    /// Namespaces whose objects may use it.
    pub clients: WaypointClients,
    /// Service accounts of its instances, sorted.
    pub accounts: Vec<Text>,
}

impl Waypoint {
    /// Whether objects of a namespace with these labels may use it.
    #[must_use]
    pub fn allows(&self, namespace: &str, labels: &Labels) -> bool {
        match &self.clients {
            WaypointClients::Same => *self.key.namespace == *namespace,
            WaypointClients::NoNamespace => false,
            WaypointClients::All => true,
            WaypointClients::Selected(selector) => selector.matches(labels),
        }
    }
}

/// Why a waypoint is not used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum WaypointProblemKind {
    /// There is no such Gateway, or it has no address yet.
    NotReady,
    /// Its listener does not allow the namespace.
    AttachmentDenied,
    /// It does not process traffic for services.
    NoServiceTraffic,
    /// It does not process traffic for workloads.
    NoWorkloadTraffic,
    /// It is in another namespace than a ServiceEntry that is visible only in its own.
    OtherNamespace,
    /// The share of the second waypoint is not a percentage.
    InvalidShare,
    /// The second waypoint is the first one.
    SameAsPrimary,
}

/// A waypoint that is not used.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct WaypointProblem {
    /// The waypoint: `NAMESPACE/NAME`.
    pub waypoint: Text,
    /// Why it is not used.
    pub kind: WaypointProblemKind,
}

/// The waypoints of a service.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceWaypoints {
    /// The waypoint that the service uses.
    pub waypoint: Option<ObjectKey>,
    /// HBONE address of that waypoint.
    pub address: Option<HboneAddress>,
    /// Gateways use it as well (`istio.io/ingress-use-waypoint`).
    pub for_ingress: bool,
    /// Whether the label `istio.io/ingress-use-waypoint` is set.
    pub has_ingress_label: bool,
    /// Shares in percent, if a part of the traffic goes to another waypoint.
    pub weighted: Vec<(HboneAddress, u32)>,
    /// Why the waypoint that the service refers to is not used; with a waypoint, why the second one gets no traffic.
    pub problem: Option<WaypointProblem>,
}

impl ServiceWaypoints {
    /// Where the waypoints of the service accept HBONE: the one, or all that a part of the traffic goes to.
    pub fn destinations(&self) -> impl Iterator<Item = &HboneDestination> {
        let only = self.address.iter().filter(|_| self.weighted.is_empty());
        self.weighted.iter().map(|(address, _)| address).chain(only).map(|address| &address.destination)
    }

    /// Whether the service uses a waypoint.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.destinations().next().is_some()
    }
}

/// How ztunnel picks an endpoint of a service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum AmbientLoadBalancing {
    /// Any endpoint.
    #[default]
    Any,
    /// Nearby endpoints first.
    Prefer(TrafficDistribution),
    /// Endpoints on the node of the client only.
    SameNode,
    /// The address that the client connected to.
    Passthrough,
}

/// A port of an [`AmbientService`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct AmbientPort {
    /// The number clients use.
    pub port: u32,
    /// Its name, empty if unnamed.
    pub name: Text,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the workloads; 0 if it is a named port.
    pub target: u32,
    /// Name of the port of the workloads, empty if it is a number.
    pub target_name: Text,
}

/// A service as ztunnel sees it: from one object, not merged with others.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct AmbientService {
    /// The declaring object.
    pub object: ObjectKey,
    /// Its kind.
    pub source: ServiceSource,
    /// Its creation time.
    pub created: Timestamp,
    /// The host.
    pub host: Host,
    /// Addresses, or blocks of them, in order.
    pub addresses: Vec<IpNet>,
    /// The network of the addresses, empty if there is only one.
    pub network: Text,
    /// Addresses of the service in other clusters: network and address, in order.
    pub other_addresses: Vec<(Text, IpNet)>,
    /// Clients in other networks reach it (`serviceScopeConfigs`).
    pub global: bool,
    /// Ports in declared order.
    pub ports: Vec<AmbientPort>,
    /// Selector of its workloads; empty selects nothing.
    pub selector: Labels,
    /// Accepted names in the certificates of its servers.
    pub subject_alt_names: Vec<Text>,
    /// The waypoints of the service.
    pub waypoints: ServiceWaypoints,
    /// How endpoints are picked.
    pub balancing: AmbientLoadBalancing,
    /// Endpoints that are not ready are used too.
    pub publish_not_ready: bool,
    /// Address families, if declared.
    pub ip_families: Option<IpFamilies>,
    /// Of all services with this host, the one that clients in other namespaces use.
    pub canonical: bool,
    /// It is visible in its own namespace only.
    pub private: bool,
}

impl AmbientService {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> ServiceKey {
        ServiceKey { namespace: self.object.namespace.clone(), host: self.host.clone() }
    }

    /// Its resource name: `NAMESPACE/HOST`.
    #[must_use]
    pub fn resource_name(&self) -> Text {
        format!("{}/{}", self.object.namespace, self.host).into()
    }
}
