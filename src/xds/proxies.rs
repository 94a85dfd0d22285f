//! The proxies that are connected, as an input of the mesh.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    fn set(&self, key: ProxyKey, proxy: Arc<Proxy>);

    /// The proxy, which is connected, asks for secrets. Must not block.
    fn asks_for_secrets(&self, key: ProxyKey);

    /// The proxy is no longer connected. Must not block.
    fn remove(&self, key: ProxyKey);
}

/// How long the mesh keeps a proxy whose last stream has ended: most come back soon, and find all made for them as it was.
pub(crate) const LINGER: Duration = Duration::from_secs(30);

/// The proxies by node id. Streams with one id that say the same of themselves are one proxy; one that says otherwise,
/// such as that of a proxy that was restarted with another configuration, is a proxy of its own.
pub(crate) struct Roster {
    input: Arc<dyn ProxyInput>,
    proxies: Mutex<BTreeMap<ProxyKey, Streams>>,
}

/// A proxy and the streams it has.
struct Streams {
    proxy: Arc<Proxy>,
    streams: BTreeSet<u64>,
    /// When the last of them ended.
    left: Option<Instant>,
    /// The mesh knows it as it is.
    joined: bool,
}

impl Streams {
    fn one(proxy: &Arc<Proxy>, stream: u64) -> Self {
        Self { proxy: proxy.clone(), streams: [stream].into(), left: None, joined: false }
    }
}

impl Roster {
    pub(crate) fn new(input: Arc<dyn ProxyInput>) -> Self {
        Self { input, proxies: Mutex::default() }
    }

    pub(crate) fn parse(&self, node: &Node) -> Result<Proxy, String> {
        self.input.parse(node)
    }

    /// The key of the proxy that a stream is of. It is not known to the mesh before it joins.
    pub(crate) fn enter(&self, stream: u64, proxy: &Arc<Proxy>) -> ProxyKey {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = ProxyKey(proxy.id.clone());
        for number in 2.. {
            match proxies.get_mut(&key) {
                Some(known) if known.proxy == *proxy => {
                    known.streams.insert(stream);
                    known.left = None;
                    break;
                }
                Some(known) if known.streams.is_empty() => {
                    *known = Streams::one(proxy, stream);
                    break;
                }
                Some(_) => key = ProxyKey(format!("{}#{number}", proxy.id).into()),
                None => {
                    proxies.insert(key.clone(), Streams::one(proxy, stream));
                    break;
                }
            }
        }
        key
    }

    /// The proxy is there.
    pub(crate) fn join(&self, key: &ProxyKey) {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that the input sees joins and leaves in their order.
        if let Some(known) = proxies.get_mut(key).filter(|known| !known.joined) {
            self.input.set(key.clone(), known.proxy.clone());
            known.joined = true;
        }
    }

    /// A stream of the proxy asks for secrets.
    pub(crate) fn asks_for_secrets(&self, key: &ProxyKey) {
        let proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        if proxies.contains_key(key) {
            self.input.asks_for_secrets(key.clone());
        }
    }

    /// A stream of the proxy has ended.
    pub(crate) fn leave(&self, key: &ProxyKey, stream: u64, now: Instant) {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = proxies.get_mut(key) else { return };
        known.streams.remove(&stream);
        if known.streams.is_empty() {
            known.left = Some(now);
        }
    }

    /// Takes those out of the mesh that did not come back.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        proxies.retain(|key, known| {
            let gone = known.left.is_some_and(|left| now.saturating_duration_since(left) >= LINGER);
            if gone {
                self.input.remove(key.clone());
            }
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorded(Mutex<Vec<(ProxyKey, Option<Arc<Proxy>>)>>);

    impl ProxyInput for Recorded {
        fn parse(&self, _: &Node) -> Result<Proxy, String> {
            Err("no node is read here".into())
        }

        fn set(&self, key: ProxyKey, proxy: Arc<Proxy>) {
            self.0.lock().expect("no panic").push((key, Some(proxy)));
        }

        fn asks_for_secrets(&self, _: ProxyKey) {}

        fn remove(&self, key: ProxyKey) {
            self.0.lock().expect("no panic").push((key, None));
        }
    }

    #[test]
    fn a_proxy_that_comes_back_soon_was_never_gone() {
        let input = Arc::new(Recorded::default());
        let roster = Roster::new(input.clone());
        let seen = || std::mem::take(&mut *input.0.lock().expect("no panic"));
        let proxy =
            |version: &str| Arc::new(Proxy { id: "web".into(), istio_version: version.into(), ..Proxy::default() });
        let start = Instant::now();
        let enter = |stream: u64, proxy: &Arc<Proxy>| {
            let key = roster.enter(stream, proxy);
            roster.join(&key);
            key
        };
        let key = enter(1, &proxy("1.30"));
        assert_eq!(seen(), [(key.clone(), Some(proxy("1.30")))]);
        roster.leave(&key, 1, start);
        roster.sweep(start + LINGER / 2);
        assert_eq!(enter(2, &proxy("1.30")), key);
        roster.sweep(start + LINGER * 2);
        assert_eq!(seen(), [], "it is as it was");

        roster.leave(&key, 2, start);
        assert_eq!(enter(3, &proxy("1.31")), key, "nobody else is left under that key");
        assert_eq!(seen(), [(key.clone(), Some(proxy("1.31")))]);
        assert_ne!(enter(4, &proxy("1.30")), key, "somebody is");
        seen();
        roster.leave(&key, 3, start);
        roster.sweep(start + LINGER);
        assert_eq!(seen(), [(key, None)]);
    }
}
