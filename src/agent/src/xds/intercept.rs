//! Resource types for the agent, not for Envoy.

use std::collections::BTreeMap;

use prost::DecodeError;

/// The name table of the DNS proxy.
pub(crate) const NAME_TABLE: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
/// The mesh's ProxyConfig, which contains the roots of the mesh.
pub(crate) const PROXY_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
/// The health of the workload.
pub(super) const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
/// After Envoy subscribes to listeners, the agent subscribes to its own types: the first request of a stream must be Envoy's,
/// because it holds the node.
pub(super) const LISTENERS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";

/// Handles an encoded resource. A malformed one is rejected (NACK).
pub(super) type Handler = Box<dyn Fn(&[u8]) -> Result<(), DecodeError> + Send + Sync>;

/// Handlers by type URL.
#[derive(Default)]
pub(crate) struct InterceptedTypes(BTreeMap<&'static str, Handler>);

impl InterceptedTypes {
    pub(crate) fn insert(&mut self, type_url: &'static str, handler: Handler) {
        self.0.insert(type_url, handler);
    }

    pub(super) fn types(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    pub(super) fn get(&self, type_url: &str) -> Option<&Handler> {
        self.0.get(type_url)
    }
}

/// Whether the type is one of Envoy's.
pub(super) fn is_for_envoy(type_url: &str) -> bool {
    type_url.starts_with("type.googleapis.com/envoy.")
}
