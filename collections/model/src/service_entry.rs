//! ServiceEntries and WorkloadEntries as declared (S09).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Host, Labels, ObjectMeta, Protocol, Resolution, Text};

/// A port of a ServiceEntry.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceEntryPort {
    /// The port number that clients use.
    pub number: u16,
    /// Its name.
    pub name: Text,
    /// Its protocol.
    pub protocol: Protocol,
    /// Port of the endpoints, 0 if the same.
    pub target_port: u16,
}

/// An endpoint of a ServiceEntry, or the spec of a WorkloadEntry.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct WorkloadAddress {
    /// IP, host name or `unix://` path; empty if it is reached through the gateway of its network only.
    pub address: Text,
    /// Port numbers by port name.
    pub ports: BTreeMap<Text, u32>,
    /// Labels.
    pub labels: Labels,
    /// Network, empty for the default.
    pub network: Text,
    /// `region/zone/subzone`, empty if unknown.
    pub locality: Text,
    /// Load-balancing weight, 0 if unset.
    pub weight: u32,
    /// Service account, empty if none.
    pub service_account: Text,
}

/// A WorkloadEntry: a workload outside Kubernetes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct WorkloadEntry {
    /// Name, labels, annotations.
    pub meta: ObjectMeta,
    /// Its address. The labels of the spec and of the object are merged; those of the object take precedence.
    pub workload: WorkloadAddress,
    /// Whether its health checks pass, or it has none (S14).
    pub healthy: bool,
    /// The conditions in its status as JSON text; empty if there are none (A07).
    pub conditions: Text,
}

/// A WorkloadGroup: the template of WorkloadEntries for workloads that register themselves (S13).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct WorkloadGroup {
    /// Name, labels, annotations.
    pub meta: ObjectMeta,
    /// Labels of the entries.
    pub labels: Labels,
    /// Annotations of the entries.
    pub annotations: Labels,
    /// Spec of the entries, without the facts that each workload provides.
    pub template: WorkloadAddress,
    /// Whether an entry is used only after its workload reports that it is healthy (S14).
    pub health_checked: bool,
}

/// A ServiceEntry: services outside the Kubernetes registry.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceEntry {
    /// Name, labels, annotations.
    pub meta: ObjectMeta,
    /// Hosts it declares.
    pub hosts: Vec<Host>,
    /// Virtual addresses, CIDR blocks allowed.
    pub addresses: Vec<Text>,
    /// Ports in declared order.
    pub ports: Vec<ServiceEntryPort>,
    /// `location: MESH_EXTERNAL`, the default.
    pub mesh_external: bool,
    /// How clients find endpoints.
    pub resolution: Resolution,
    /// Listed endpoints.
    pub endpoints: Vec<WorkloadAddress>,
    /// Selector of the pods and WorkloadEntries of its namespace that are its endpoints, if set.
    pub workload_selector: Option<Labels>,
    /// `exportTo` as declared.
    pub export_to: Vec<Text>,
    /// Accepted names in the certificates of its servers.
    pub subject_alt_names: Vec<Text>,
    /// Addresses allocated to its hosts (S10): `status.addresses` as declared, (host, address).
    pub allocated_addresses: Vec<(Host, Text)>,
    /// The conditions in its status as JSON text; empty if there are none (S11).
    pub conditions: Text,
}

/// Annotation: how Envoy connects to the addresses of a host that it resolves by DNS.
const CONNECT_STRATEGY: &str = "istio.io/connect-strategy";

impl ServiceEntry {
    /// Whether clients resolve the host by DNS. They resolve a wildcard host only with resolution DYNAMIC_DNS, by its names.
    #[must_use]
    pub fn is_resolved(&self, host: &Host) -> bool {
        !host.is_wildcard() || self.resolution == Resolution::DynamicDns
    }

    /// Clients connect to all addresses from DNS at once and use the first connection (`istio.io/connect-strategy`).
    #[must_use]
    pub fn races_connects(&self) -> bool {
        let strategy = self.meta.annotations.get(CONNECT_STRATEGY);
        strategy.is_some_and(|word| word.eq_ignore_ascii_case("RACE_FIRST_TCP_CONNECT"))
    }
}
