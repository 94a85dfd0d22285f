//! The closed set of parsed objects: what sources hand to the graph.

use serde::Serialize;

use crate::gateway_api::{
    Backend, BackendTlsPolicy, BackendTrafficPolicy, Gateway as KubernetesGateway, GatewayClass, HttpRoute, L4Route,
    ListenerSet, ReferenceGrant,
};
use crate::{
    AuthorizationPolicy, DestinationRule, EndpointSlice, EnvoyFilter, Gateway, Ingress, IngressClass, Kind,
    KubernetesService, MeshConfig, MeshNetworks, Namespace, Node, ObjectKey, PeerAuthentication, Pod,
    ProxyConfigResource, Reject, RequestAuthentication, RootCertificates, Secret, ServiceEntry, Sidecar, Telemetry,
    Text, TrafficExtension, VirtualService, WorkloadEntry, WorkloadGroup,
};

/// ConfigMap `istio`: the mesh config and the networks.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MeshSettings {
    /// Key `mesh`, laid over the defaults.
    pub mesh: MeshConfig,
    /// Key `mesh` as it was given, as JSON, so that it can be laid over another; empty if there is none.
    pub given: Text,
    /// Key `meshNetworks`, if there is one.
    pub networks: Option<MeshNetworks>,
}

/// A parsed object of one of the kinds that are derived from.
///
/// A new kind needs a variant here, a parser in `sluice-parse` (`kinds.rs`) and an input in `sluice-graph` (`inputs.rs`).
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[allow(missing_docs, reason = "each variant is the kind of that name")]
pub enum Object {
    AuthorizationPolicy(Box<AuthorizationPolicy>),
    BackendTLSPolicy(Box<BackendTlsPolicy>),
    DestinationRule(Box<DestinationRule>),
    EndpointSlice(EndpointSlice),
    EnvoyFilter(EnvoyFilter),
    GRPCRoute(Box<HttpRoute>),
    Gateway(Gateway),
    GatewayClass(GatewayClass),
    HTTPRoute(Box<HttpRoute>),
    Ingress(Ingress),
    IngressClass(IngressClass),
    KubernetesGateway(Box<KubernetesGateway>),
    ListenerSet(Box<ListenerSet>),
    MeshSettings(Box<MeshSettings>),
    Namespace(Namespace),
    Node(Node),
    PeerAuthentication(PeerAuthentication),
    Pod(Pod),
    ProxyConfig(ProxyConfigResource),
    ReferenceGrant(ReferenceGrant),
    RequestAuthentication(Box<RequestAuthentication>),
    /// A ConfigMap with roots.
    Roots(RootCertificates),
    Secret(Secret),
    Service(KubernetesService),
    ServiceEntry(ServiceEntry),
    Sidecar(Sidecar),
    TCPRoute(Box<L4Route>),
    TLSRoute(Box<L4Route>),
    Telemetry(Box<Telemetry>),
    TrafficExtension(Box<TrafficExtension>),
    VirtualService(VirtualService),
    WasmPlugin(Box<TrafficExtension>),
    WorkloadEntry(WorkloadEntry),
    WorkloadGroup(WorkloadGroup),
    XBackend(Box<Backend>),
    XBackendTrafficPolicy(Box<BackendTrafficPolicy>),
}

/// What parsing made of one object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ParsedObject {
    /// Its kind.
    pub kind: Kind,
    /// Where it lives.
    pub key: ObjectKey,
    /// Its value; `None` if it is invalid as a whole, or of a kind nothing is derived from.
    pub object: Option<Object>,
    /// What is wrong with it.
    pub rejects: Vec<Reject>,
}
