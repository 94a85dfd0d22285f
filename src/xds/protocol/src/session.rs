//! One ADS stream without its I/O: requests in, responses out.
//!
//! A session keeps the names that the client subscribed to (shared sets) and the last [`TypeSnapshot`](crate::TypeSnapshot)
//! that the client was sent. What the client holds follows from the two, so the session has no copy of it. The caller polls
//! for the next response when the transport has room; changes in between merge.

mod held_resources;
mod locality_endpoints;
mod on_demand;
mod plan;
mod subscription;
mod subscriptions;
mod virtual_hosts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sluice_model::{ProxyKey, ResourceType, Text};

use crate::limits::{MAX_ERROR_MESSAGE_BYTES, MAX_TYPE_URL_BYTES, MAX_UNKNOWN_TYPES};
use crate::name_set::CallerNames;
use crate::request::{Interest, Request, StreamError, XdsProtocol};
use crate::resource_types::ResourceTypeSet;
use crate::response::Response;
use crate::store::{ResolvedResource, ScopeSnapshot};
use crate::version::{Version, hex_digits};
use locality_endpoints::collections;
use plan::PlannedResponse;
use subscription::Subscription;
use subscriptions::Subscriptions;

/// Time limit for the acknowledgement of a response. Then the next response of the type is sent.
///
/// Envoy acknowledges clusters only when they are warm. A cluster that never warms must not block all later configuration.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests of this type report the health of a workload. They are not subscriptions.
pub const HEALTH_TYPE: &str = "type.googleapis.com/istio.v1.HealthInformation";

/// An error message of a client, within the limit.
fn truncated(mut message: String) -> Text {
    message.truncate(message.floor_char_boundary(MAX_ERROR_MESSAGE_BYTES));
    message.into()
}

/// One ADS stream without its I/O.
#[derive(Debug)]
pub struct Session {
    protocol: XdsProtocol,
    proxy: ProxyKey,
    /// Part of each nonce, so that nonces of different streams differ.
    stream: u64,
    /// Number of the last response.
    responses: u64,
    /// Number of requests, and of snapshots up to which the client has been sent changes.
    revision: u64,
    names: CallerNames,
    subscriptions: Subscriptions,
    /// Unknown types, each with whether a response is due.
    unknown: BTreeMap<Text, bool>,
    /// The client is a gRPC library, see [`Session::use_names_only`].
    names_only: bool,
    /// The next response to a subscription to endpoints has all of them, even those that the client reports as held.
    resend_endpoints: bool,
    /// The client held resources when the stream began.
    is_reconnect: bool,
    /// Assignments are sent such that the client subscribes again to the endpoints that they refer to.
    renews_collections: bool,
    /// Clusters that have replaced others and have not been sent an assignment, if endpoints are separate resources.
    replaced: BTreeSet<Text>,
    /// Epoch of the first change that has not been sent.
    since: Option<u64>,
    /// When to poll again without an event.
    retry_at: Option<Instant>,
    /// Secrets that the client subscribed to and that do not exist; not reported to the caller yet.
    unserved: BTreeSet<Text>,
    /// Route tables in the last response that the client may not have had; the response is not acknowledged yet.
    new_tables: BTreeSet<Text>,
}

/// The effect of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RequestOutcome {
    /// A subscription, or a request without effect.
    Subscribed,
    /// The client acknowledged the last response of the type.
    Acknowledged(ResourceType),
    /// The client rejected the last response of a type.
    Rejected {
        /// The type.
        kind: ResourceType,
        /// The gRPC status code of the error.
        code: i32,
        /// The error message, truncated if it is long.
        message: Text,
    },
    /// The request has the nonce of an older response.
    Expired(ResourceType),
    /// The workload of the client is healthy, or why it is not. The message is truncated if it is long.
    Health(Result<(), Text>),
}

impl Session {
    /// A session without subscriptions. `stream` should differ for each stream.
    #[must_use]
    pub fn new(protocol: XdsProtocol, proxy: ProxyKey, stream: u64, names: CallerNames) -> Self {
        Self {
            protocol,
            proxy,
            stream,
            responses: 0,
            revision: 0,
            names,
            subscriptions: Subscriptions::default(),
            unknown: BTreeMap::new(),
            names_only: false,
            resend_endpoints: false,
            is_reconnect: false,
            renews_collections: false,
            replaced: BTreeSet::new(),
            since: None,
            retry_at: None,
            unserved: BTreeSet::new(),
            new_tables: BTreeSet::new(),
        }
    }

    /// Sends endpoints even if the client reports that it holds them. Its clusters were warming when its last stream ended,
    /// and it does not subscribe to their endpoints again.
    pub fn resend_endpoints(&mut self) {
        self.resend_endpoints = true;
    }

    /// Serves a gRPC library. It names each resource that it wants, and an empty list ends the subscription. It waits for the
    /// endpoints that it subscribes to, so a cluster without endpoints is answered with an empty assignment (X28).
    pub fn use_names_only(&mut self) {
        self.names_only = true;
    }

    /// Whether the client has not acknowledged its clusters. Envoy does so when they have their endpoints.
    #[must_use]
    pub fn is_warming(&self) -> bool {
        self.subscriptions.get(ResourceType::Cluster).is_some_and(|subscription| subscription.outstanding)
    }

    /// Whether the client waits for a response, and whether for the first one of a type.
    #[must_use]
    pub fn awaits_response(&self) -> (bool, bool) {
        let waiting = || self.subscriptions.iter().filter(|subscription| subscription.is_waiting());
        (waiting().next().is_some(), waiting().any(|subscription| subscription.sent.is_none()))
    }

    /// Whether parts of requests are kept until they are answered: the list of the resources that the client holds.
    #[must_use]
    pub fn keeps_requests(&self) -> bool {
        self.subscriptions.iter().any(|subscription| !subscription.holds.is_empty())
    }

    /// Drops the list of the resources that the client holds where these are exactly those of the snapshot, as with nearly
    /// all clients that reconnect: it is as if the client had been sent the snapshot.
    pub fn compare_held(&mut self, snapshot: &ScopeSnapshot) {
        if snapshot.scope().is_none() {
            return;
        }
        self.note_held_assignments(snapshot);
        // It may not be derived yet which secrets the client may have.
        for subscription in self.subscriptions.iter_mut().filter(|of| of.kind != ResourceType::Secret) {
            let Some(view) = snapshot.view(subscription.kind) else { continue };
            if subscription.sent.is_none() && subscription.holds_all(view) {
                subscription.sent = Some(view.clone());
                subscription.forget_holds();
                self.revision += 1;
            }
        }
    }

    /// The proxy of the stream.
    #[must_use]
    pub fn proxy(&self) -> &ProxyKey {
        &self.proxy
    }

    /// The protocol of the stream.
    #[must_use]
    pub fn protocol(&self) -> XdsProtocol {
        self.protocol
    }

    /// The types that the client subscribes to.
    #[must_use]
    pub fn kinds(&self) -> ResourceTypeSet {
        self.subscriptions.kinds()
    }

    /// When to poll again without an event.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Handles a request.
    ///
    /// # Errors
    /// The client exceeds a limit. The caller ends the stream with the error.
    pub fn request(&mut self, mut request: Request, now: Instant) -> Result<RequestOutcome, StreamError> {
        self.revision += 1;
        if request.type_url == HEALTH_TYPE {
            let health = request.error.map_or(Ok(()), |(_, message)| Err(truncated(message)));
            return Ok(RequestOutcome::Health(health));
        }
        let Some(kind) = ResourceType::from_type_url(&request.type_url) else {
            return self.request_unknown(&request).map(|()| RequestOutcome::Subscribed);
        };
        if kind == ResourceType::LbEndpoint {
            request.interest = collections(request.interest);
        }
        if let Interest::Exactly(names) = &request.interest
            && names.is_empty()
            && !kind.is_wildcard()
            && request.error.is_none()
        {
            self.subscriptions.remove(kind);
            return Ok(RequestOutcome::Subscribed);
        }
        let before = self.subscriptions.size();
        let outcome = self.request_type(kind, request, now)?;
        self.subscriptions.check_size(before, self.names.budget())?;
        Ok(outcome)
    }

    /// Handles a request for resources of a type.
    fn request_type(
        &mut self,
        kind: ResourceType,
        request: Request,
        now: Instant,
    ) -> Result<RequestOutcome, StreamError> {
        let nonce = self.nonce_number(&request.nonce);
        let sotw = matches!(request.interest, Interest::Exactly(_));
        let subscription = match self.subscriptions.get_mut(kind) {
            Some(subscription) if !(sotw && request.nonce.is_empty() && request.error.is_none()) => subscription,
            _ => {
                // A new subscription, or one that the client starts again.
                let mut subscription = Subscription::new(kind, self.names_only);
                subscription.open(request.interest, &self.names)?;
                self.is_reconnect |= !subscription.holds.is_empty();
                if kind == ResourceType::Endpoint && std::mem::take(&mut self.resend_endpoints) {
                    subscription.forget_holds();
                }
                self.subscriptions.insert(subscription);
                return Ok(RequestOutcome::Subscribed);
            }
        };
        let current = nonce.is_some_and(|nonce| nonce == subscription.sent_nonce);
        let mut outcome = RequestOutcome::Subscribed;
        if let Some((code, message)) = request.error {
            let message = truncated(message);
            subscription.error = Some((code, message.clone()));
            subscription.set_rejected();
            subscription.outstanding &= !current;
            outcome = RequestOutcome::Rejected { kind, code, message };
        } else if current {
            subscription.error = None;
            subscription.outstanding = false;
            subscription.acked_nonce = subscription.sent_nonce;
            subscription.set_acked();
            subscription.acked_at = Some(now);
            outcome = RequestOutcome::Acknowledged(kind);
        } else if !request.nonce.is_empty() {
            outcome = RequestOutcome::Expired(kind);
        }
        match request.interest {
            // An acknowledgement of an older response has an older list.
            Interest::Exactly(_) if !current => {}
            Interest::Exactly(names) => subscription.exactly(&names, &self.names)?,
            Interest::Change { subscribe, unsubscribe, .. } => {
                subscription.change(&subscribe, &unsubscribe, &self.names)?
            }
        }
        if current && kind == ResourceType::Route {
            self.send_virtual_hosts_of_new_tables();
        }
        Ok(outcome)
    }

    fn request_unknown(&mut self, request: &Request) -> Result<(), StreamError> {
        if request.type_url.len() > MAX_TYPE_URL_BYTES {
            return Err(StreamError::Invalid(format!("the type URL is longer than {MAX_TYPE_URL_BYTES} bytes")));
        }
        match self.unknown.get(request.type_url.as_str()) {
            Some(_) => {}
            None if self.unknown.len() >= MAX_UNKNOWN_TYPES => {
                return Err(StreamError::Invalid(format!(
                    "more than {MAX_UNKNOWN_TYPES} unknown resource types on one stream"
                )));
            }
            None => {
                self.unknown.insert(request.type_url.as_str().into(), true);
            }
        }
        Ok(())
    }

    /// The next response, if there is one to send now. Call it until it returns `None`.
    ///
    /// `changed_since` is the first epoch since the last call that may concern the session.
    pub fn poll(&mut self, snapshot: &ScopeSnapshot, changed_since: Option<u64>, now: Instant) -> Option<Response> {
        self.retry_at = None;
        self.note_change(changed_since);
        if let Some((type_url, due)) = self.unknown.iter_mut().find(|(_, due)| **due) {
            *due = false;
            let type_url = type_url.clone();
            let version = snapshot.epoch.to_string();
            return Some(Response { type_url, nonce: self.next_nonce(), version, ..Response::default() });
        }
        // No response is sent before the proxy's scope is derived.
        snapshot.scope()?;
        let mut blocked = false;
        for kind in self.kinds().iter() {
            // Resources that refer to clusters wait for the clusters of the same change.
            if blocked && matches!(kind, ResourceType::Listener | ResourceType::Route | ResourceType::VirtualHost) {
                continue;
            }
            match self.plan(kind, snapshot, now) {
                PlannedResponse::Send(response) => return Some(*response),
                PlannedResponse::Blocked => blocked |= kind == ResourceType::Cluster,
                PlannedResponse::Idle => {}
            }
        }
        for kind in [ResourceType::Cluster, ResourceType::Endpoint, ResourceType::LbEndpoint] {
            if self.subscriptions.get(kind).is_some_and(|subscription| !subscription.deferred_removals.is_empty())
                && let PlannedResponse::Send(response) = self.plan(kind, snapshot, now)
            {
                return Some(*response);
            }
        }
        if self.retry_at.is_none() {
            self.since = None;
        }
        None
    }

    /// The next response with endpoints, if at most `max_changes` of them changed: these do not wait for other types.
    pub fn poll_endpoints(
        &mut self,
        snapshot: &ScopeSnapshot,
        changed_since: Option<u64>,
        max_changes: usize,
        now: Instant,
    ) -> Option<Response> {
        self.note_change(changed_since);
        [ResourceType::Endpoint, ResourceType::LbEndpoint].into_iter().find_map(|kind| {
            let view = snapshot.view(kind)?;
            let sent = self.subscriptions.get(kind)?.sent.as_ref()?;
            // In another scope the endpoints belong to other clusters, which are sent first.
            if sent.is_same(view) || !view.is_of_scope(sent) || view.changed_since(sent).len() > max_changes {
                return None;
            }
            match self.plan(kind, snapshot, now) {
                PlannedResponse::Send(response) => Some(*response),
                PlannedResponse::Blocked | PlannedResponse::Idle => None,
            }
        })
    }

    /// The first epoch of the store with changes that are not sent.
    #[must_use]
    pub fn unsent_since(&self) -> Option<u64> {
        self.since
    }

    /// Records the first epoch with changes that are not sent.
    fn note_change(&mut self, epoch: Option<u64>) {
        self.since = match (self.since, epoch) {
            (Some(since), Some(epoch)) => Some(since.min(epoch)),
            (since, epoch) => since.or(epoch),
        };
    }

    /// The subscribed secrets that do not exist, as found since the last call.
    pub fn take_unserved(&mut self) -> BTreeSet<Text> {
        std::mem::take(&mut self.unserved)
    }

    fn nonce(&self, number: u64) -> String {
        let (stream, number) = (hex_digits(self.stream).map(char::from), number.to_string());
        let mut nonce = String::with_capacity(stream.len() + 1 + number.len());
        nonce.extend(stream);
        nonce.push('-');
        nonce.push_str(&number);
        nonce
    }

    fn next_nonce(&mut self) -> String {
        self.responses += 1;
        self.nonce(self.responses)
    }

    /// The number in a nonce, if the nonce is of this stream.
    fn nonce_number(&self, nonce: &str) -> Option<u64> {
        let (stream, number) = nonce.split_once('-')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        (u64::from_str_radix(stream, 16) == Ok(self.stream)).then_some(number)
    }

    /// The state of the client's subscriptions, by type.
    #[must_use]
    pub fn status(&self) -> BTreeMap<ResourceType, TypeStatus> {
        let status = |subscription: &Subscription| TypeStatus {
            wildcard: subscription.wildcard,
            sent: (subscription.sent_nonce > 0).then(|| self.nonce(subscription.sent_nonce)),
            acked: (subscription.acked_nonce > 0).then(|| self.nonce(subscription.acked_nonce)),
            sent_at: subscription.sent_at,
            acked_at: subscription.acked_at,
            unacked_since: subscription.unacked_since,
            error: subscription.error.clone(),
        };
        self.subscriptions.iter().map(|subscription| (subscription.kind, status(subscription))).collect()
    }

    /// The names that the client subscribes to, by type, in order.
    #[must_use]
    pub fn watched(&self) -> BTreeMap<ResourceType, Vec<Text>> {
        let names = |subscription: &Subscription| {
            let mut names: Vec<Text> = subscription.names.iter().cloned().collect();
            names.sort_unstable();
            names
        };
        self.subscriptions.iter().map(|subscription| (subscription.kind, names(subscription))).collect()
    }

    /// The resources of a type that the client was sent.
    #[must_use]
    pub fn held(&self, kind: ResourceType) -> Vec<ResolvedResource> {
        let Some(subscription) = self.subscriptions.get(kind) else { return Vec::new() };
        let Some(sent) = &subscription.sent else { return Vec::new() };
        if subscription.wildcard || kind.is_by_prefix() {
            sent.names().iter().filter(|name| subscription.wants(name)).filter_map(|name| sent.find(name)).collect()
        } else {
            subscription.names.iter().filter_map(|name| sent.find(name)).collect()
        }
    }

    /// Whether the client subscribes to a resource.
    #[must_use]
    pub fn subscribes_to(&self, kind: ResourceType, name: &str) -> bool {
        self.subscriptions.get(kind).is_some_and(|subscription| subscription.wants(name))
    }

    /// Whether the client subscribes to all resources of a type.
    #[must_use]
    pub fn subscribes_to_all(&self, kind: ResourceType) -> bool {
        self.subscriptions.get(kind).is_some_and(|subscription| subscription.wildcard)
    }

    /// While it stays the same, so does what the client subscribes to, was sent and has acknowledged.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether the client has acknowledged the last response of each type, and no change waits to be sent.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        let is_synced =
            |of: &Subscription| of.error.is_none() && (of.sent_nonce == 0 || of.sent_nonce == of.acked_nonce);
        self.since.is_none() && self.subscriptions.iter().all(is_synced)
    }

    /// When the last response of a type was sent, and when one was last acknowledged.
    #[must_use]
    pub fn times(&self, kind: ResourceType) -> (Option<Instant>, Option<Instant>) {
        self.subscriptions.get(kind).map_or((None, None), |subscription| (subscription.sent_at, subscription.acked_at))
    }

    /// The version of one resource that the client acknowledged last; `None` if it does not subscribe to it.
    #[must_use]
    pub fn acked_version(&self, kind: ResourceType, name: &str) -> Option<Option<Version>> {
        let subscription = self.subscriptions.get(kind).filter(|subscription| subscription.wants(name))?;
        Some(subscription.acked_version(name))
    }

    /// The versions of one resource that the client was sent and acknowledged; `None` if it does not subscribe to it.
    #[must_use]
    pub fn progress(&self, kind: ResourceType, name: &str) -> Option<ResourceProgress> {
        let subscription = self.subscriptions.get(kind).filter(|subscription| subscription.wants(name))?;
        let (sent, acked) = (subscription.sent_version(name), subscription.acked_version(name));
        Some(ResourceProgress { sent, acked, error: subscription.error.as_ref().map(|(_, message)| message.clone()) })
    }
}

/// The versions of one resource that a client was sent and acknowledged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResourceProgress {
    /// The version that was sent last.
    pub sent: Option<Version>,
    /// The version that was acknowledged last.
    pub acked: Option<Version>,
    /// The client's error message, if it rejected the last response of the type.
    pub error: Option<Text>,
}

/// The state of a client's subscription to a type.
#[derive(Clone, Debug)]
pub struct TypeStatus {
    /// It subscribes to all resources in its scope.
    pub wildcard: bool,
    /// Nonce of the last response.
    pub sent: Option<String>,
    /// Nonce of the last response it acknowledged.
    pub acked: Option<String>,
    /// When the last response was sent.
    pub sent_at: Option<Instant>,
    /// When a response was last acknowledged.
    pub acked_at: Option<Instant>,
    /// When the first response since the last acknowledged one was sent, while the last one is not acknowledged.
    pub unacked_since: Option<Instant>,
    /// Code and message, if it rejected the last response.
    pub error: Option<(i32, Text)>,
}

impl TypeStatus {
    /// The synchronization status.
    #[must_use]
    pub fn state(&self) -> SyncState {
        match (&self.error, &self.sent, &self.acked) {
            (Some(_), ..) => SyncState::Error,
            (None, None, _) => SyncState::NotSent,
            (None, sent, acked) if sent == acked => SyncState::Synced,
            _ => SyncState::Stale,
        }
    }
}

/// Synchronization status of a type, in istiod's terms.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SyncState {
    /// No response was sent.
    NotSent,
    /// The last response was acknowledged.
    Synced,
    /// The last response is not acknowledged.
    Stale,
    /// The last response was rejected.
    Error,
}
