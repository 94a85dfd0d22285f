//! Moves the engine's epochs to the store, and connected proxies to the engine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use sluice_engine::{Batch, Engine, Feed, Input, Published};
use sluice_model::{
    ClientProfile, Proxy, ProxyKey, ProxyType, Resource, ResourceKey, Scope, Segment, SegmentKey, Text,
};
use sluice_parse::parse_proxy;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_xds_protocol::{ChangeTimes, EpochChanges, Store};
use tokio::sync::oneshot;

use crate::Metrics;
use crate::proxy_registry::{NodeError, ProxyInput};

/// The published collections that are served.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// Whole resources, in collections that share no key.
    pub resources: Vec<Published<ResourceKey, Resource>>,
    /// Segments of large resources, in collections that share no key.
    pub segments: Vec<Published<SegmentKey, Segment>>,
    /// The scope of each proxy.
    pub scopes: Published<ProxyKey, Scope>,
}

/// Keeps the store at the engine's latest epoch, until the engine stops. The store is ready once all inputs are synced;
/// `ready` is sent then.
pub async fn follow(
    engine: &Engine,
    outputs: &Outputs,
    store: Arc<Store>,
    metrics: &Metrics,
    ready: oneshot::Sender<()>,
) {
    let mut ready = Some(ready);
    let feed = outputs.resources.iter().fold(engine.feed().only(&outputs.scopes), Feed::only);
    let mut feed = outputs.segments.iter().fold(feed, Feed::only);
    while let Some(batch) = feed.next().await {
        let now = Instant::now();
        let changes = changes(&batch, outputs, now, SystemTime::now());
        if let Some(times) = changes.times.filter(|_| !changes.resources.is_empty() || !changes.segments.is_empty()) {
            metrics.committed(&times);
        }
        store.apply(changes, now);
        store.set_source_epoch(batch.epoch().0);
        if batch.all_synced() && !store.is_ready() {
            store.set_ready();
            if let Some(ready) = ready.take() {
                // Fails only if the process stops.
                let _ = ready.send(());
            }
            tracing::info!(target: "ads", epoch = batch.epoch().0, "all inputs are synced; serving proxies");
        }
    }
}

/// The changes of a batch, with the times at which they arrived.
fn changes(batch: &Batch, outputs: &Outputs, now: Instant, wall: SystemTime) -> EpochChanges {
    let timing = batch.timing();
    let taken = now.checked_sub(timing.took).unwrap_or(now);
    let source =
        timing.received.and_then(|received| instant(received, now, wall)).map_or(taken, |source| source.min(taken));
    let resources = outputs.resources.iter().flat_map(|of| batch.events(of));
    let segments = outputs.segments.iter().flat_map(|of| batch.events(of));
    EpochChanges {
        resources: resources.map(|event| (own(event.key), event.new.map(own))).collect(),
        segments: segments.map(|event| (own(event.key), event.new.map(own))).collect(),
        scopes: batch.events(&outputs.scopes).map(|event| (own(event.key), event.new)).collect(),
        times: Some(ChangeTimes { source_epoch: batch.epoch().0, source, parsed: taken, committed: now }),
    }
}

fn own<T: Clone>(value: Arc<T>) -> T {
    Arc::unwrap_or_clone(value)
}

/// The instant of this time since the Unix epoch.
fn instant(received: Duration, now: Instant, wall: SystemTime) -> Option<Instant> {
    let ago = wall.duration_since(SystemTime::UNIX_EPOCH).ok()?.checked_sub(received)?;
    now.checked_sub(ago)
}

/// The types of proxies that are served only if they are enabled.
#[derive(Clone, Copy, Debug, Default)]
pub struct OptionalProxies {
    /// Ztunnels (`PILOT_ENABLE_AMBIENT`).
    pub ztunnels: bool,
    /// Agentgateways (`PILOT_ENABLE_AGENTGATEWAY`).
    pub agentgateways: bool,
}

/// Writes connected proxies into the engine.
pub struct EngineProxies {
    input: Input<ProxyKey, Proxy>,
    secret_clients: Input<ProxyKey, ()>,
    /// Aliases of cluster names (`--clusterAliases`).
    aliases: BTreeMap<Text, Text>,
    optional: OptionalProxies,
    profile: Box<dyn Fn(&Proxy) -> ClientProfile + Send + Sync>,
}

impl fmt::Debug for EngineProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineProxies").field("optional", &self.optional).finish_non_exhaustive()
    }
}

impl EngineProxies {
    /// Writes proxies, and those of them that subscribe to secrets, to these inputs. The inputs are marked as synced, because no
    /// proxy is connected yet. `profile` hashes what a proxy states and that shared resources are built for.
    #[must_use]
    pub fn new(
        input: Input<ProxyKey, Proxy>,
        secret_clients: Input<ProxyKey, ()>,
        aliases: BTreeMap<Text, Text>,
        optional: OptionalProxies,
        profile: impl Fn(&Proxy) -> ClientProfile + Send + Sync + 'static,
    ) -> Self {
        input.mark_synced();
        secret_clients.mark_synced();
        Self { input, secret_clients, aliases, optional, profile: Box::new(profile) }
    }
}

impl ProxyInput for EngineProxies {
    fn parse(&self, node: &Node) -> Result<Proxy, NodeError> {
        let proxy = parse_proxy(node, &self.aliases).map_err(|error| NodeError::Invalid(error.to_string()))?;
        match proxy.proxy_type {
            ProxyType::Ztunnel if !self.optional.ztunnels => Err(NodeError::AmbientDisabled),
            ProxyType::Agentgateway if !self.optional.agentgateways => Err(NodeError::AgentgatewayDisabled),
            _ => Ok(proxy),
        }
    }

    fn profile(&self, proxy: &Proxy) -> ClientProfile {
        (self.profile)(proxy)
    }

    fn set(&self, key: ProxyKey, proxy: Arc<Proxy>) {
        self.input.set_shared(key, proxy);
    }

    fn add_secret_client(&self, key: ProxyKey) {
        self.secret_clients.set(key, ());
    }

    fn remove(&self, key: ProxyKey) {
        self.secret_clients.delete(key.clone());
        self.input.delete(key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use bytes::Bytes;
    use sluice_engine::{Clock, EngineOptions, GraphBuilder, Origin};
    use sluice_model::{Layer, ResourceType};

    use super::*;
    use crate::proxy_limits::ProxyLimits;
    use crate::proxy_registry::ProxyRegistry;

    /// Holds the dataflow thread at the beginning of an epoch, as a long epoch does.
    #[derive(Clone, Default)]
    struct LongEpoch(Arc<(Mutex<bool>, Condvar)>);

    impl LongEpoch {
        fn clock(&self) -> Clock {
            let held = self.clone();
            Clock::new(move || {
                if std::thread::current().name() == Some("sluice-dataflow") {
                    drop(held.0.1.wait_while(held.0.0.lock().expect("no panic"), |held| *held));
                }
                Duration::ZERO
            })
        }

        fn set(&self, is_held: bool) {
            *self.0.0.lock().expect("no panic") = is_held;
            self.0.1.notify_all();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn reconnect_of_all_proxies_during_a_long_epoch_blocks_no_worker() {
        const PROXIES: usize = 10_000;
        let build = |builder: &mut GraphBuilder| {
            builder.dataflow("config", |graph| {
                let (proxies, connected) = graph.input::<ProxyKey, Proxy>("proxies");
                (proxies, graph.input::<ProxyKey, ()>("secret_clients").0, connected.publish())
            })
        };
        let epoch = LongEpoch::default();
        let options = EngineOptions { clock: epoch.clock(), ..EngineOptions::default() };
        let (engine, (proxies, secret_clients, connected)) = Engine::start(options, build);
        let profile = |_: &Proxy| ClientProfile::default();
        let input = EngineProxies::new(proxies, secret_clients, BTreeMap::new(), OptionalProxies::default(), profile);
        let registry = Arc::new(ProxyRegistry::new(Arc::new(input), ProxyLimits::default()));
        engine.flush();
        epoch.set(true);
        let streams: Vec<_> = (0..PROXIES)
            .map(|n| {
                let registry = registry.clone();
                tokio::spawn(async move {
                    let proxy = Arc::new(Proxy { id: format!("web-{n}").into(), ..Proxy::default() });
                    let key = registry.add_stream(n as u64, &proxy, None).expect("below the limits");
                    registry.announce(&key);
                    registry.add_secret_client(&key);
                })
            })
            .collect();
        // Other work of the runtime, such as a response of /ready, is done meanwhile.
        let guard = Duration::from_secs(60);
        let connecting = tokio::time::timeout(guard, futures::future::join_all(streams));
        let is_done = connecting.await.is_ok() && tokio::time::timeout(guard, tokio::spawn(async {})).await.is_ok();
        epoch.set(false);
        assert!(is_done, "the workers wait for the epoch");
        engine.flush();
        assert_eq!(engine.snapshot().len(&connected), PROXIES);
    }

    #[test]
    fn published_epochs_are_applied_to_the_store() {
        let build = |builder: &mut GraphBuilder| {
            builder.dataflow("config", |graph| {
                let (resource_input, resources) = graph.input::<ResourceKey, Resource>("resources");
                let (_, segments) = graph.input::<SegmentKey, Segment>("segments");
                let (proxies, connected) = graph.input::<ProxyKey, Proxy>("proxies");
                let scope = |_: &ProxyKey, _: &Proxy| Scope {
                    layers: BTreeMap::from([(ResourceType::Cluster, [Layer::default()].into())]),
                    ..Scope::default()
                };
                let scopes = connected.map("scopes", scope).publish();
                let outputs =
                    Outputs { resources: vec![resources.publish()], segments: vec![segments.publish()], scopes };
                let (secret_clients, _) = graph.input::<ProxyKey, ()>("secret_clients");
                (resource_input, proxies, secret_clients, outputs)
            })
        };
        let (engine, (resources, proxies, secret_clients, outputs)) = Engine::start(EngineOptions::default(), build);
        let optional = OptionalProxies::default();
        let proxies =
            EngineProxies::new(proxies, secret_clients, BTreeMap::new(), optional, |_| ClientProfile::default());
        let node = |id: &str| Node { id: id.into(), ..Node::default() };
        let id = "sidecar~10.0.0.1~web.orchard~orchard.svc.cluster.local";
        assert!(proxies.parse(&node("nonsense")).is_err());
        let ztunnel = proxies.parse(&node("ztunnel~10.0.0.2~ztunnel-x.istio-system~istio-system.svc.cluster.local"));
        assert_eq!(ztunnel.expect_err("ambient mode is off"), NodeError::AmbientDisabled);
        let agentgateway = proxies.parse(&node("agentgateway~10.0.0.1~door-1.edge~edge.svc.cluster.local"));
        assert_eq!(agentgateway.expect_err("they are not served"), NodeError::AgentgatewayDisabled);
        let key = ProxyKey(id.into());
        proxies.set(key.clone(), proxies.parse(&node(id)).expect("a node").into());
        let name = ResourceKey { resource_type: ResourceType::Cluster, layer: Layer::default(), name: "a".into() };
        let received =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970") - Duration::from_secs(3);
        let origin = Origin { received: Some(received), ..Origin::version("1") };
        resources.set_from(name.clone(), Resource::Encoded(Bytes::from_static(b"\x0a\x01a")), origin);
        engine.flush();

        let store = Store::default();
        let mut feed = engine.feed();
        let batch = feed.try_next().expect("the state");
        assert!(!batch.all_synced());
        let all = changes(&batch, &outputs, Instant::now(), SystemTime::now());
        let times = all.times.expect("the times");
        let waited = times.parsed - times.source;
        assert!((Duration::from_secs(2)..Duration::from_secs(60)).contains(&waited), "{waited:?}");
        store.apply(all, Instant::now());
        let names = |store: &Store| {
            let snapshot = store.snapshot(&key, [ResourceType::Cluster]);
            snapshot.view(ResourceType::Cluster).map(|view| view.names().len())
        };
        assert_eq!(names(&store), Some(1));

        resources.delete(name);
        proxies.remove(ProxyKey("unknown".into()));
        engine.flush();
        let batch = feed.try_next().expect("a change");
        store.apply(changes(&batch, &outputs, Instant::now(), SystemTime::now()), Instant::now());
        assert_eq!(names(&store), Some(0));
        proxies.remove(key.clone());
        engine.flush();
        let batch = feed.try_next().expect("a change");
        store.apply(changes(&batch, &outputs, Instant::now(), SystemTime::now()), Instant::now());
        assert_eq!(names(&store), None);
    }
}
