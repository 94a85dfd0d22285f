//! The kinds of the Kubernetes Gateway API as declared (C02). They are converted to [`crate::Gateway`],
//! [`crate::VirtualService`] and [`crate::DestinationRule`].

mod backend;
mod deployment;
mod gateway;
mod grant;
mod inference;
mod policy;
mod reference;
mod route;

pub use backend::{Backend, BackendTls, BackendTlsMode};
pub use deployment::{DeployedKind, DeployedPort, GatewayDeployment, GatewayParameters, OVERLAY_KEYS};
pub use gateway::{
    AddressKind, AllowedRoutes, FrontendTls, FrontendValidation, Gateway, GatewayAddress, GatewayClass, Infrastructure,
    Listener, ListenerSet, ListenerTls, ListenerTlsMode, NamespaceSelection,
};
pub use grant::{GrantFrom, GrantTo, ReferenceGrant};
pub use inference::{EndpointPickerRef, INFERENCE_GROUP, InferencePool};
pub use policy::{BackendTlsPolicy, BackendTrafficPolicy, BackendValidation, PolicyTarget, RetryConstraint};
pub use reference::{GroupKind, ObjectRef};
pub use route::{
    BackendRef, DeclaredRule, ExternalAuth, ExternalAuthProtocol, HttpBackend, HttpRoute, HttpRule, L4Route, Mirror,
    ParentRef,
};

/// API group of the kinds.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// API group of the experimental kinds.
pub const EXPERIMENTAL_GROUP: &str = "gateway.networking.x-k8s.io";
/// Class of waypoints.
pub const WAYPOINT_CLASS: &str = "istio-waypoint";
/// Class of Gateways that lead into another network.
pub const REMOTE_CLASS: &str = "istio-remote";
/// Class of Gateways that agentgateway proxies serve.
pub const AGENTGATEWAY_CLASS: &str = "istio-agentgateway";
/// Class of waypoints that are agentgateways. They are not supported.
pub const AGENTGATEWAY_WAYPOINT_CLASS: &str = "istio-agentgateway-waypoint";
/// Class of the gateways by which other networks reach an ambient mesh.
pub const EAST_WEST_CLASS: &str = "istio-east-west";
