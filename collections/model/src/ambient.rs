//! Ambient mode: services and waypoints as node proxies (ztunnel) know them (A03, A05).

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use crate::{
    Host, IpFamilies, LabelSelector, Labels, ObjectKey, Protocol, ServiceKey, ServiceSource, Text, Timestamp,
    TrafficDistribution,
};

/// Where something that takes HBONE listens.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum HboneDestination {
    /// The service of that host.
    Service(ServiceKey),
    /// An address of a network.
    Address {
        /// The network, empty if there is only one.
        network: Text,
        /// The address.
        address: IpAddr,
    },
}

/// Where something that takes HBONE listens, and on which port.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HboneAddress {
    /// Where.
    pub destination: HboneDestination,
    /// The port.
    pub port: u32,
}

/// How a node proxy hands connections to an instance of a waypoint (`ambient.istio.io/waypoint-inbound-binding`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct InboundBinding {
    /// With the PROXY protocol, so that the waypoint learns who the client is.
    pub proxy_protocol: bool,
    /// To this port, 0 if it is the one the client asked for.
    pub port: u32,
}

/// Namespaces whose objects may use a waypoint (`allowedRoutes` of its listener).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum WaypointClients {
    /// The waypoint's own.
    #[default]
    Same,
    /// None.
    Nobody,
    /// Every one.
    All,
    /// Those with labels like these.
    Selected(LabelSelector),
}

/// A waypoint: a Gateway of the Gateway API that has addresses.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Waypoint {
    /// The Gateway.
    pub key: ObjectKey,
    /// Where it listens; nothing if none of its addresses can be used.
    pub address: Option<HboneAddress>,
    /// How its instances are given connections, if not as any workload.
    pub binding: Option<InboundBinding>,
    /// It takes traffic for services.
    pub serves_services: bool,
    /// It takes traffic for workloads.
    pub serves_workloads: bool,
    /// Who may use it.
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
            WaypointClients::Nobody => false,
            WaypointClients::All => true,
            WaypointClients::Selected(selector) => selector.matches(labels),
        }
    }
}

/// The waypoints a service is reached through.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ServiceWaypoints {
    /// The one it is bound to.
    pub waypoint: Option<ObjectKey>,
    /// Where that listens.
    pub address: Option<HboneAddress>,
    /// Gateways use it as well (`istio.io/ingress-use-waypoint`).
    pub for_ingress: bool,
    /// Shares in percent, if some of the traffic goes to another one.
    pub weighted: Vec<(HboneAddress, u32)>,
}

/// Who picks which endpoint of a service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum AmbientLoadBalancing {
    /// Any endpoint.
    #[default]
    Any,
    /// Near ones first.
    Prefer(TrafficDistribution),
    /// Those of the client's node only.
    SameNode,
    /// The address that was dialled.
    Passthrough,
}

/// A port of an [`AmbientService`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AmbientPort {
    /// The number clients use.
    pub port: u32,
    /// Its name, empty if unnamed.
    pub name: Text,
    /// What is spoken.
    pub protocol: Protocol,
    /// Where workloads listen, 0 if that is a port of theirs by name.
    pub target: u32,
    /// Name of the workloads' port, empty if it is a number.
    pub target_name: Text,
}

/// A service as node proxies know it: of one object, not merged with others.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
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
    /// Ports in declared order.
    pub ports: Vec<AmbientPort>,
    /// Labels its workloads have; empty selects nothing.
    pub selector: Labels,
    /// Names its servers' certificates may have.
    pub subject_alt_names: Vec<Text>,
    /// The waypoints it is reached through.
    pub waypoints: ServiceWaypoints,
    /// How endpoints are picked.
    pub balancing: AmbientLoadBalancing,
    /// Endpoints count even if they are not ready.
    pub publish_not_ready: bool,
    /// Address families, if declared.
    pub ip_families: Option<IpFamilies>,
    /// Of all services with its host the one that clients elsewhere mean.
    pub canonical: bool,
    /// Only clients of its namespace may know it.
    pub private: bool,
}

impl AmbientService {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> ServiceKey {
        ServiceKey { namespace: self.object.namespace.clone(), host: self.host.clone() }
    }

    /// The name node proxies know it by: `NAMESPACE/HOST`.
    #[must_use]
    pub fn resource_name(&self) -> Text {
        format!("{}/{}", self.object.namespace, self.host).into()
    }
}
