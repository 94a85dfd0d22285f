//! The proxies that are connected, as an input of the mesh.

use std::collections::{BTreeMap, BTreeSet};
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

/// The proxies by node id. Streams with one id that say the same of themselves are one proxy; one that says otherwise,
/// such as that of a proxy that was restarted with another configuration, is a proxy of its own.
pub(crate) struct Roster {
    input: Arc<dyn ProxyInput>,
    proxies: Mutex<BTreeMap<ProxyKey, Streams>>,
}

/// A proxy and the streams it has.
struct Streams {
    proxy: Proxy,
    streams: BTreeSet<u64>,
}

impl Roster {
    pub(crate) fn new(input: Arc<dyn ProxyInput>) -> Self {
        Self { input, proxies: Mutex::default() }
    }

    pub(crate) fn parse(&self, node: &Node) -> Result<Proxy, String> {
        self.input.parse(node)
    }

    /// The key of the proxy that a stream is of. It is not known to the mesh before it joins.
    pub(crate) fn enter(&self, stream: u64, proxy: &Proxy) -> ProxyKey {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = ProxyKey(proxy.id.clone());
        for number in 2.. {
            match proxies.get_mut(&key) {
                Some(known) if known.proxy == *proxy => {
                    known.streams.insert(stream);
                    break;
                }
                Some(_) => key = ProxyKey(format!("{}#{number}", proxy.id).into()),
                None => {
                    proxies.insert(key.clone(), Streams { proxy: proxy.clone(), streams: [stream].into() });
                    break;
                }
            }
        }
        key
    }

    /// The proxy is there.
    pub(crate) fn join(&self, key: &ProxyKey) {
        let proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that the input sees joins and leaves in their order.
        if let Some(known) = proxies.get(key) {
            self.input.set(key.clone(), known.proxy.clone());
        }
    }

    /// A stream of the proxy has ended.
    pub(crate) fn leave(&self, key: &ProxyKey, stream: u64) {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = proxies.get_mut(key) else { return };
        known.streams.remove(&stream);
        if known.streams.is_empty() {
            proxies.remove(key);
            self.input.remove(key.clone());
        }
    }
}
