//! The connected proxies, as an input of the dataflow.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use sluice_model::{ClientProfile, Proxy, ProxyKey};
use sluice_proto::envoy::config::core::v3::Node;

use crate::proxy_limits::{ProxyLimitError, ProxyLimits, ProxyOwner, ProxyUsage};

/// A node whose proxy is not served.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NodeError {
    /// The node does not describe a proxy.
    #[error("{0}")]
    Invalid(String),
    /// The node is that of a ztunnel, and ambient mode is off.
    #[error("ztunnel is only served with PILOT_ENABLE_AMBIENT=true")]
    AmbientDisabled,
    /// The node is that of an agentgateway, and these are not served.
    #[error("agentgateway is only served with PILOT_ENABLE_AGENTGATEWAY=true")]
    AgentgatewayDisabled,
}

/// Receives the connected proxies: the `proxies` input of the graph.
pub trait ProxyInput: Send + Sync + 'static {
    /// The proxy that a node describes.
    ///
    /// # Errors
    /// An error in the node. The stream is refused with it.
    fn parse(&self, node: &Node) -> Result<Proxy, NodeError>;

    /// Hashes of what the proxy states about itself and that the resources it shares with others are built for. Called for
    /// a new proxy, before [`Self::set`].
    fn profile(&self, proxy: &Proxy) -> ClientProfile;

    /// Adds or replaces a connected proxy. Must not block.
    fn set(&self, key: ProxyKey, proxy: Arc<Proxy>);

    /// Records that a connected proxy subscribes to secrets. Must not block.
    fn add_secret_client(&self, key: ProxyKey);

    /// Removes a proxy that is no longer connected. Must not block.
    fn remove(&self, key: ProxyKey);
}

/// Time for which a proxy stays in the dataflow after its last stream ended. Most proxies reconnect sooner, and their
/// resources are unchanged then.
pub(crate) const PROXY_LINGER: Duration = Duration::from_secs(30);

/// The proxies by node id. Streams with the same id and the same description are one proxy. A stream with another
/// description, for example of a proxy that restarted with other settings, is a separate proxy.
pub(crate) struct ProxyRegistry {
    input: Arc<dyn ProxyInput>,
    proxies: DashMap<ProxyKey, RegisteredProxy>,
    /// What the proxies count towards the limits of their owners. It is locked while an entry of `proxies` is, never before.
    usage: ProxyUsage,
}

/// A proxy and its streams.
struct RegisteredProxy {
    proxy: Arc<Proxy>,
    owner: ProxyOwner,
    profile: ClientProfile,
    streams: BTreeSet<u64>,
    /// When the last stream ended.
    disconnected: Option<Instant>,
    /// The dataflow has the current description of the proxy.
    announced: bool,
}

impl RegisteredProxy {
    fn with_stream(proxy: &Arc<Proxy>, owner: ProxyOwner, profile: ClientProfile, stream: u64) -> Self {
        Self { proxy: proxy.clone(), owner, profile, streams: [stream].into(), disconnected: None, announced: false }
    }
}

impl RegisteredProxy {
    /// Whether another description of the proxy may take its key. The resources that were derived for an identity in a cluster stay
    /// there until the next epoch, so that they must not be those of another.
    fn is_free_for(&self, other: &Proxy) -> bool {
        let known = &self.proxy;
        self.streams.is_empty() && (&known.identity, &known.proven_cluster) == (&other.identity, &other.proven_cluster)
    }
}

impl ProxyRegistry {
    pub(crate) fn new(input: Arc<dyn ProxyInput>, limits: ProxyLimits) -> Self {
        Self { input, proxies: DashMap::new(), usage: ProxyUsage::new(limits) }
    }

    pub(crate) fn parse(&self, node: &Node) -> Result<Proxy, NodeError> {
        self.input.parse(node)
    }

    /// Adds a stream and returns the key of its proxy. The dataflow has the proxy after [`Self::announce`]. The profile of
    /// a new proxy is computed before: the dataflow uses results that the computation keeps.
    ///
    /// # Errors
    /// The proxy is new, and its owner has too many.
    pub(crate) fn add_stream(
        &self,
        stream: u64,
        proxy: &Arc<Proxy>,
        owner: ProxyOwner,
    ) -> Result<ProxyKey, ProxyLimitError> {
        let mut profile = None;
        loop {
            if let Some(key) = self.try_add_stream(stream, proxy, &owner, profile)? {
                return Ok(key);
            }
            // No entry is locked meanwhile, so that a profile that takes long delays no other proxy.
            profile = Some(self.input.profile(proxy));
        }
    }

    /// Adds a stream as [`Self::add_stream`] does. `None` if the proxy is new and its profile is not given.
    fn try_add_stream(
        &self,
        stream: u64,
        proxy: &Arc<Proxy>,
        owner: &ProxyOwner,
        profile: Option<ClientProfile>,
    ) -> Result<Option<ProxyKey>, ProxyLimitError> {
        let mut key = ProxyKey(proxy.id.clone());
        for number in 2.. {
            match self.proxies.entry(key.clone()) {
                Entry::Occupied(mut entry) if entry.get().proxy == *proxy => {
                    let known = entry.get_mut();
                    known.streams.insert(stream);
                    known.disconnected = None;
                    break;
                }
                Entry::Occupied(mut entry) if entry.get().is_free_for(proxy) => {
                    let Some(profile) = profile else { return Ok(None) };
                    let known = entry.get();
                    self.usage.add(owner, profile, Some((&known.owner, known.profile)))?;
                    entry.insert(RegisteredProxy::with_stream(proxy, owner.clone(), profile, stream));
                    break;
                }
                Entry::Occupied(_) => key = ProxyKey(format!("{}#{number}", proxy.id).into()),
                Entry::Vacant(entry) => {
                    let Some(profile) = profile else { return Ok(None) };
                    self.usage.add(owner, profile, None)?;
                    entry.insert(RegisteredProxy::with_stream(proxy, owner.clone(), profile, stream));
                    break;
                }
            }
        }
        Ok(Some(key))
    }

    /// Writes the proxy to the dataflow, unless the dataflow has it already.
    pub(crate) fn announce(&self, key: &ProxyKey) {
        // The entry stays locked, so that the input sees the changes of a proxy in order.
        if let Some(mut known) = self.proxies.get_mut(key)
            && !known.announced
        {
            self.input.set(key.clone(), known.proxy.clone());
            known.announced = true;
        }
    }

    /// Records that a stream of the proxy subscribes to secrets.
    pub(crate) fn add_secret_client(&self, key: &ProxyKey) {
        if let Some(_locked) = self.proxies.get(key) {
            self.input.add_secret_client(key.clone());
        }
    }

    /// Removes a stream of the proxy.
    pub(crate) fn remove_stream(&self, key: &ProxyKey, stream: u64, now: Instant) {
        let Some(mut known) = self.proxies.get_mut(key) else { return };
        known.streams.remove(&stream);
        if known.streams.is_empty() {
            known.disconnected = Some(now);
        }
    }

    /// Removes the proxies that have not reconnected within [`PROXY_LINGER`].
    pub(crate) fn remove_expired(&self, now: Instant) {
        let is_expired = |known: &RegisteredProxy| {
            known.disconnected.is_some_and(|at| now.saturating_duration_since(at) >= PROXY_LINGER)
        };
        let mut expired: Vec<ProxyKey> =
            self.proxies.iter().filter(|entry| is_expired(entry.value())).map(|entry| entry.key().clone()).collect();
        // The input sees the same order in every run.
        expired.sort_unstable();
        for key in expired {
            // The entry stays locked, so that the input sees the changes of a proxy in order.
            self.proxies.remove_if(&key, |key, known| {
                let expired = is_expired(known);
                if expired {
                    self.input.remove(key.clone());
                    self.usage.remove(&known.owner, known.profile);
                }
                expired
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The changes that it received, and the number of profiles that were computed.
    #[derive(Default)]
    struct RecordingInput(Mutex<Vec<(ProxyKey, Option<Arc<Proxy>>)>>, AtomicUsize);

    impl ProxyInput for RecordingInput {
        fn parse(&self, _: &Node) -> Result<Proxy, NodeError> {
            Err(NodeError::Invalid("this test parses no node".into()))
        }

        fn profile(&self, proxy: &Proxy) -> ClientProfile {
            self.1.fetch_add(1, Ordering::Relaxed);
            ClientProfile { properties: [proxy.istio_version.len() as u64, 0], ..ClientProfile::default() }
        }

        fn set(&self, key: ProxyKey, proxy: Arc<Proxy>) {
            self.0.lock().expect("no panic").push((key, Some(proxy)));
        }

        fn add_secret_client(&self, _: ProxyKey) {}

        fn remove(&self, key: ProxyKey) {
            self.0.lock().expect("no panic").push((key, None));
        }
    }

    #[test]
    fn proxy_that_reconnects_within_the_linger_time_stays_in_the_dataflow() {
        let input = Arc::new(RecordingInput::default());
        let registry = ProxyRegistry::new(input.clone(), ProxyLimits::default());
        let take_events = || std::mem::take(&mut *input.0.lock().expect("no panic"));
        let proxy =
            |version: &str| Arc::new(Proxy { id: "web".into(), istio_version: version.into(), ..Proxy::default() });
        let start = Instant::now();
        let connect = |stream: u64, proxy: &Arc<Proxy>| {
            let key = registry.add_stream(stream, proxy, None).expect("below the limits");
            registry.announce(&key);
            key
        };
        let key = connect(1, &proxy("1.30"));
        assert_eq!(take_events(), [(key.clone(), Some(proxy("1.30")))]);
        registry.remove_stream(&key, 1, start);
        registry.remove_expired(start + PROXY_LINGER / 2);
        assert_eq!(connect(2, &proxy("1.30")), key);
        registry.remove_expired(start + PROXY_LINGER * 2);
        assert_eq!(take_events(), [], "the dataflow has no change");

        registry.remove_stream(&key, 2, start);
        assert_eq!(connect(3, &proxy("1.31")), key, "no stream is left under this key");
        assert_eq!(take_events(), [(key.clone(), Some(proxy("1.31")))]);
        assert_ne!(connect(4, &proxy("1.30")), key, "another stream has this key");
        take_events();
        registry.remove_stream(&key, 3, start);
        registry.remove_expired(start + PROXY_LINGER);
        assert_eq!(take_events(), [(key, None)]);
    }

    #[test]
    fn profile_is_computed_for_a_new_proxy_only_and_before_the_dataflow_has_it() {
        let input = Arc::new(RecordingInput::default());
        let limits = ProxyLimits { anonymous_profiles: 2, ..ProxyLimits::default() };
        let registry = ProxyRegistry::new(input.clone(), limits);
        let proxy =
            |version: &str| Arc::new(Proxy { id: "web".into(), istio_version: version.into(), ..Proxy::default() });
        let profiles = || input.1.load(Ordering::Relaxed);
        let start = Instant::now();
        let connect =
            |stream: u64, version: &str| registry.add_stream(stream, &proxy(version), None).expect("below the limits");
        let key = connect(1, "1.30");
        assert_eq!((profiles(), input.0.lock().expect("no panic").len()), (1, 0));
        registry.announce(&key);
        assert_eq!(connect(2, "1.30"), key);
        for stream in [1, 2] {
            registry.remove_stream(&key, stream, start);
        }
        assert_eq!(connect(3, "1.30"), key);
        assert_eq!(profiles(), 1, "a further stream, and one that connects again");

        let other = connect(4, "1.30.1");
        assert_ne!(other, key);
        assert_eq!((connect(5, "1.30.1"), profiles()), (other, 2));
        assert!(registry.add_stream(6, &proxy("1.30.1-x"), None).is_err());
        assert_eq!(profiles(), 3, "refused by its profile");
        registry.remove_stream(&key, 3, start);
        assert_eq!((connect(7, "1.30.1-x"), profiles()), (key.clone(), 4), "it replaces the proxy without a stream");
        registry.remove_stream(&key, 7, start);
        registry.remove_expired(start + PROXY_LINGER);
        assert_eq!((connect(8, "1.30.1-x"), profiles()), (key, 5), "the dataflow no longer has it");
    }

    #[test]
    fn proxies_that_connect_at_a_time_are_counted_once() {
        let input = Arc::new(RecordingInput::default());
        let limits = ProxyLimits { anonymous_proxies: 1, ..ProxyLimits::default() };
        let registry = ProxyRegistry::new(input.clone(), limits);
        let proxy = Arc::new(Proxy { id: "web".into(), ..Proxy::default() });
        let connect = |stream: u64| registry.add_stream(stream, &proxy, None).map(|key| key.0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|stream| scope.spawn(move || connect(stream))).collect();
            for thread in threads {
                assert_eq!(thread.join().expect("no panic"), Ok("web".into()));
            }
        });
        assert!((1..=8).contains(&input.1.load(Ordering::Relaxed)));
        assert!(registry.add_stream(8, &Arc::new(Proxy { id: "other".into(), ..Proxy::default() }), None).is_err());
    }

    #[test]
    fn key_of_a_proxy_is_not_taken_over_by_another_identity_or_cluster_within_the_linger_time() {
        let registry = ProxyRegistry::new(Arc::new(RecordingInput::default()), ProxyLimits::default());
        let start = Instant::now();
        let connect = |stream: u64, proxy: Proxy| {
            let key = registry.add_stream(stream, &Arc::new(proxy), None).expect("below the limits");
            registry.remove_stream(&key, stream, start);
            key
        };
        let proxy = Proxy { id: "web".into(), proven_cluster: Some("east".into()), ..Proxy::default() };
        let key = connect(1, proxy.clone());
        assert_eq!(connect(2, Proxy { istio_version: "1.31".into(), ..proxy.clone() }), key);
        let other_cluster = Proxy { proven_cluster: Some("west".into()), ..proxy.clone() };
        assert_ne!(connect(3, other_cluster.clone()), key);
        let identity = Some(sluice_model::Identity::new("td", "shop", "web"));
        assert_ne!(connect(4, Proxy { identity, ..proxy }), key);
        registry.remove_expired(start + PROXY_LINGER);
        assert_eq!(connect(5, other_cluster), key);
    }

    #[test]
    fn known_profile_is_never_refused_and_is_free_again_after_the_linger_time() {
        let limits = ProxyLimits { anonymous_profiles: 1, ..ProxyLimits::default() };
        let registry = ProxyRegistry::new(Arc::new(RecordingInput::default()), limits);
        let proxy = |id: &str, version: &str| {
            Arc::new(Proxy { id: id.into(), istio_version: version.into(), ..Proxy::default() })
        };
        let start = Instant::now();
        let key = registry.add_stream(1, &proxy("a", "1.2"), None).expect("the first profile");
        assert!(registry.add_stream(2, &proxy("b", "1.2.3"), None).is_err(), "a second profile");
        assert!(registry.add_stream(2, &proxy("a", "1.2.3"), None).is_err(), "under the same id");
        registry.remove_stream(&key, 1, start);
        assert!(registry.add_stream(2, &proxy("b", "1.2.3"), None).is_err(), "the first proxy is in the dataflow");
        registry.add_stream(3, &proxy("a", "1.2"), None).expect("a proxy that reconnects");
        registry.add_stream(4, &proxy("c", "1.2"), None).expect("another proxy with this profile");
        for (key, stream) in [("a", 3), ("c", 4)] {
            registry.remove_stream(&ProxyKey(key.into()), stream, start);
        }
        registry.remove_expired(start + PROXY_LINGER);
        registry.add_stream(5, &proxy("b", "1.2.3"), None).expect("no proxy has another profile");
        assert!(registry.add_stream(6, &proxy("b", "1.2"), None).is_err());
        registry.remove_stream(&ProxyKey("b".into()), 5, start);
        registry.add_stream(7, &proxy("b", "1.2"), None).expect("it replaces the only proxy");
    }
}
