//! Pods, nodes and endpoint slices: the sources of endpoints.

use serde::{Deserialize, Serialize};

use crate::{Labels, Text, Timestamp};

/// Region, zone and sub-zone; empty parts are unknown.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Locality {
    /// Region.
    pub region: Text,
    /// Zone.
    pub zone: Text,
    /// Sub-zone.
    pub subzone: Text,
}

impl Locality {
    /// Parses `region/zone/subzone`; missing parts are empty.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut parts = text.split('/');
        let mut next = || Text::from(parts.next().unwrap_or_default());
        Self { region: next(), zone: next(), subzone: next() }
    }

    /// Parses the value of a locality label. Label values have no slashes, so dots replace them.
    #[must_use]
    pub fn parse_label(value: &str) -> Self {
        if value.contains('/') { Self::parse(value) } else { Self::parse(&value.replace('.', "/")) }
    }

    /// Whether all parts are unknown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}

/// A Kubernetes Node: its locality and addresses (S06).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Node {
    /// From the topology labels.
    pub locality: Locality,
    /// Its ExternalIP addresses, each once. Internal addresses are not reachable from other networks.
    pub addresses: Vec<Text>,
    /// Keys of its taints, in order.
    pub taints: Vec<Text>,
    /// Labels, for `traffic.istio.io/nodeSelector`.
    pub labels: Labels,
    /// Version of its kubelet, such as `v1.33.1`: it decides about native sidecars (W07).
    pub kubelet_version: Text,
}

/// A Kubernetes Pod (S05).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Labels.
    pub labels: Labels,
    /// The annotations that are used.
    pub annotations: Labels,
    /// Creation time.
    pub created: Timestamp,
    /// All its addresses, the primary first.
    pub ips: Vec<Text>,
    /// Its uid, which distinguishes it from earlier pods with the same name.
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
    /// Whether it uses the network of the node.
    pub host_network: bool,
    /// Whether the `Ready` condition is true.
    pub ready: bool,
    /// Whether the phase is `Running`.
    pub running: bool,
    /// Whether the phase is `Succeeded` or `Failed`.
    pub finished: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// `spec.hostname` and `spec.subdomain`.
    pub hostname: Text,
    /// See `hostname`.
    pub subdomain: Text,
}

impl Pod {
    /// Whether it no longer accepts traffic.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.finished || self.terminating
    }
}

/// A port of a slice.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SlicePort {
    /// Name, empty if unnamed; it is the name of the port of the Service.
    pub name: Text,
    /// Port number of the endpoint.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub transport: Text,
    /// `appProtocol`, if set.
    pub app_protocol: Text,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SliceEndpoint {
    /// Addresses; only the first one is used.
    pub addresses: Vec<Text>,
    /// `ready`, true if unset.
    pub ready: bool,
    /// `serving`.
    pub serving: bool,
    /// `terminating`.
    pub terminating: bool,
    /// The Pod that it targets, if it targets a Pod: (namespace, name).
    pub target_pod: Option<(Text, Text)>,
    /// Node it runs on.
    pub node: Text,
    /// `hostname` of the endpoint.
    pub hostname: Text,
}

/// A Kubernetes EndpointSlice (S04).
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
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
