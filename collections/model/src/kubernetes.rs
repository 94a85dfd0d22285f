//! Kubernetes Services and Namespaces as declared; see `workload` for pods, nodes and slices.

use serde::{Deserialize, Serialize};

use crate::{IpFamilies, Labels, ObjectMeta, Protocol, Text};

/// `spec.type` of a Service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ServiceType {
    /// A virtual address within the cluster, or none (headless).
    #[default]
    ClusterIp,
    /// Also a port on every node.
    NodePort,
    /// Also an external load balancer.
    LoadBalancer,
    /// An alias of an external name.
    ExternalName,
}

/// A port of a Kubernetes Service.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct KubernetesServicePort {
    /// Its name, empty if unnamed.
    pub name: Text,
    /// The number clients use.
    pub port: u16,
    /// Its protocol by the rules of S02.
    pub protocol: Protocol,
    /// `UDP` or another transport than TCP; empty for TCP.
    pub transport: Text,
    /// Number or name of the container port, empty if the same as `port`.
    pub target_port: Text,
    /// Port on every node, 0 if none.
    pub node_port: u16,
}

/// A Kubernetes Service as declared (S01, S03).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct KubernetesService {
    /// Name, labels, annotations.
    pub meta: ObjectMeta,
    /// Its type.
    pub service_type: ServiceType,
    /// Virtual addresses, the primary first; empty if headless or not yet assigned.
    pub cluster_ips: Vec<Text>,
    /// `clusterIP: None`.
    pub headless: bool,
    /// `ipFamilies`, if set.
    pub ip_families: Option<IpFamilies>,
    /// Target of type ExternalName.
    pub external_name: Text,
    /// `externalIPs`.
    pub external_ips: Vec<Text>,
    /// Addresses or host names of the load balancer.
    pub load_balancer: Vec<Text>,
    /// Ports in declared order.
    pub ports: Vec<KubernetesServicePort>,
    /// Labels of its pods; empty selects nothing.
    pub selector: Labels,
    /// `trafficDistribution`, empty if unset.
    pub traffic_distribution: Text,
    /// `internalTrafficPolicy: Local`.
    pub internal_traffic_local: bool,
    /// `publishNotReadyAddresses`.
    pub publish_not_ready: bool,
    /// Unique id, empty for an object from a file.
    pub uid: Text,
    /// Unique id of the InferencePool that owns it, empty if none does.
    pub owner_pool: Text,
    /// The conditions in its status as JSON text; empty if there are none (A07).
    pub conditions: Text,
}

/// A Kubernetes Namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Namespace {
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
}

/// Annotation of the system namespace of a cluster, with the clusters whose control planes serve it, comma separated.
const CONTROL_PLANE_CLUSTERS: &str = "topology.istio.io/controlPlaneClusters";

impl Namespace {
    /// Whether it is the system namespace of a cluster that requests to be served by the control plane of another cluster.
    #[must_use]
    pub fn requests_control_plane_of(&self, cluster: &str) -> bool {
        let named = self.annotations.get(CONTROL_PLANE_CLUSTERS).map(|names| names.to_string()).unwrap_or_default();
        named.split(',').any(|name| matches!(name.trim(), "*") || name.trim() == cluster)
    }
}
