//! Pods, nodes and endpoint slices: where endpoints come from.

use serde::Serialize;

use crate::{Labels, Text, Timestamp};

/// Region, zone and sub-zone; empty parts are unknown.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Locality {
    /// Region.
    pub region: Text,
    /// Zone.
    pub zone: Text,
    /// Sub-zone.
    pub subzone: Text,
}

impl Locality {
    /// From `region/zone/subzone`; missing parts are empty.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut parts = text.split('/');
        let mut next = || Text::from(parts.next().unwrap_or_default());
        Self { region: next(), zone: next(), subzone: next() }
    }

    /// Nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}

/// A node is known by its cluster and name.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct NodeKey {
    /// Cluster id.
    pub cluster: Text,
    /// Node name.
    pub name: Text,
}

/// A Kubernetes Node: only its place (S06).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Node {
    /// From the topology labels.
    pub locality: Locality,
    /// Its addresses of type InternalIP and ExternalIP (NodePort services).
    pub addresses: Vec<Text>,
    /// Labels, for `traffic.istio.io/nodeSelector`.
    pub labels: Labels,
}

/// A Kubernetes Pod (S05).
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Pod {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Labels.
    pub labels: Labels,
    /// Annotations that are read.
    pub annotations: Labels,
    /// Creation time.
    pub created: Timestamp,
    /// All its addresses, the primary first.
    pub ips: Vec<Text>,
    /// What tells it from others that had its name.
    pub uid: Text,
    /// The node it runs on.
    pub node: Text,
    /// Service account, `default` if unset.
    pub service_account: Text,
    /// Name of the controller that owns it, after stripping the ReplicaSet and Job suffixes.
    pub workload_name: Text,
    /// Kind of that controller, such as `Deployment`.
    pub workload_kind: Text,
    /// Container ports by name: (name, number, protocol).
    pub ports: Vec<(Text, u16, Text)>,
    /// Uses the node's network.
    pub host_network: bool,
    /// `Ready` condition is true.
    pub ready: bool,
    /// Phase is `Succeeded` or `Failed`.
    pub finished: bool,
    /// It is being deleted.
    pub terminating: bool,
    /// `spec.hostname` and `spec.subdomain`.
    pub hostname: Text,
    /// See `hostname`.
    pub subdomain: Text,
}

impl Pod {
    /// It takes no traffic any more.
    #[must_use]
    pub fn gone(&self) -> bool {
        self.finished || self.terminating
    }
}

/// A port of a slice.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SlicePort {
    /// Name, empty if unnamed: matched with the Service's port by name.
    pub name: Text,
    /// Number the endpoint listens on.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub transport: Text,
    /// `appProtocol`, if set.
    pub app_protocol: Text,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SliceEndpoint {
    /// Addresses; the first one counts.
    pub addresses: Vec<Text>,
    /// `ready`, true if unset.
    pub ready: bool,
    /// `serving`.
    pub serving: bool,
    /// `terminating`.
    pub terminating: bool,
    /// Name of the Pod it targets (namespace, name), if a Pod.
    pub target_pod: Option<(Text, Text)>,
    /// Node it runs on.
    pub node: Text,
    /// `hostname` of the endpoint.
    pub hostname: Text,
}

/// A Kubernetes EndpointSlice (S04).
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct EndpointSlice {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Name of its Service: label `kubernetes.io/service-name`.
    pub service: Text,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: Text,
    /// Ports.
    pub ports: Vec<SlicePort>,
    /// Endpoints.
    pub endpoints: Vec<SliceEndpoint>,
    /// Labels.
    pub labels: Labels,
}
