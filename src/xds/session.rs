//! One ADS stream without its I/O: requests in, responses out.
//!
//! A session keeps what the client wants (shared name sets) and the [`View`](crate::xds::View) up to which the client was
//! told of every change; what the client holds follows from the two, so there is no copy of it. It is asked for the next
//! response when there is room to send one: between that, changes merge by themselves.

mod holds;
mod on_demand;
mod parts;
mod plan;
mod watch;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_model::{ProxyKey, ResourceType, Text};

use crate::xds::kinds::Kinds;
use crate::xds::names::Names;
use crate::xds::request::{Interest, MAX_ERROR, MAX_UNKNOWN_TYPES, Protocol, Refusal, Request, Response};
use crate::xds::store::Cut;
use crate::xds::version::Version;
use watch::Watch;
use watches::Watches;

/// How long a response may stay unanswered before the next one of its type is sent all the same.
///
/// Envoy keeps back the acknowledgement of clusters until they are warm: one that never gets warm must not keep all later
/// configuration from the proxy.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Requests of this type report the health of a workload; they are no subscription.
pub const HEALTH_TYPE: &str = "type.googleapis.com/istio.v1.HealthInformation";

/// One ADS stream without its I/O.
#[derive(Debug)]
pub struct Session {
    protocol: Protocol,
    proxy: ProxyKey,
    /// Tells this stream's nonces from those of others.
    stream: u64,
    /// Number of the last response.
    responses: u64,
    names: Arc<Names>,
    watches: Watches,
    /// Types that are not ours, and whether an answer is due.
    unknown: BTreeMap<Text, bool>,
    /// The proxy has clusters that wait for endpoints it was never sent, though it has asked for them before.
    cold: bool,
    /// Epoch of the first change that has not been sent.
    since: Option<u64>,
    /// When to ask again although nothing happened.
    retry_at: Option<Instant>,
    /// Secrets that were asked for and are not there, or are gone; not told of yet.
    unserved: BTreeSet<Text>,
    /// Route tables that were sent to a client which may not have had them; it has not answered yet.
    new_tables: BTreeSet<Text>,
}

/// What a request turned out to be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Noted {
    /// A subscription, or nothing that counts.
    Request,
    /// The last response of the type was applied.
    Acknowledged(ResourceType),
    /// The last response of the type was rejected.
    Rejected(ResourceType),
    /// It answers a response that is no longer the last one.
    Expired(ResourceType),
}

impl Session {
    /// A session that has heard nothing yet. `stream` should differ from stream to stream.
    #[must_use]
    pub(crate) fn new(protocol: Protocol, proxy: ProxyKey, stream: u64, names: Arc<Names>) -> Self {
        Self {
            protocol,
            proxy,
            stream,
            responses: 0,
            names,
            watches: Watches::default(),
            unknown: BTreeMap::new(),
            cold: false,
            since: None,
            retry_at: None,
            unserved: BTreeSet::new(),
            new_tables: BTreeSet::new(),
        }
    }

    /// Has endpoints sent even if the client says it holds them: its clusters were still waiting for some when its last
    /// stream ended, and it will not ask for those again.
    pub(crate) fn warm_again(&mut self) {
        self.cold = true;
    }

    /// Whether the client has not acknowledged its clusters: Envoy does so when they have their endpoints.
    pub(crate) fn is_warming(&self) -> bool {
        self.watches.get(ResourceType::Cluster).is_some_and(|watch| watch.outstanding)
    }

    /// Whether the client waits for an answer; whether for its first of a type.
    pub(crate) fn awaits(&self) -> (bool, bool) {
        let asked = || self.watches.iter().filter(|watch| watch.is_asked());
        (asked().next().is_some(), asked().any(|watch| watch.sent.is_none()))
    }

    /// The proxy on the other side.
    #[must_use]
    pub fn proxy(&self) -> &ProxyKey {
        &self.proxy
    }

    /// Which protocol the stream speaks.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The types the client has subscribed to.
    pub(crate) fn kinds(&self) -> Kinds {
        self.watches.kinds()
    }

    /// When to poll again although nothing happened.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// When the client breaks a limit; the stream is to be ended with it.
    pub fn request(&mut self, request: Request, now: Instant) -> Result<Noted, Refusal> {
        if request.type_url == HEALTH_TYPE {
            return Ok(Noted::Request);
        }
        let Some(kind) = ResourceType::from_type_url(&request.type_url) else {
            return self.request_unknown(&request).map(|()| Noted::Request);
        };
        if let Interest::Exactly(names) = &request.interest
            && names.is_empty()
            && !kind.is_wildcard()
            && request.error.is_none()
        {
            self.watches.remove(kind);
            return Ok(Noted::Request);
        }
        let nonce = self.nonce_number(&request.nonce);
        let sotw = matches!(request.interest, Interest::Exactly(_));
        let watch = match self.watches.get_mut(kind) {
            Some(watch) if !(sotw && request.nonce.is_empty() && request.error.is_none()) => watch,
            _ => {
                // New, or begun again by a client that has forgotten.
                let mut watch = Watch::new(kind);
                watch.open(request.interest, &self.names)?;
                if kind == ResourceType::Endpoint && std::mem::take(&mut self.cold) {
                    watch.forget_holds();
                }
                self.watches.insert(watch);
                return Ok(Noted::Request);
            }
        };
        let current = nonce.is_some_and(|nonce| nonce == watch.sent_nonce);
        let mut noted = Noted::Request;
        if let Some((code, mut message)) = request.error {
            message.truncate(message.floor_char_boundary(MAX_ERROR));
            watch.error = Some((code, message.into()));
            watch.falls_behind();
            watch.outstanding &= !current;
            noted = Noted::Rejected(kind);
        } else if current {
            watch.error = None;
            watch.outstanding = false;
            watch.acked_nonce = watch.sent_nonce;
            watch.catches_up();
            watch.acked_at = Some(now);
            noted = Noted::Acknowledged(kind);
        } else if !request.nonce.is_empty() {
            noted = Noted::Expired(kind);
        }
        match request.interest {
            // An old answer has an old list.
            Interest::Exactly(_) if !current => {}
            Interest::Exactly(names) => watch.exactly(&names, &self.names)?,
            Interest::Change { subscribe, unsubscribe, .. } => watch.change(&subscribe, &unsubscribe, &self.names)?,
        }
        if current && kind == ResourceType::Route {
            self.fill_new_tables();
        }
        Ok(noted)
    }

    fn request_unknown(&mut self, request: &Request) -> Result<(), Refusal> {
        if request.type_url.len() > crate::xds::request::MAX_NAME {
            return Err(Refusal::Invalid("the type URL is too long".into()));
        }
        match self.unknown.get(request.type_url.as_str()) {
            Some(_) => {}
            None if self.unknown.len() >= MAX_UNKNOWN_TYPES => {
                return Err(Refusal::Invalid(format!("more than {MAX_UNKNOWN_TYPES} unknown types")));
            }
            None => {
                self.unknown.insert(request.type_url.as_str().into(), true);
            }
        }
        Ok(())
    }

    /// The next response, if there is something to send now. To be asked again until there is none.
    ///
    /// `woken` is the first epoch since the last call that may concern the session.
    pub fn poll(&mut self, cut: &Cut, woken: Option<u64>, now: Instant) -> Option<Response> {
        self.retry_at = None;
        self.note(woken);
        if let Some((type_url, due)) = self.unknown.iter_mut().find(|(_, due)| **due) {
            *due = false;
            let type_url = type_url.clone();
            let version = cut.epoch.to_string();
            return Some(Response { type_url, nonce: self.next_nonce(), version, ..Response::default() });
        }
        // Nobody is answered before it is known what he may see.
        cut.sight.as_ref()?;
        let mut blocked = false;
        for kind in self.kinds().iter() {
            // What refers to clusters waits for the clusters that came with it.
            if blocked && matches!(kind, ResourceType::Listener | ResourceType::Route | ResourceType::VirtualHost) {
                continue;
            }
            match self.plan(kind, cut, now) {
                plan::Planned::Send(response) => return Some(*response),
                plan::Planned::Blocked => blocked |= kind == ResourceType::Cluster,
                plan::Planned::Nothing => {}
            }
        }
        for kind in [ResourceType::Cluster, ResourceType::Endpoint] {
            if self.watches.get(kind).is_some_and(|watch| !watch.leaving.is_empty())
                && let plan::Planned::Send(response) = self.plan(kind, cut, now)
            {
                return Some(*response);
            }
        }
        if self.retry_at.is_none() {
            self.since = None;
        }
        None
    }

    /// The next response about endpoints alone, if no more than `most` changed: they need not wait for the rest.
    pub(crate) fn poll_endpoints(
        &mut self,
        cut: &Cut,
        woken: Option<u64>,
        most: usize,
        now: Instant,
    ) -> Option<Response> {
        self.note(woken);
        let view = cut.view(ResourceType::Endpoint)?;
        let sent = self.watches.get(ResourceType::Endpoint)?.sent.as_ref()?;
        // In another scope they are of other clusters, which come first.
        if sent.is_same(view) || !view.is_of_scope(sent) || view.changed_since(sent).len() > most {
            return None;
        }
        match self.plan(ResourceType::Endpoint, cut, now) {
            plan::Planned::Send(response) => Some(*response),
            plan::Planned::Blocked | plan::Planned::Nothing => None,
        }
    }

    /// There are changes from this epoch on.
    fn note(&mut self, woken: Option<u64>) {
        self.since = match (self.since, woken) {
            (Some(since), Some(woken)) => Some(since.min(woken)),
            (since, woken) => since.or(woken),
        };
    }

    /// Secrets that were found not to be there since the last call.
    pub(crate) fn take_unserved(&mut self) -> BTreeSet<Text> {
        std::mem::take(&mut self.unserved)
    }

    fn nonce(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.stream)
    }

    fn next_nonce(&mut self) -> String {
        self.responses += 1;
        self.nonce(self.responses)
    }

    /// The number in a nonce, if it is one of this stream.
    fn nonce_number(&self, nonce: &str) -> Option<u64> {
        let (stream, number) = nonce.split_once('-')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        (u64::from_str_radix(stream, 16) == Ok(self.stream)).then_some(number)
    }

    /// The state of the client's subscriptions, by type.
    #[must_use]
    pub fn status(&self) -> BTreeMap<ResourceType, TypeStatus> {
        let status = |watch: &Watch| TypeStatus {
            wildcard: watch.wildcard,
            names: watch.names.len(),
            sent: (watch.sent_nonce > 0).then(|| self.nonce(watch.sent_nonce)),
            acked: (watch.acked_nonce > 0).then(|| self.nonce(watch.acked_nonce)),
            sent_at: watch.sent_at,
            acked_at: watch.acked_at,
            error: watch.error.clone(),
        };
        self.watches.iter().map(|watch| (watch.kind, status(watch))).collect()
    }

    /// The resources of a type the client was told of.
    #[must_use]
    pub fn held(&self, kind: ResourceType) -> Vec<crate::xds::Found> {
        let Some(watch) = self.watches.get(kind) else { return Vec::new() };
        let Some(sent) = &watch.sent else { return Vec::new() };
        if watch.wildcard || kind.is_by_prefix() {
            sent.names().iter().filter(|name| watch.wants(name)).filter_map(|name| sent.find(name)).collect()
        } else {
            watch.names.iter().filter_map(|name| sent.find(name)).collect()
        }
    }

    /// How far the client is with one resource; nothing if it does not want it.
    #[must_use]
    pub fn progress(&self, kind: ResourceType, name: &str) -> Option<Progress> {
        let watch = self.watches.get(kind).filter(|watch| watch.wants(name))?;
        let sent = watch.sent.as_ref().and_then(|view| view.version(name));
        let acked = watch.acked().and_then(|view| view.version(name));
        Some(Progress { sent, acked, error: watch.error.as_ref().map(|(_, message)| message.clone()) })
    }
}

/// How far a client is with one resource.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Progress {
    /// The version that was sent last.
    pub sent: Option<Version>,
    /// The version that was acknowledged last.
    pub acked: Option<Version>,
    /// What the client says about the last response of the type, if it rejected it.
    pub error: Option<Text>,
}

/// The state of a client's subscription to a type.
#[derive(Clone, Debug)]
pub struct TypeStatus {
    /// It wants everything in its scope.
    pub wildcard: bool,
    /// Number of names it wants.
    pub names: usize,
    /// Nonce of the last response.
    pub sent: Option<String>,
    /// Nonce of the last response it acknowledged.
    pub acked: Option<String>,
    /// When the last response was sent.
    pub sent_at: Option<Instant>,
    /// When one was last acknowledged.
    pub acked_at: Option<Instant>,
    /// Code and message if it rejected the last response.
    pub error: Option<(i32, Text)>,
}
