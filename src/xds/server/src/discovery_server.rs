//! All ADS streams over one store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use dashmap::DashMap;
use rand::Rng as _;
use sluice_auth::Caller;
use sluice_model::{Identity, Proxy, ProxyKey};
use sluice_tasks::ShortRequests;
use sluice_xds_protocol::{
    CallerNames, ChangeSignal, MAX_RESOURCE_NAME_BYTES, NameBudget, NameInterner, PushTrigger, Request, ScopeSnapshot,
    Session, Store, StreamError, XdsProtocol,
};
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::configuration::ConfigurationStore;
use crate::connection::Connection;
use crate::debug::DebugPages;
use crate::epoch_pushes::EpochPushes;
use crate::metrics::Metrics;
use crate::proxy_limits::ProxyLimits;
use crate::proxy_registry::{PROXY_LINGER, ProxyInput, ProxyRegistry};
use crate::request_turns::RequestTurns;
use crate::workload_observer::{StreamRefusal, WorkloadObserver};

/// Maximum number of proxies that are recorded as warming. Further ones take longer to warm.
const MAX_WARMING_PROXIES: usize = 10_000;
/// Time for which a proxy that has not reconnected is recorded as warming.
const WARMING_LINGER: Duration = Duration::from_secs(600);

/// All ADS streams over one store.
pub struct DiscoveryServer {
    store: Arc<Store>,
    names: Arc<NameInterner>,
    proxies: ProxyRegistry,
    metrics: Metrics,
    /// Whether the namespace and service account of a proxy must be those of an identity of its caller.
    checks_identity: bool,
    draining: CancellationToken,
    /// Mirror of `draining` that is read without taking its lock.
    is_draining: AtomicBool,
    streams: AtomicU64,
    /// Random offset of stream numbers in nonces, so that nonces differ from those of an earlier process.
    nonce_offset: u64,
    /// The identified streams, by number.
    connections: DashMap<u64, Arc<Connection>>,
    /// Proxies whose last stream ended while their clusters were warming, and when it ended.
    warming: DashMap<ProxyKey, Instant>,
    /// Answers requests for debug pages.
    debug_pages: OnceLock<Arc<dyn DebugPages>>,
    /// Configuration for other control planes.
    configuration: OnceLock<Arc<dyn ConfigurationStore>>,
    /// Follows the streams of workloads outside Kubernetes.
    workloads: OnceLock<Arc<dyn WorkloadObserver>>,
    admission: Arc<Admission>,
    request_turns: RequestTurns,
    /// Requests to other ports that go before the frames of responses.
    short_requests: ShortRequests,
    pushes: EpochPushes,
}

impl DiscoveryServer {
    /// A server without streams, which admits all new ones. With `checks_identity`, the namespace and service account of a
    /// proxy must be those of an identity of its authenticated caller (X20).
    #[must_use]
    pub fn new(store: Arc<Store>, proxies: Arc<dyn ProxyInput>, metrics: Metrics, checks_identity: bool) -> Arc<Self> {
        let (admission, limits) = (Admission::default(), ProxyLimits::default());
        Self::with_limits(store, proxies, metrics, checks_identity, admission, limits)
    }

    /// A server with limits for new streams and for the proxies that callers describe.
    #[must_use]
    pub fn with_limits(
        store: Arc<Store>,
        proxies: Arc<dyn ProxyInput>,
        metrics: Metrics,
        checks_identity: bool,
        admission: Admission,
        limits: ProxyLimits,
    ) -> Arc<Self> {
        let triggers = metrics.clone();
        store.observe_triggers(move |trigger| {
            triggers.triggered(match trigger {
                PushTrigger::Endpoint => "endpoint",
                PushTrigger::Config => "config",
                PushTrigger::Proxy => "proxy",
            });
        });
        let mut random = rand::rng();
        Arc::new(Self {
            store,
            names: Arc::new(NameInterner::with_seeds(random.random(), random.random())),
            proxies: ProxyRegistry::new(proxies, limits),
            metrics,
            checks_identity,
            draining: CancellationToken::new(),
            is_draining: AtomicBool::new(false),
            streams: AtomicU64::new(0),
            nonce_offset: random.random(),
            connections: DashMap::new(),
            warming: DashMap::new(),
            debug_pages: OnceLock::new(),
            configuration: OnceLock::new(),
            workloads: OnceLock::new(),
            admission: Arc::new(admission),
            request_turns: RequestTurns::default(),
            short_requests: ShortRequests::default(),
            pushes: EpochPushes::default(),
        })
    }

    /// Requests to other ports that go before the frames of responses: the ports report them here.
    #[must_use]
    pub fn short_requests(&self) -> &ShortRequests {
        &self.short_requests
    }

    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    pub(crate) fn request_turns(&self) -> &RequestTurns {
        &self.request_turns
    }

    /// The responses of the latest epochs.
    pub(crate) fn pushes(&self) -> &EpochPushes {
        &self.pushes
    }

    /// The store that the streams are served from.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn proxies(&self) -> &ProxyRegistry {
        &self.proxies
    }

    pub(crate) fn debug_pages(&self) -> Option<&Arc<dyn DebugPages>> {
        self.debug_pages.get()
    }

    /// Sets the debug pages. Only the first call has an effect.
    pub fn set_debug_pages(&self, pages: Arc<dyn DebugPages>) {
        // The first value stays.
        let _ = self.debug_pages.set(pages);
    }

    /// Sets the configuration that is served to other control planes. Only the first call has an effect.
    pub fn set_configuration(&self, store: Arc<dyn ConfigurationStore>) {
        // The first value stays.
        let _ = self.configuration.set(store);
    }

    pub(crate) fn configuration(&self) -> Option<&Arc<dyn ConfigurationStore>> {
        self.configuration.get()
    }

    /// Sets the observer of workloads outside Kubernetes. Only the first call has an effect.
    pub fn set_workload_observer(&self, workloads: Arc<dyn WorkloadObserver>) {
        // The first value stays.
        let _ = self.workloads.set(workloads);
    }

    pub(crate) fn workloads(&self) -> Option<&Arc<dyn WorkloadObserver>> {
        self.workloads.get()
    }

    /// Removes proxies whose last stream ended more than `PROXY_LINGER` ago, and what is recorded of those that ended long ago. Call it
    /// at an interval.
    pub fn remove_expired_proxies(&self, now: Instant) {
        self.proxies.remove_expired(now);
        self.warming.retain(|_, ended| now.saturating_duration_since(*ended) < WARMING_LINGER);
    }

    /// Removes expired proxies until the server drains.
    pub async fn keep_removing_expired_proxies(self: Arc<Self>) {
        let mut interval = tokio::time::interval(PROXY_LINGER / 10);
        loop {
            tokio::select! {
                _ = interval.tick() => self.remove_expired_proxies(Instant::now()),
                () = self.draining.cancelled() => return,
            }
        }
    }

    /// Ends all streams, so that their clients connect to another replica, and refuses new ones.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.draining.cancel();
    }

    pub(crate) fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// The identified streams, in order of connecting.
    pub(crate) fn connections(&self) -> BTreeMap<u64, Arc<Connection>> {
        self.connections.iter().map(|entry| (*entry.key(), entry.value().clone())).collect()
    }

    /// The proxy that the first request of a stream describes, with its verified identity.
    pub(crate) fn identify(&self, caller: &Caller, request: &Request) -> Result<Proxy, StreamError> {
        let mut proxy = self.parse(request).map_err(|reason| {
            self.metrics.refused("node");
            tracing::warn!(
                target: "ads", peer = %caller.address(), authenticator = caller.authenticator, "refused a stream: {reason}"
            );
            StreamError::Invalid(reason)
        })?;
        proxy.identity = self.verified_identity(caller, &proxy)?;
        proxy.proven_cluster = caller.cluster.clone();
        Ok(proxy)
    }

    /// The proxy that a request describes, or why there is none.
    fn parse(&self, request: &Request) -> Result<Proxy, String> {
        let node = request.node.as_ref().filter(|node| !node.id.is_empty());
        let node = node.ok_or_else(|| "missing node information".to_owned())?;
        if node.id.len() > MAX_RESOURCE_NAME_BYTES {
            return Err(format!("the node id is longer than {MAX_RESOURCE_NAME_BYTES} bytes"));
        }
        self.proxies.parse(node).map_err(|error| error.to_string())
    }

    /// The identity of the caller that matches the proxy.
    fn verified_identity(&self, caller: &Caller, proxy: &Proxy) -> Result<Option<Identity>, StreamError> {
        if !self.checks_identity {
            return Ok(None);
        }
        caller.identity_of(proxy).map_err(|mismatch| {
            self.metrics.refused("identity");
            tracing::warn!(
                target: "ads", node = %proxy.id, peer = %caller.address(), authenticator = caller.authenticator, "refused a stream: {mismatch}"
            );
            StreamError::Denied(format!("authorization failed: {mismatch}"))
        })
    }

    /// Brings the snapshot of a connection's proxy up to date. Proxy keys are reused: a scope for another identity is
    /// cleared from the snapshot.
    pub(crate) fn refresh(&self, snapshot: &mut ScopeSnapshot, connection: &Connection, session: &Session) {
        self.store.refresh(snapshot, &connection.key, session.kinds());
        if snapshot.scope().is_some_and(|scope| scope.scope().identity != connection.proxy.identity) {
            snapshot.clear();
        }
    }

    /// Adds an identified stream.
    ///
    /// # Errors
    /// The caller has connected too many different proxies.
    pub(crate) fn connect(
        &self,
        protocol: XdsProtocol,
        caller: &Caller,
        proxy: Arc<Proxy>,
        budget: &Arc<NameBudget>,
    ) -> Result<Arc<Connection>, StreamError> {
        let id = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        let owner = proxy.identity.clone().or_else(|| caller.identities.first().cloned());
        let key = self.proxies.add_stream(id, &proxy, owner).map_err(|limit| {
            self.metrics.refused(limit.reason);
            tracing::warn!(
                target: "ads", node = %proxy.id, peer = %caller.address(), authenticator = caller.authenticator, "refused a stream: {limit}"
            );
            StreamError::Exhausted(limit.to_string())
        })?;
        let names = CallerNames::new(self.names.clone(), budget.clone());
        let mut session = Session::new(protocol, key.clone(), self.nonce_offset.wrapping_add(id), names);
        if proxy.grpc {
            session.use_names_only();
        }
        if self.warming.remove(&key).is_some() {
            session.resend_endpoints();
        }
        let span = tracing::info_span!(target: "ads", "stream", proxy = %key.0);
        let identity = proxy.identity.as_ref().map(tracing::field::display);
        tracing::info!(
            target: "ads", parent: &span, node = %key.0, peer = %caller.address(), identity,
            proxy_type = ?proxy.proxy_type, protocol = ?protocol, stream = id, "proxy connected"
        );
        let counted = self.metrics.connected(&proxy.istio_version);
        let signal = Arc::new(ChangeSignal::new(self.admission.clone()));
        let connection = Arc::new(Connection {
            id,
            key,
            proxy,
            caller: caller.clone(),
            connected_at: SystemTime::now(),
            connected: Instant::now(),
            session: Mutex::new(session),
            refusal: StreamRefusal::new(signal.clone()),
            signal,
            span,
            _counted: counted,
        });
        self.connections.insert(id, connection.clone());
        self.store.watch_proxy(&connection.key, id, &connection.signal);
        self.proxies.announce(&connection.key);
        if let Some(workloads) = self.workloads() {
            workloads.connected(id, &connection.proxy, connection.connected_at, connection.refusal.clone());
        }
        Ok(connection)
    }

    /// Removes an identified stream that has ended.
    pub(crate) fn disconnect(&self, connection: &Connection, now: Instant) {
        self.store.unwatch_proxy(&connection.key, connection.id);
        self.connections.remove(&connection.id);
        if connection.session().is_warming() && self.warming.len() < MAX_WARMING_PROXIES {
            self.warming.insert(connection.key.clone(), now);
        }
        self.proxies.remove_stream(&connection.key, connection.id, now);
        if let Some(workloads) = self.workloads() {
            workloads.disconnected(connection.id, &connection.proxy);
        }
        let identity = connection.proxy.identity.as_ref().map(tracing::field::display);
        tracing::info!(
            target: "ads", parent: &connection.span, node = %connection.key.0, peer = %connection.caller.address(),
            identity, proxy_type = ?connection.proxy.proxy_type, stream = connection.id,
            duration = ?now.saturating_duration_since(connection.connected), "proxy disconnected"
        );
    }
}
