//! One ADS stream: requests in, encoded responses out, without the transport.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sluice_auth::Caller;
use sluice_model::{Identity, Proxy, ProxyKey, ResourceType};
use sluice_xds_protocol::wire::{GRPC_PREFIX_BYTES, ResponseBuffer};
use sluice_xds_protocol::{
    ChangeTimes, HEALTH_TYPE, NameBudget, ProxyScope, Request, RequestOutcome, ResourceTypeSet, Response,
    ScopeSnapshot, Session, StreamError, XdsProtocol, encode,
};
use tonic::Status;

use crate::admission::AdmissionClass;
use crate::configuration::{self, ConfigurationRequests};
use crate::connection::Connection;
use crate::debug::{self, DebugRequests};
use crate::discovery_server::DiscoveryServer;
use crate::secrets;

/// A stream is configured when it subscribes to no further type for this time.
const CONFIGURED_AFTER: Duration = Duration::from_secs(1);

/// A change of more resources needs a push permit, so that thousands of streams do not build and hold such responses at
/// once.
const LARGE_RESPONSE_RESOURCES: usize = 256;

/// One ADS stream, without the transport. Dropping it ends the stream.
pub struct AdsStream {
    server: Arc<DiscoveryServer>,
    protocol: XdsProtocol,
    caller: Caller,
    names: Arc<NameBudget>,
    /// `None` until the first request with a node.
    connection: Option<Arc<Connection>>,
    /// The scope and the types whose changes wake the stream.
    watched_scope: Option<Arc<ProxyScope>>,
    watched_kinds: ResourceTypeSet,
    /// What the proxy sees of these types. It is up to date unless the stream was woken since.
    snapshot: ScopeSnapshot,
    /// The dataflow has the proxy as a subscriber of secrets.
    subscribes_to_secrets: bool,
    /// The types with an unacknowledged response that carries changes: the epoch of the engine, and when it was sent.
    unacked: Vec<(ResourceType, u64, Instant)>,
    /// Times of the changes that are being sent.
    sending: Option<ChangeTimes>,
    /// The pending changes contain many resources.
    is_large: bool,
    debug_requests: DebugRequests,
    configuration_requests: ConfigurationRequests,
    /// The proxy that the first request describes, if this request was for debug pages or configuration. The client becomes this
    /// proxy with its first other request.
    other_client: Option<Box<Proxy>>,
    /// The metadata of the client's node selects the generator of configuration.
    selects_configuration: bool,
    configuration: ConfigurationState,
}

/// Whether a client has its configuration.
#[derive(Clone, Copy, Debug, Default)]
enum ConfigurationState {
    /// It waits for the first response of a type.
    #[default]
    Pending,
    /// It has a response for each type since this time, but may subscribe to more types.
    AnsweredSince(Instant),
    Complete,
}

/// An encoded response.
#[derive(Debug)]
pub struct EncodedResponse {
    pub(crate) buffer: ResponseBuffer,
    /// When the server began to build it.
    pub(crate) begun: Instant,
}

impl EncodedResponse {
    /// The message, without the gRPC prefix.
    #[must_use]
    pub fn bytes(self) -> Bytes {
        let message = self.buffer.finish().collect::<Vec<_>>().concat();
        Bytes::from(message).split_off(GRPC_PREFIX_BYTES)
    }
}

impl DiscoveryServer {
    /// Opens a stream.
    ///
    /// # Errors
    /// Unavailable while the store is not ready or the server drains.
    pub fn open(self: &Arc<Self>, protocol: XdsProtocol, caller: Caller) -> Result<AdsStream, StreamError> {
        if self.is_draining() {
            return Err(StreamError::Unavailable("the server is shutting down".into()));
        }
        if !self.store().is_ready() {
            return Err(StreamError::Unavailable("the server has not read all configuration yet".into()));
        }
        Ok(AdsStream {
            server: self.clone(),
            protocol,
            caller,
            names: NameBudget::new(usize::MAX),
            connection: None,
            watched_scope: None,
            watched_kinds: ResourceTypeSet::default(),
            snapshot: ScopeSnapshot::default(),
            subscribes_to_secrets: false,
            unacked: Vec::new(),
            sending: None,
            is_large: false,
            debug_requests: DebugRequests::default(),
            configuration_requests: ConfigurationRequests::default(),
            other_client: None,
            selects_configuration: false,
            configuration: ConfigurationState::default(),
        })
    }
}

impl AdsStream {
    /// The stream with a budget for the names that it subscribes to.
    pub(crate) fn within(mut self, names: Arc<NameBudget>) -> Self {
        self.names = names;
        self
    }

    /// Handles a request.
    ///
    /// # Errors
    /// The stream must end, with this status.
    pub fn request(&mut self, request: Request, now: Instant) -> Result<(), StreamError> {
        self.selects_configuration |= request.node.as_ref().is_some_and(configuration::selects_configuration);
        if debug::is_debug(&request.type_url) {
            return self.request_debug_page(request);
        }
        if self.is_for_configuration(&request) {
            return self.request_configuration(request);
        }
        let connection = match &self.connection {
            Some(connection) => connection.clone(),
            None => {
                // A probe may report health before the proxy subscribes to a type (X06).
                if request.type_url == HEALTH_TYPE {
                    return Ok(());
                }
                let mut proxy = match self.other_client.take() {
                    // Only the first request of a stream has the node.
                    Some(proxy) if request.node.is_none() => *proxy,
                    _ => self.server.identify(&self.caller, &request)?,
                };
                // Envoy accepts VHDS over delta streams only, and rejects route tables with VHDS otherwise.
                proxy.virtual_hosts &= self.protocol == XdsProtocol::Delta;
                // State of the world has no subscription to all clusters and to single ones besides.
                proxy.on_demand_clusters &= self.protocol == XdsProtocol::Delta;
                // Envoy implements collections for delta only.
                proxy.endpoints_by_locality &= self.protocol == XdsProtocol::Delta;
                let connection = self.server.connect(self.protocol, &self.caller, proxy.into(), &self.names)?;
                self.connection.insert(connection).clone()
            }
        };
        let mut session = connection.session();
        let outcome = session.request(request, now);
        match outcome.inspect_err(|error| self.limit_exceeded(&connection, error))? {
            RequestOutcome::Subscribed => {}
            RequestOutcome::Acknowledged(kind) => {
                if let Some((source_epoch, sent)) = self.take_unacked(kind) {
                    self.server.metrics().acknowledged(sent, now);
                    self.server.pushes().acknowledged(source_epoch, now);
                }
            }
            RequestOutcome::Rejected { kind, code, message } => {
                self.take_unacked(kind);
                self.server.metrics().rejected(kind, &connection.key.0, code);
                tracing::warn!(
                    target: "ads", parent: &connection.span, node = %connection.key.0, kind = ?kind, code,
                    error = message.as_str(), "proxy rejected configuration"
                );
            }
            RequestOutcome::Expired(kind) => self.server.metrics().expired(kind),
            RequestOutcome::Health(health) => {
                if let Some(workloads) = self.server.workloads() {
                    let health = health.map_err(|message| message.to_string());
                    workloads.reported(connection.id, &connection.proxy, health);
                }
            }
        }
        if session.keeps_requests() {
            let mut snapshot = ScopeSnapshot::default();
            self.server.refresh(&mut snapshot, &connection, &session);
            session.compare_held(&snapshot);
        }
        if !self.subscribes_to_secrets && session.kinds().contains(ResourceType::Secret) {
            self.subscribes_to_secrets = true;
            self.server.proxies().add_secret_client(&connection.key);
        }
        Ok(())
    }

    /// Handles a request for a debug page. A client that requests only debug pages is not a proxy of the mesh.
    fn request_debug_page(&mut self, request: Request) -> Result<(), StreamError> {
        let identity = self.caller_identity(&request)?;
        let pages = self.server.debug_pages();
        let accepted = self.debug_requests.add(request, self.protocol, pages, identity.as_ref());
        accepted.inspect_err(|error| self.page_refused("debug", error))
    }

    /// Whether a request is for configuration: its type has no generator of its own, and is one of configuration, or the metadata
    /// of the client's node selects that generator (X03).
    fn is_for_configuration(&self, request: &Request) -> bool {
        let Some(store) = self.server.configuration() else { return false };
        let type_url = request.type_url.as_str();
        let has_generator = type_url == HEALTH_TYPE || ResourceType::from_type_url(type_url).is_some();
        !has_generator && (self.selects_configuration || store.has_type(type_url))
    }

    /// Handles a request for configuration. A client that requests nothing else is not a proxy of the mesh.
    fn request_configuration(&mut self, request: Request) -> Result<(), StreamError> {
        let identity = self.caller_identity(&request)?;
        let Some(store) = self.server.configuration() else { return Ok(()) };
        let accepted = self.configuration_requests.add(request, self.protocol, &**store, identity);
        accepted.inspect_err(|error| self.page_refused("configuration", error))
    }

    /// The identity of the caller that matches its proxy, or the node of the first request.
    fn caller_identity(&mut self, request: &Request) -> Result<Option<Identity>, StreamError> {
        if let Some(connection) = &self.connection {
            return Ok(connection.proxy.identity.clone());
        }
        let proxy = match self.other_client.take() {
            Some(proxy) => proxy,
            None => Box::new(self.server.identify(&self.caller, request)?),
        };
        Ok(self.other_client.insert(proxy).identity.clone())
    }

    /// The next response to a request for a debug page or for configuration, if there is one.
    pub(crate) fn poll_other(&mut self, cx: &mut Context<'_>) -> Poll<Result<EncodedResponse, StreamError>> {
        let (response, reason) = match self.debug_requests.poll(cx) {
            Poll::Ready(response) => (response, "debug"),
            Poll::Pending => {
                let Some(store) = self.server.configuration() else { return Poll::Pending };
                let response = self.configuration_requests.poll(cx, &**store);
                (std::task::ready!(response), "configuration")
            }
        };
        let response = response.inspect_err(|error| self.page_refused(reason, error));
        Poll::Ready(response.map(|response| EncodedResponse { buffer: response.encode(), begun: Instant::now() }))
    }

    /// Records that the stream ends because its requests cannot be read.
    pub(crate) fn failed(&self, status: &Status) {
        self.server.metrics().failed();
        let node = self.connection.as_ref().map_or("unknown", |connection| &*connection.key.0);
        tracing::info!(
            target: "ads", node, peer = %self.caller.address(), code = ?status.code(), error = status.message(),
            "stream failed: the request cannot be read"
        );
    }

    /// Records that the stream ends because a request exceeds a limit.
    fn limit_exceeded(&self, connection: &Connection, error: &StreamError) {
        self.server.metrics().failed();
        tracing::info!(
            target: "ads", parent: &connection.span, node = %connection.key.0, peer = %self.caller.address(), %error,
            "stream failed: a request exceeds a limit"
        );
    }

    /// Records that the stream ends because its caller may not see a debug page or configuration.
    fn page_refused(&self, reason: &'static str, error: &StreamError) {
        self.server.metrics().refused(reason);
        let identities: Vec<String> = self.caller.identities.iter().map(ToString::to_string).collect();
        let what = if reason == "debug" { "a debug page" } else { "configuration" };
        tracing::warn!(
            target: "ads", peer = %self.caller.address(), authenticator = self.caller.authenticator, ?identities,
            "rejected a request for {what}: {error}"
        );
    }

    /// The next response, if there is one to send now. Call it until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Response> {
        let connection = self.connection.clone()?;
        let mut session = connection.session();
        let changed_since = self.refresh(&connection, &session);
        let response = session.poll(&self.snapshot, changed_since, now);
        let unserved = session.take_unserved();
        let is_blocked = session.retry_at().is_some();
        drop(session);
        if !unserved.is_empty() {
            self.server.metrics().secrets_not_served(unserved.len());
            let (identity, scope) = (connection.proxy.identity.as_ref(), self.snapshot.scope());
            let reasons = secrets::explain(&unserved, identity, &connection.caller, scope.map(|scope| scope.scope()));
            tracing::warn!(
                target: "ads", parent: &connection.span, node = %connection.key.0, peer = %connection.caller.address(),
                "secrets are not served: {reasons}"
            );
        }
        match &response {
            Some(response) => self.record_response(response, now),
            None => {
                if let Some(times) = self.sending.take() {
                    self.server.metrics().converged(&times, now);
                }
                self.is_large &= is_blocked;
            }
        }
        response
    }

    /// Brings the snapshot up to date. Returns the first epoch that is new in it.
    fn refresh(&mut self, connection: &Connection, session: &Session) -> Option<u64> {
        let mut changed_since = connection.signal.take();
        if changed_since.is_some() || self.snapshot.scope().is_none() || self.watched_kinds != session.kinds() {
            self.server.refresh(&mut self.snapshot, connection, session);
            if self.watch(connection, session) {
                // A change between the first refresh and the start of watching did not wake the stream.
                changed_since = changed_since.or(connection.signal.take());
                self.server.refresh(&mut self.snapshot, connection, session);
            }
        }
        changed_since
    }

    /// Records which changes a response carries.
    fn record_response(&mut self, response: &Response, now: Instant) {
        if response.since.is_none() {
            self.server.metrics().triggered("proxyrequest");
        }
        if let (Some(kind), Some(epoch)) = (response.kind, response.since)
            && let Some(times) = self.snapshot.change_times(epoch).or_else(|| self.server.store().change_times(epoch))
        {
            self.server.metrics().first_byte(&times, now);
            self.server.pushes().sent(&times, now);
            self.take_unacked(kind);
            self.unacked.push((kind, times.source_epoch, now));
            self.sending = Some(times);
        }
    }

    /// The epoch of the unacknowledged response of a type, and when it was sent.
    fn take_unacked(&mut self, kind: ResourceType) -> Option<(u64, Instant)> {
        let at = self.unacked.iter().position(|(of, ..)| *of == kind)?;
        let (_, source_epoch, sent) = self.unacked.swap_remove(at);
        Some((source_epoch, sent))
    }

    /// The next response, encoded.
    pub fn poll_encoded(&mut self, now: Instant) -> Option<EncodedResponse> {
        let response = self.poll(now)?;
        Some(self.encode(&response, now))
    }

    /// The next response with endpoints, while everything else waits for a push permit. Many changed endpoints wait too.
    pub fn poll_endpoints(&mut self, now: Instant) -> Option<EncodedResponse> {
        let connection = self.connection.clone()?;
        let mut session = connection.session();
        let changed_since = self.refresh(&connection, &session);
        let response = session.poll_endpoints(&self.snapshot, changed_since, LARGE_RESPONSE_RESOURCES, now)?;
        drop(session);
        self.record_response(&response, now);
        Some(self.encode(&response, now))
    }

    fn encode(&self, response: &Response, now: Instant) -> EncodedResponse {
        let buffer = encode(self.protocol, response);
        if let Some(kind) = response.kind {
            self.server.metrics().built(kind, buffer.len(), now.elapsed());
        }
        EncodedResponse { buffer, begun: now }
    }

    /// The class of the push permit that the next response needs; `None` if it needs none.
    pub(crate) fn permit_class(&mut self, now: Instant) -> Option<AdmissionClass> {
        if self.has_large_change() {
            return Some(AdmissionClass::Configured);
        }
        self.is_new(now).then_some(AdmissionClass::New)
    }

    /// Whether a configured stream has a change of many resources to send.
    fn has_large_change(&mut self) -> bool {
        let Some(connection) = &self.connection else { return false };
        self.is_large |= connection.signal.changed() > LARGE_RESPONSE_RESOURCES;
        self.is_large && matches!(self.configuration, ConfigurationState::Complete)
    }

    /// Whether the client waits for a response and has not been configured completely.
    fn is_new(&mut self, now: Instant) -> bool {
        if matches!(self.configuration, ConfigurationState::Complete) {
            return false;
        }
        let Some(connection) = &self.connection else { return false };
        let (is_waiting, for_first_response) = connection.session().awaits_response();
        self.configuration = match self.configuration {
            _ if for_first_response => ConfigurationState::Pending,
            ConfigurationState::AnsweredSince(since) if now.saturating_duration_since(since) >= CONFIGURED_AFTER => {
                ConfigurationState::Complete
            }
            ConfigurationState::Pending => {
                connection.signal.set_configured();
                ConfigurationState::AnsweredSince(now)
            }
            unchanged => unchanged,
        };
        is_waiting && !matches!(self.configuration, ConfigurationState::Complete)
    }

    /// The reason why the stream has to end, if there is one.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.connection.as_ref()?.refusal.reason()
    }

    /// Registers the task to be woken by the next change.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        if let Some(connection) = &self.connection {
            connection.signal.register(cx);
        }
    }

    /// When to poll again without an event.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.connection.as_ref()?.session().retry_at()
    }

    /// Whether parts of requests are kept until they are answered: the list of the resources that the client holds.
    pub(crate) fn keeps_requests(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.session().keeps_requests())
    }

    pub(crate) fn server(&self) -> &Arc<DiscoveryServer> {
        &self.server
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Whether a request has identified the proxy, or the caller of debug pages or configuration.
    pub(crate) fn is_identified(&self) -> bool {
        self.connection.is_some() || self.other_client.is_some()
    }

    /// The proxy, once the stream is identified.
    #[must_use]
    pub fn proxy(&self) -> Option<&ProxyKey> {
        self.connection.as_ref().map(|connection| &connection.key)
    }

    /// Watches the scope and the types that the session needs. Returns whether they have changed.
    fn watch(&mut self, connection: &Connection, session: &Session) -> bool {
        let scope = self.snapshot.scope();
        let same_scope = match (&self.watched_scope, scope) {
            (None, None) => true,
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            _ => false,
        };
        let kinds = session.kinds();
        if same_scope && self.watched_kinds == kinds {
            return false;
        }
        if let Some(old) = &self.watched_scope {
            let removed = if same_scope { self.watched_kinds.without(kinds) } else { self.watched_kinds };
            removed.iter().for_each(|kind| old.unwatch(kind, connection.id));
        }
        if let Some(new) = scope {
            let added = if same_scope { kinds.without(self.watched_kinds) } else { kinds };
            added.iter().for_each(|kind| new.watch(kind, connection.id, &connection.signal));
        }
        self.watched_scope = scope.cloned();
        self.watched_kinds = kinds;
        true
    }
}

impl Drop for AdsStream {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if let Some(scope) = &self.watched_scope {
            self.watched_kinds.iter().for_each(|kind| scope.unwatch(kind, connection.id));
        }
        self.server.disconnect(&connection, Instant::now());
    }
}

#[cfg(test)]
mod tests;
