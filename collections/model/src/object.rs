//! Identity and metadata of a Kubernetes or Istio object.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Labels, Text};

/// API group of Istio's networking kinds.
pub const NETWORKING_GROUP: &str = "networking.istio.io";

/// Seconds since the Unix epoch, UTC. Creation times decide precedence: the older object wins.
pub type Timestamp = i64;

/// The kinds of object the control plane reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant is the kind of that name")]
pub enum Kind {
    AuthorizationPolicy,
    BackendTLSPolicy,
    ConfigMap,
    DestinationRule,
    EndpointSlice,
    EnvoyFilter,
    GRPCRoute,
    Gateway,
    GatewayClass,
    HTTPRoute,
    InferencePool,
    Ingress,
    IngressClass,
    KubernetesGateway,
    ListenerSet,
    MutatingWebhookConfiguration,
    Namespace,
    Node,
    PeerAuthentication,
    Pod,
    ProxyConfig,
    ReferenceGrant,
    RequestAuthentication,
    Secret,
    Service,
    ServiceAccount,
    ServiceEntry,
    ServiceExport,
    ServiceImport,
    Sidecar,
    TCPRoute,
    TLSRoute,
    Telemetry,
    TrafficExtension,
    UDPRoute,
    ValidatingWebhookConfiguration,
    VirtualService,
    WasmPlugin,
    WorkloadEntry,
    WorkloadGroup,
    XBackend,
    XBackendTrafficPolicy,
}

impl Kind {
    /// The `kind` field of objects: `Gateway` for both kinds of gateway.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::KubernetesGateway => "Gateway".to_owned(),
            other => format!("{other:?}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Cluster, namespace and name of an object. Cluster-scoped objects have an empty namespace.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// The id of the cluster the object was read from (`Kubernetes` unless configured).
    pub cluster: Text,
    /// Its namespace, empty if cluster-scoped.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
}

impl ObjectKey {
    /// A key from its parts.
    pub fn new(cluster: impl Into<Text>, namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self { cluster: cluster.into(), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.cluster, self.namespace, self.name)
    }
}

/// The part of an object's metadata that later steps read.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ObjectMeta {
    /// Namespace, empty if cluster-scoped.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Labels.
    pub labels: Labels,
    /// Annotations, without large ones that are never read (`kubectl.kubernetes.io/last-applied-configuration`).
    pub annotations: Labels,
    /// Creation time; older objects win conflicts.
    pub created: Timestamp,
}
