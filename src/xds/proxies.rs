//! The proxies that are connected, as an input of the mesh.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_model::{Proxy, ProxyKey};
use sluice_proto::envoy::config::core::v3::Node;

/// Where connected proxies are written to: the `proxies` input of the graph.
pub trait ProxyInput: Send + Sync + 'static {
    /// The proxy a node describes.
    ///
    /// # Errors
    /// What is wrong with the node; the stream is refused with it.
    fn parse(&self, node: &Node) -> Result<Proxy, String>;

    /// The proxy is connected and is like this. Must not block.
    fn set(&self, key: ProxyKey, proxy: Proxy);

    /// The proxy is no longer connected. Must not block.
    fn remove(&self, key: ProxyKey);
}

/// The proxies by node id. Two streams with one id are one proxy: it is as the latest of them says.
pub(crate) struct Roster {
    input: Arc<dyn ProxyInput>,
    proxies: Mutex<BTreeMap<ProxyKey, BTreeMap<u64, Proxy>>>,
}

impl Roster {
    pub(crate) fn new(input: Arc<dyn ProxyInput>) -> Self {
        Self { input, proxies: Mutex::default() }
    }

    pub(crate) fn parse(&self, node: &Node) -> Result<Proxy, String> {
        self.input.parse(node)
    }

    /// A stream of the proxy has begun.
    pub(crate) fn join(&self, key: &ProxyKey, stream: u64, proxy: Proxy) {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        proxies.entry(key.clone()).or_default().insert(stream, proxy.clone());
        // Under the lock, so that the input sees joins and leaves in their order.
        self.input.set(key.clone(), proxy);
    }

    /// A stream of the proxy has ended.
    pub(crate) fn leave(&self, key: &ProxyKey, stream: u64) {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(streams) = proxies.get_mut(key) else { return };
        let was_latest = streams.keys().next_back() == Some(&stream);
        streams.remove(&stream);
        match streams.values().next_back() {
            None => {
                proxies.remove(key);
                self.input.remove(key.clone());
            }
            Some(proxy) if was_latest => self.input.set(key.clone(), proxy.clone()),
            Some(_) => {}
        }
    }
}
