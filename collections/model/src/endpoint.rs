//! Endpoints: addresses and ports of services.

use serde::{Deserialize, Serialize};

use crate::{Labels, Locality, Text};

/// Readiness of an endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum Health {
    /// Unknown, as for a WorkloadEntry or an address of a ServiceEntry. It is used.
    Unknown,
    /// Ready.
    #[default]
    Healthy,
    /// Not ready.
    Unhealthy,
    /// Terminating, but existing sessions continue (services with persistent sessions).
    Draining,
    /// Terminating.
    Terminating,
}

/// How the endpoint expects TLS, from label `security.istio.io/tlsMode`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum TlsMode {
    /// No sidecar known.
    #[default]
    Disabled,
    /// Has a sidecar: Istio mutual TLS.
    Istio,
}

/// One address of a service (S04 to S06).
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// All its addresses, the primary first (dual stack).
    pub addresses: Vec<Text>,
    /// Port it listens on.
    pub port: u32,
    /// Name of the service's port it backs; empty if unnamed.
    pub port_name: Text,
    /// Labels of its workload, which subsets select.
    pub labels: Labels,
    /// Its locality.
    pub locality: Locality,
    /// Node it runs on.
    pub node: Text,
    /// Cluster it runs in.
    pub cluster: Text,
    /// Its network, empty if there is only one.
    pub network: Text,
    /// Namespace of its workload.
    pub namespace: Text,
    /// Name of its workload's controller (`istio.workload` metadata).
    pub workload_name: Text,
    /// SPIFFE id of its workload, empty if unknown.
    pub service_account: Text,
    /// Its TLS mode.
    pub tls_mode: TlsMode,
    /// Readiness.
    pub health: Health,
    /// Load-balancing weight, 0 if unset.
    pub weight: u32,
    /// `hostname` and `subdomain` for per-pod DNS names of a headless service.
    pub hostname: Text,
    /// See `hostname`.
    pub subdomain: Text,
    /// It accepts HBONE.
    pub hbone: bool,
    /// Only proxies of its own cluster may use it.
    pub cluster_local: bool,
}
