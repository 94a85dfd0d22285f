//! Types of configuration that are for the agent, not for Envoy.

use std::collections::BTreeMap;

/// The table of names the DNS proxy answers from.
pub(crate) const NAME_TABLE: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
/// The mesh's settings of proxies, its roots among them.
pub(crate) const PROXY_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
/// Whether the workload is healthy.
pub(super) const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
/// After Envoy asks for these, the agent asks for its own: the first request of a stream must be Envoy's, as it names it.
pub(super) const LISTENERS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";

/// Takes a message in, or says why not.
pub(super) type Handler = Box<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

/// Handlers by type.
#[derive(Default)]
pub(crate) struct Intercepted(BTreeMap<&'static str, Handler>);

impl Intercepted {
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

/// Whether Envoy knows the type.
pub(super) fn is_for_envoy(type_url: &str) -> bool {
    type_url.starts_with("type.googleapis.com/envoy.")
}
