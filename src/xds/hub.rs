//! All streams: who is connected, and what happens to each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use rand::Rng as _;
use sluice_auth::Caller;
use sluice_model::{Identity, Proxy, ProxyKey, ResourceType};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::xds::admission::{Admission, Class};
use crate::xds::debug::{self, DebugPages, Inspections};
use crate::xds::kinds::Kinds;
use crate::xds::metrics::Metrics;
use crate::xds::names::Names;
use crate::xds::proxies::{LINGER, ProxyInput, Roster};
use crate::xds::request::{MAX_ERROR, Protocol, Refusal, Request, Response};
use crate::xds::secrets;
use crate::xds::session::{HEALTH_TYPE, Noted, Session};
use crate::xds::store::{Cut, Sight, Stamp, Store};
use crate::xds::wake::Wake;
use crate::xds::wire::{PREFIX, Rope};

/// All streams, over one store.
pub struct Hub {
    store: Arc<Store>,
    names: Arc<Names>,
    roster: Roster,
    metrics: Metrics,
    /// Whether a proxy has to be who its caller is.
    checks_identity: bool,
    draining: CancellationToken,
    /// It is cancelled, for who asks often.
    drains: AtomicBool,
    streams: AtomicU64,
    /// Makes nonces differ from those of an earlier process.
    salt: u64,
    seats: Mutex<BTreeMap<u64, Arc<Seat>>>,
    /// Proxies whose last stream ended while their clusters were warming.
    cold: Mutex<BTreeSet<ProxyKey>>,
    /// Who answers requests for debug pages, if anybody does.
    pages: OnceLock<Arc<dyn DebugPages>>,
    admission: Arc<Admission>,
}

/// How long a stream asks for no further type until it counts as configured.
const SETTLED: Duration = Duration::from_secs(1);

/// Changed resources above which an answer waits for a turn: thousands of streams would make theirs at once, and hold them.
const BULK: usize = 256;

/// The most proxies that are remembered as warming; beyond that some take longer to be warm.
const COLD: usize = 10_000;

/// A stream whose client has said who it is.
pub(crate) struct Seat {
    pub(crate) id: u64,
    pub(crate) key: ProxyKey,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) caller: Caller,
    pub(crate) connected_at: SystemTime,
    pub(crate) session: Mutex<Session>,
    wake: Arc<Wake>,
}

impl Hub {
    /// No streams yet, and all that come are let in. With `checks_identity`, a caller that is authenticated has to be the
    /// proxy it says it is (X20).
    #[must_use]
    pub fn new(store: Arc<Store>, proxies: Arc<dyn ProxyInput>, metrics: Metrics, checks_identity: bool) -> Arc<Self> {
        Self::with_admission(store, proxies, metrics, checks_identity, Admission::default())
    }

    /// The same with limits for new streams.
    #[must_use]
    pub fn with_admission(
        store: Arc<Store>,
        proxies: Arc<dyn ProxyInput>,
        metrics: Metrics,
        checks_identity: bool,
        admission: Admission,
    ) -> Arc<Self> {
        store.measure(&metrics);
        Arc::new(Self {
            store,
            names: Arc::default(),
            roster: Roster::new(proxies),
            metrics,
            checks_identity,
            draining: CancellationToken::new(),
            drains: AtomicBool::new(false),
            streams: AtomicU64::new(0),
            salt: rand::rng().random(),
            seats: Mutex::default(),
            cold: Mutex::default(),
            pages: OnceLock::new(),
            admission: Arc::new(admission),
        })
    }

    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// The store the streams are served from.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Answers requests for debug pages from now on; only the first call counts.
    pub fn show(&self, pages: Arc<dyn DebugPages>) {
        // Whoever was first stays.
        let _ = self.pages.set(pages);
    }

    /// A stream that has begun.
    ///
    /// # Errors
    /// Unavailable while the store is not ready or the server drains.
    pub fn open(self: &Arc<Self>, protocol: Protocol, caller: Caller) -> Result<Stream, Refusal> {
        if self.is_draining() {
            return Err(Refusal::Unavailable("the server is shutting down".into()));
        }
        if !self.store.is_ready() {
            return Err(Refusal::Unavailable("the server has not read all configuration yet".into()));
        }
        Ok(Stream {
            hub: self.clone(),
            protocol,
            caller,
            seat: None,
            watched: None,
            kinds: Kinds::default(),
            cut: Cut::default(),
            asks_for_secrets: false,
            stamps: BTreeMap::new(),
            late: None,
            bulk: false,
            inspections: Inspections::default(),
            settled: Settled::default(),
        })
    }

    /// Takes proxies out of the mesh that have been gone for half a minute. To be called now and then.
    pub fn sweep(&self, now: Instant) {
        self.roster.sweep(now);
    }

    /// Sweeps until the hub drains.
    pub async fn keep_swept(self: Arc<Self>) {
        let mut turn = tokio::time::interval(LINGER / 10);
        loop {
            tokio::select! {
                _ = turn.tick() => self.sweep(Instant::now()),
                () = self.draining.cancelled() => return,
            }
        }
    }

    /// Ends all streams: their clients go elsewhere. New ones are refused.
    pub fn drain(&self) {
        self.drains.store(true, Ordering::Release);
        self.draining.cancel();
    }

    pub(crate) fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    /// The streams whose clients are known, in the order in which they began.
    pub(crate) fn seats(&self) -> BTreeMap<u64, Arc<Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Who the first request of a stream says to be, and may.
    fn proxy(&self, caller: &Caller, request: &Request) -> Result<Proxy, Refusal> {
        let node = request.node.as_ref().filter(|node| !node.id.is_empty());
        let node = node.ok_or_else(|| Refusal::Invalid("missing node information".into()))?;
        if node.id.len() > crate::xds::request::MAX_NAME {
            return Err(Refusal::Invalid("the node id is too long".into()));
        }
        let mut proxy = self.roster.parse(node).map_err(Refusal::Invalid)?;
        proxy.identity = self.identify(caller, &proxy)?;
        Ok(proxy)
    }

    /// Who of the caller's identities the proxy is.
    fn identify(&self, caller: &Caller, proxy: &Proxy) -> Result<Option<Identity>, Refusal> {
        if !self.checks_identity {
            return Ok(None);
        }
        caller.identity_of(proxy).map_err(|impostor| {
            self.metrics.refused("identity");
            tracing::warn!(
                target: "ads", node = %proxy.id, peer = %caller.address(), means = caller.means, "refused a stream: {impostor}"
            );
            Refusal::Denied(format!("authorization failed: {impostor}"))
        })
    }

    /// Renews what the seat's proxy sees of what its client wants. Keys of proxies are used again: what is there of an
    /// earlier one that was somebody else is not for this one.
    fn renew(&self, cut: &mut Cut, seat: &Seat, session: &Session) {
        self.store.renew(cut, &seat.key, session.kinds());
        if cut.sight.as_ref().is_some_and(|sight| sight.scope().identity != seat.proxy.identity) {
            cut.blind();
        }
    }

    fn seat(&self, protocol: Protocol, caller: &Caller, proxy: Arc<Proxy>) -> Arc<Seat> {
        let id = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        let key = self.roster.enter(id, &proxy);
        let mut session = Session::new(protocol, key.clone(), self.salt.wrapping_add(id), self.names.clone());
        if self.cold.lock().unwrap_or_else(PoisonError::into_inner).remove(&key) {
            session.warm_again();
        }
        let seat = Arc::new(Seat {
            id,
            key: key.clone(),
            proxy,
            caller: caller.clone(),
            connected_at: SystemTime::now(),
            session: Mutex::new(session),
            wake: Arc::new(Wake::new(self.admission.clone())),
        });
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).insert(id, seat.clone());
        self.store.watch_proxy(&key, id, &seat.wake);
        self.metrics.connected(&seat.proxy.istio_version, 1);
        self.roster.join(&key);
        seat
    }
}

/// One stream: what it is asked and what it answers, still without I/O. Dropping it ends it.
pub struct Stream {
    hub: Arc<Hub>,
    protocol: Protocol,
    caller: Caller,
    /// Nothing until the client has said who it is.
    seat: Option<Arc<Seat>>,
    /// What wakes it: changes of this scope's layers, of these types.
    watched: Option<Arc<Sight>>,
    kinds: Kinds,
    /// What its proxy sees of these types: the latest as long as it is not woken.
    cut: Cut,
    /// The mesh has been told that it asks for secrets.
    asks_for_secrets: bool,
    /// Responses that are not acknowledged yet and the changes they carry.
    stamps: BTreeMap<ResourceType, Instant>,
    /// The changes that are being sent.
    late: Option<Stamp>,
    /// They are many resources, and have not all been sent.
    bulk: bool,
    /// Debug pages it has asked for.
    inspections: Inspections,
    settled: Settled,
}

/// Whether a client has its configuration.
#[derive(Clone, Copy, Debug, Default)]
enum Settled {
    /// It has not had an answer for everything it asked for.
    #[default]
    No,
    /// It has since then, but may ask for more.
    Since(Instant),
    Yes,
}

/// A response, encoded.
#[derive(Debug)]
pub struct Encoded {
    pub(crate) rope: Rope,
    /// When it was begun.
    pub(crate) begun: Instant,
}

impl Encoded {
    /// The message in one piece.
    #[must_use]
    pub fn bytes(self) -> Bytes {
        let message = self.rope.finish().collect::<Vec<_>>().concat();
        Bytes::from(message).split_off(PREFIX)
    }
}

impl Stream {
    /// Takes a request in.
    ///
    /// # Errors
    /// Why the stream is to be ended.
    pub fn request(&mut self, request: Request, now: Instant) -> Result<(), Refusal> {
        if debug::is_debug(&request.type_url) {
            return self.inspect(request);
        }
        let seat = match &self.seat {
            Some(seat) => seat.clone(),
            None => {
                // A probe may report health before the proxy asks for anything (X06).
                if request.type_url == HEALTH_TYPE {
                    return Ok(());
                }
                let mut proxy = self.hub.proxy(&self.caller, &request)?;
                // Envoy takes them over delta streams only, and refuses tables that lead to them otherwise.
                proxy.virtual_hosts &= self.protocol == Protocol::Delta;
                let seat = self.hub.seat(self.protocol, &self.caller, proxy.into());
                tracing::debug!(target: "ads", node = %seat.key.0, peer = %seat.caller.address(), stream = seat.id, "connected");
                self.seat.insert(seat).clone()
            }
        };
        let error = request.error.clone();
        let mut session = seat.session.lock().unwrap_or_else(PoisonError::into_inner);
        match session.request(request, now)? {
            Noted::Request => {}
            Noted::Acknowledged(kind) => {
                if let Some(sent) = self.stamps.remove(&kind) {
                    self.hub.metrics.acknowledged(sent, now);
                }
            }
            Noted::Rejected(kind) => {
                self.stamps.remove(&kind);
                let (code, message) = error.unwrap_or_default();
                let message = message.get(..message.floor_char_boundary(MAX_ERROR)).unwrap_or_default();
                self.hub.metrics.rejected(kind, &seat.key.0, code);
                tracing::warn!(target: "ads", node = %seat.key.0, kind = ?kind, code, message, "proxy rejected configuration");
            }
            Noted::Expired(kind) => self.hub.metrics.expired(kind),
        }
        if !self.asks_for_secrets && session.kinds().contains(ResourceType::Secret) {
            self.asks_for_secrets = true;
            self.hub.roster.asks_for_secrets(&seat.key);
        }
        Ok(())
    }

    /// Takes a request for debug pages in. Whoever only asks for those becomes no proxy of the mesh.
    fn inspect(&mut self, request: Request) -> Result<(), Refusal> {
        if !self.inspections.knows_caller() {
            let identity = match &self.seat {
                Some(seat) => seat.proxy.identity.clone(),
                None => self.hub.proxy(&self.caller, &request)?.identity,
            };
            self.inspections.set_caller(identity);
        }
        self.inspections.take(request, self.protocol, self.hub.pages.get()).inspect_err(|refusal| self.refused(refusal))
    }

    /// The next answer to a request for debug pages, if there is one.
    pub(crate) fn poll_debug(&mut self, cx: &mut Context<'_>) -> Poll<Result<Encoded, Refusal>> {
        let answer = std::task::ready!(self.inspections.poll(cx)).inspect_err(|refusal| self.refused(refusal));
        Poll::Ready(answer.map(|answer| Encoded { rope: answer.encode(), begun: Instant::now() }))
    }

    /// Its requests cannot be read any further.
    pub(crate) fn failed(&self, status: &Status) {
        self.hub.metrics.failed();
        let node = self.seat.as_ref().map_or("unknown", |seat| &*seat.key.0);
        tracing::info!(
            target: "ads", node, peer = %self.caller.address(), code = ?status.code(),
            "the stream is ended: {}", status.message()
        );
    }

    fn refused(&self, refusal: &Refusal) {
        self.hub.metrics.refused("debug");
        let identities: Vec<String> = self.caller.identities.iter().map(ToString::to_string).collect();
        tracing::warn!(
            target: "ads", peer = %self.caller.address(), means = self.caller.means, ?identities,
            "refused to show a debug page: {refusal}"
        );
    }

    /// The next response, if there is something to send now. To be asked again until there is none.
    pub fn poll(&mut self, now: Instant) -> Option<Response> {
        let seat = self.seat.clone()?;
        let mut session = seat.session.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.look(&seat, &session);
        let response = session.poll(&self.cut, woken, now);
        let unserved = session.take_unserved();
        let is_blocked = session.retry_at().is_some();
        drop(session);
        if !unserved.is_empty() {
            self.hub.metrics.secrets_not_served(unserved.len());
            let reasons = secrets::explain(&unserved, &seat, self.cut.sight.as_ref().map(|sight| sight.scope()));
            tracing::warn!(target: "ads", node = %seat.key.0, peer = %seat.caller.address(), "secrets are not served: {reasons}");
        }
        match &response {
            Some(response) => self.answers(response, now),
            None => {
                if let Some(stamp) = self.late.take() {
                    self.hub.metrics.converged(&stamp, now);
                }
                self.bulk &= is_blocked;
            }
        }
        response
    }

    /// Has the cut show what the proxy sees now; gives the first epoch that is new in it.
    fn look(&mut self, seat: &Seat, session: &Session) -> Option<u64> {
        let mut woken = seat.wake.take();
        if woken.is_some() || self.cut.sight.is_none() || self.kinds != session.kinds() {
            self.hub.renew(&mut self.cut, seat, session);
            if self.watch(seat, session) {
                // What changed before we were told of changes.
                woken = woken.or(seat.wake.take());
                self.hub.renew(&mut self.cut, seat, session);
            }
        }
        woken
    }

    /// Remembers which change a response tells of.
    fn answers(&mut self, response: &Response, now: Instant) {
        if response.since.is_none() {
            self.hub.metrics.triggered("proxyrequest");
        }
        if let (Some(kind), Some(epoch)) = (response.kind, response.since)
            && let Some(stamp) = self.cut.stamp(epoch).or_else(|| self.hub.store.stamp(epoch))
        {
            self.hub.metrics.first_byte(&stamp, now);
            self.stamps.insert(kind, now);
            self.late = Some(stamp);
        }
    }

    /// The next response in the protocol's encoding.
    pub fn poll_encoded(&mut self, now: Instant) -> Option<Encoded> {
        let response = self.poll(now)?;
        Some(self.encode(&response, now))
    }

    /// The next response about endpoints, while everything else waits for a turn. If many changed, they wait too.
    pub fn poll_endpoints(&mut self, now: Instant) -> Option<Encoded> {
        let seat = self.seat.clone()?;
        let mut session = seat.session.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.look(&seat, &session);
        let response = session.poll_endpoints(&self.cut, woken, BULK, now)?;
        drop(session);
        self.answers(&response, now);
        Some(self.encode(&response, now))
    }

    fn encode(&self, response: &Response, now: Instant) -> Encoded {
        let rope = match self.protocol {
            Protocol::Sotw => crate::xds::sotw::encode(response),
            Protocol::Delta => crate::xds::delta::encode(response),
        };
        if let Some(kind) = response.kind {
            self.hub.metrics.built(kind, rope.len(), now.elapsed());
        }
        Encoded { rope, begun: now }
    }

    /// Whose turn the next answer is to wait for, if anybody's.
    pub(crate) fn takes_turns(&mut self, now: Instant) -> Option<Class> {
        if self.is_bulk() {
            return Some(Class::Configured);
        }
        self.is_new(now).then_some(Class::New)
    }

    /// Whether a stream that is configured is to be told of many resources.
    fn is_bulk(&mut self) -> bool {
        let Some(seat) = &self.seat else { return false };
        self.bulk |= seat.wake.changed() > BULK;
        self.bulk && matches!(self.settled, Settled::Yes)
    }

    /// Whether the next answer is one of those that a new stream takes turns with.
    fn is_new(&mut self, now: Instant) -> bool {
        if matches!(self.settled, Settled::Yes) {
            return false;
        }
        let Some(seat) = &self.seat else { return false };
        let (asked, for_the_first_time) = seat.session.lock().unwrap_or_else(PoisonError::into_inner).awaits();
        self.settled = match self.settled {
            _ if for_the_first_time => Settled::No,
            Settled::Since(since) if now.saturating_duration_since(since) >= SETTLED => Settled::Yes,
            Settled::No => {
                seat.wake.is_configured();
                Settled::Since(now)
            }
            known => known,
        };
        asked && !matches!(self.settled, Settled::Yes)
    }

    /// Has the task woken by the next change.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        if let Some(seat) = &self.seat {
            seat.wake.register(cx);
        }
    }

    /// When to poll again although nothing happened.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        let seat = self.seat.as_ref()?;
        seat.session.lock().unwrap_or_else(PoisonError::into_inner).retry_at()
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The proxy, once it has said who it is.
    #[must_use]
    pub fn proxy(&self) -> Option<&ProxyKey> {
        self.seat.as_ref().map(|seat| &seat.key)
    }

    /// Sees to it that changes of what the session looks at wake it; says whether that is new.
    fn watch(&mut self, seat: &Seat, session: &Session) -> bool {
        let same_scope = match (&self.watched, &self.cut.sight) {
            (None, None) => true,
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            _ => false,
        };
        let kinds = session.kinds();
        if same_scope && self.kinds == kinds {
            return false;
        }
        if let Some(sight) = &self.watched {
            let gone = if same_scope { self.kinds.without(kinds) } else { self.kinds };
            gone.iter().for_each(|kind| sight.unwatch(kind, seat.id));
        }
        if let Some(sight) = &self.cut.sight {
            let new = if same_scope { kinds.without(self.kinds) } else { kinds };
            new.iter().for_each(|kind| sight.watch(kind, seat.id, &seat.wake));
        }
        self.watched.clone_from(&self.cut.sight);
        self.kinds = kinds;
        true
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(seat) = self.seat.take() else { return };
        if let Some(sight) = &self.watched {
            self.kinds.iter().for_each(|kind| sight.unwatch(kind, seat.id));
        }
        self.hub.store.unwatch_proxy(&seat.key, seat.id);
        self.hub.seats.lock().unwrap_or_else(PoisonError::into_inner).remove(&seat.id);
        if seat.session.lock().unwrap_or_else(PoisonError::into_inner).is_warming() {
            let mut cold = self.hub.cold.lock().unwrap_or_else(PoisonError::into_inner);
            if cold.len() < COLD {
                cold.insert(seat.key.clone());
            }
        }
        self.hub.roster.leave(&seat.key, seat.id, Instant::now());
        self.hub.metrics.connected(&seat.proxy.istio_version, -1);
        tracing::debug!(target: "ads", node = %seat.key.0, stream = seat.id, "disconnected");
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use sluice_model::{Layer, Resource, ResourceKey, Scope};
    use sluice_proto::envoy::config::core::v3::Node;
    use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

    use super::*;
    use crate::xds::store::Changes;

    /// Any node is a proxy.
    struct Anybody;

    impl ProxyInput for Anybody {
        fn parse(&self, node: &Node) -> Result<Proxy, String> {
            Ok(Proxy { id: node.id.as_str().into(), ..Proxy::default() })
        }

        fn set(&self, _: ProxyKey, _: Arc<Proxy>) {}

        fn asks_for_secrets(&self, _: ProxyKey) {}

        fn remove(&self, _: ProxyKey) {}
    }

    /// An epoch that sets so many resources of a type.
    fn changes(kind: ResourceType, count: usize, content: &'static str) -> Changes {
        let key = |number: usize| ResourceKey {
            resource_type: kind,
            layer: Layer::default(),
            name: number.to_string().into(),
        };
        let set = |number| (key(number), Some(Resource::Encoded(Bytes::from_static(content.as_bytes()))));
        Changes { resources: (0..count).map(set).collect(), ..Changes::default() }
    }

    /// The stream of a configured proxy that has all listeners and endpoints, so many of each.
    struct Rig {
        store: Arc<Store>,
        stream: Stream,
        now: Instant,
    }

    impl Rig {
        const KINDS: [ResourceType; 2] = [ResourceType::Endpoint, ResourceType::Listener];

        fn new(count: usize) -> Self {
            let store = Arc::new(Store::default());
            let layers = Self::KINDS.map(|kind| (kind, [Layer::default()].into())).into();
            let scope = Arc::new(Scope { layers, ..Scope::default() });
            store.apply(Changes { scopes: vec![(ProxyKey("web".into()), Some(scope))], ..Changes::default() });
            Self::KINDS.iter().for_each(|kind| store.apply(changes(*kind, count, "1")));
            store.set_ready();
            let hub = Hub::new(store.clone(), Arc::new(Anybody), Metrics::default(), false);
            let stream = hub.open(Protocol::Delta, Caller::default()).expect("it is ready");
            let mut rig = Self { store, stream, now: Instant::now() };
            for kind in Self::KINDS {
                rig.request(DeltaDiscoveryRequest {
                    node: Some(Node { id: "web".into(), ..Node::default() }),
                    type_url: kind.type_url().into(),
                    resource_names_subscribe: (0..count).map(|number| number.to_string()).collect(),
                    ..DeltaDiscoveryRequest::default()
                });
                assert_eq!(rig.turns(), Some(Class::New), "what it is told first");
                assert_eq!(rig.answer(), Some((kind, count)));
            }
            assert_eq!((rig.answer(), rig.turns()), (None, None));
            rig.now += SETTLED;
            assert_eq!(rig.turns(), None);
            rig
        }

        fn request(&mut self, request: DeltaDiscoveryRequest) {
            let request = Request::decode(Protocol::Delta, &request.encode_to_vec().into()).expect("it is one");
            self.stream.request(request, self.now).expect("taken");
        }

        fn turns(&mut self) -> Option<Class> {
            self.stream.takes_turns(self.now)
        }

        /// Of which type the next answer is and how much it has; it is acknowledged.
        fn answer(&mut self) -> Option<(ResourceType, usize)> {
            let encoded = self.stream.poll_encoded(self.now)?;
            Some(self.acknowledge(encoded))
        }

        /// The same of one that does not wait for a turn.
        fn endpoints(&mut self) -> Option<(ResourceType, usize)> {
            let encoded = self.stream.poll_endpoints(self.now)?;
            Some(self.acknowledge(encoded))
        }

        fn acknowledge(&mut self, encoded: Encoded) -> (ResourceType, usize) {
            let got = DeltaDiscoveryResponse::decode(encoded.bytes()).expect("a response");
            let kind = ResourceType::from_type_url(&got.type_url).expect("one of ours");
            let (type_url, response_nonce) = (got.type_url, got.nonce);
            self.request(DeltaDiscoveryRequest { type_url, response_nonce, ..DeltaDiscoveryRequest::default() });
            (kind, got.resources.len())
        }
    }

    #[test]
    fn a_change_of_many_resources_waits_for_a_turn_and_one_of_few_does_not() {
        let mut rig = Rig::new(2 * BULK);
        let listeners = |count| Some((ResourceType::Listener, count));
        rig.store.apply(changes(ResourceType::Listener, BULK, "2"));
        assert_eq!((rig.turns(), rig.answer()), (None, listeners(BULK)), "they are few");
        rig.store.apply(changes(ResourceType::Listener, BULK + 1, "3"));
        assert_eq!(rig.turns(), Some(Class::Configured));
        assert_eq!(rig.answer(), listeners(BULK + 1));
        assert_eq!((rig.answer(), rig.turns()), (None, None), "it has been told");
    }

    #[test]
    fn few_endpoints_do_not_wait_with_many_resources() {
        let mut rig = Rig::new(2 * BULK);
        rig.store.apply(changes(ResourceType::Listener, 2 * BULK, "2"));
        assert_eq!((rig.turns(), rig.endpoints()), (Some(Class::Configured), None), "there are none");
        for content in ["2", "3"] {
            rig.store.apply(changes(ResourceType::Endpoint, 1, content));
            assert_eq!(rig.endpoints(), Some((ResourceType::Endpoint, 1)));
        }
        assert_eq!((rig.turns(), rig.endpoints()), (Some(Class::Configured), None), "the others wait on");
        rig.store.apply(changes(ResourceType::Endpoint, BULK + 1, "4"));
        assert_eq!(rig.endpoints(), None, "many wait too");
        assert_eq!(rig.answer(), Some((ResourceType::Endpoint, BULK + 1)));
        assert_eq!(rig.answer(), Some((ResourceType::Listener, 2 * BULK)));
        assert_eq!((rig.answer(), rig.turns()), (None, None), "it has been told");
    }
}
