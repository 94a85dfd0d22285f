//! The closed set of parsed objects: the values that sources write to the graph.

use serde::{Deserialize, Serialize};

use crate::gateway_api::{
    Backend, BackendTlsPolicy, BackendTrafficPolicy, Gateway as KubernetesGateway, GatewayClass, GatewayParameters,
    HttpRoute, InferencePool, L4Route, ListenerSet, ReferenceGrant,
};
use crate::{
    AuthorizationPolicy, DestinationRule, EndpointSlice, EnvoyFilter, Gateway, Ingress, IngressClass, Kind,
    KubernetesService, MeshConfig, MeshNetworks, Namespace, Node, ObjectKey, PeerAuthentication, Pod,
    ProxyConfigResource, Reject, RequestAuthentication, RootCertificates, Secret, ServiceEntry, ServiceExport,
    ServiceImport, Sidecar, Telemetry, Text, TrafficExtension, VirtualService, WebhookConfiguration, WorkloadEntry,
    WorkloadGroup,
};

/// ConfigMap `istio`: the mesh config and the networks.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct MeshSettings {
    /// Key `mesh`, merged over the defaults.
    pub mesh: MeshConfig,
    /// Key `mesh` as JSON, before the merge with the defaults, so that it can be merged over another; empty if absent.
    pub given: Text,
    /// Key `meshNetworks`, if present.
    pub networks: Option<MeshNetworks>,
}

/// A parsed object of a kind that configuration derives from.
///
/// A new kind needs a variant here, a parser in `sluice-parse` (`kinds.rs`) and an input in `sluice-graph`
/// (`inputs.rs`).
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
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
    /// A ConfigMap with overlays of the objects that are deployed for Gateways.
    GatewayParameters(Box<GatewayParameters>),
    HTTPRoute(Box<HttpRoute>),
    InferencePool(Box<InferencePool>),
    Ingress(Ingress),
    IngressClass(IngressClass),
    KubernetesGateway(Box<KubernetesGateway>),
    ListenerSet(Box<ListenerSet>),
    MeshSettings(Box<MeshSettings>),
    MutatingWebhookConfiguration(WebhookConfiguration),
    Namespace(Namespace),
    Node(Node),
    PeerAuthentication(PeerAuthentication),
    Pod(Pod),
    ProxyConfig(ProxyConfigResource),
    ReferenceGrant(ReferenceGrant),
    RequestAuthentication(Box<RequestAuthentication>),
    /// A ConfigMap with root certificates.
    Roots(RootCertificates),
    Secret(Secret),
    Service(KubernetesService),
    ServiceEntry(ServiceEntry),
    ServiceExport(ServiceExport),
    ServiceImport(ServiceImport),
    Sidecar(Sidecar),
    TCPRoute(Box<L4Route>),
    TLSRoute(Box<L4Route>),
    Telemetry(Box<Telemetry>),
    TrafficExtension(Box<TrafficExtension>),
    UDPRoute(Box<L4Route>),
    ValidatingWebhookConfiguration(WebhookConfiguration),
    VirtualService(VirtualService),
    WasmPlugin(Box<TrafficExtension>),
    WorkloadEntry(WorkloadEntry),
    WorkloadGroup(WorkloadGroup),
    XBackend(Box<Backend>),
    XBackendTrafficPolicy(Box<BackendTrafficPolicy>),
}

/// The result of parsing one object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ParsedObject {
    /// Its kind.
    pub kind: Kind,
    /// Its cluster, namespace and name.
    pub key: ObjectKey,
    /// Its value; `None` if the whole object is invalid, or if nothing derives from its kind.
    pub object: Option<Object>,
    /// Its invalid parts.
    pub rejects: Vec<Reject>,
}
