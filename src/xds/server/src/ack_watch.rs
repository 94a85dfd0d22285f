//! Follows the acknowledgements of a change: which proxies it concerns, and which of them have not acknowledged it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use sluice_model::{Layer, ResourceType, Text};
use sluice_xds_protocol::{ResourceProgress, ScopeSnapshot, SyncState, TypeStatus, Version};

use crate::audience::ChangedResources;
use crate::connection::Connection;
use crate::metrics::short_name;
use crate::status::{StatusReader, short_id};

/// Pending resources that a report names for each proxy.
const MAX_PENDING_PER_PROXY: usize = 5;

/// The resources that a change concerns.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AwaitedChange {
    /// These names, by type and layer.
    Resources(ChangedResources),
    /// It is not known which: all that proxies subscribe to.
    Everything,
}

/// Follows the acknowledgements of a change. A proxy acknowledges a changed resource with the version that was current at any
/// [`Self::poll`], so that later changes do not delay the end.
pub struct AckWatch {
    status: StatusReader,
    change: WatchedChange,
    streams: HashMap<u64, WatchedStream>,
    /// The streams that had not acknowledged the change at the last poll, in order of connecting.
    lagging: Vec<Arc<Connection>>,
}

/// [`AwaitedChange`], by what is looked up.
enum WatchedChange {
    Resources {
        resources: Vec<(ResourceType, Text)>,
        /// Indices of the resources.
        by_layer: HashMap<(ResourceType, Layer), Vec<usize>>,
        kinds: BTreeSet<ResourceType>,
    },
    Everything,
}

/// What a stream has acknowledged of the changed resources.
#[derive(Default)]
struct WatchedStream {
    /// Revision of the session and epoch of the store at the last visit: nothing differs while both are the same.
    seen: Option<(u64, u64)>,
    /// By index, the resources that the stream subscribes to.
    resources: BTreeMap<usize, ResourceState>,
    /// Number of them that are not acknowledged.
    pending: usize,
    /// The last acknowledgement of one of them.
    last: Option<ProxyAck>,
}

enum ResourceState {
    Acked,
    /// The versions that were current at a poll.
    Pending(Vec<Option<Version>>),
}

/// When a proxy acknowledged a change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProxyAck {
    /// `pod.namespace`.
    pub proxy: Text,
    /// When the last response of the type was sent, if that is known.
    pub sent: Option<Instant>,
    /// When the response was acknowledged.
    pub acked: Instant,
}

/// Numbers of proxies.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct AckCounts {
    /// Proxies that a change concerns.
    pub concerned: usize,
    /// Those of them that acknowledged it.
    pub acked: usize,
}

/// A proxy that has not acknowledged a change.
#[derive(Clone, Debug, Serialize)]
pub struct LaggingProxy {
    /// `pod.namespace`.
    pub proxy: Text,
    /// The resources it has not acknowledged, not all if there are many.
    pub pending: Vec<PendingResource>,
    /// Number of these resources.
    pub count: usize,
    /// The client's error message, if it rejected the last response with one of these resources.
    #[serde(skip)]
    pub rejection: Option<Text>,
}

/// A resource that a proxy has not acknowledged.
#[derive(Clone, Debug, Serialize)]
pub struct PendingResource {
    /// Short name of its type.
    pub r#type: &'static str,
    /// Its name, empty for all of the type.
    pub name: Text,
    /// Why it is not acknowledged.
    pub reason: String,
}

impl AckWatch {
    /// Follows a change that the store has applied.
    #[must_use]
    pub fn new(status: StatusReader, change: AwaitedChange) -> Self {
        Self { status, change: WatchedChange::new(change), streams: HashMap::new(), lagging: Vec::new() }
    }

    /// The current numbers. Only streams that something has happened to since the last poll are visited.
    pub fn poll(&mut self) -> AckCounts {
        let (counts, lagging) = self.visit_all();
        self.lagging = lagging;
        counts
    }

    /// The same, unless the process has stopped meanwhile: it ends streams, so the poll before stays the last one.
    pub fn poll_unless(&mut self, is_stopped: impl Fn() -> bool) -> Option<AckCounts> {
        let (counts, lagging) = self.visit_all();
        if is_stopped() {
            return None;
        }
        self.lagging = lagging;
        Some(counts)
    }

    /// The current numbers, and the streams that have not acknowledged the change.
    fn visit_all(&mut self) -> (AckCounts, Vec<Arc<Connection>>) {
        let (mut counts, mut lagging) = (AckCounts::default(), Vec::new());
        for connection in self.status.server.connections().into_values() {
            let Some(is_acked) = self.visit(&connection) else { continue };
            counts.concerned += 1;
            match is_acked {
                true => counts.acked += 1,
                false => lagging.push(connection),
            }
        }
        (counts, lagging)
    }

    /// The proxies that had not acknowledged the change at the last poll.
    #[must_use]
    pub fn lagging(&self) -> Vec<LaggingProxy> {
        let of = |connection: &Arc<Connection>| {
            let (pending, count, rejection) = match &self.change {
                WatchedChange::Everything => {
                    let pending = pending_types(connection);
                    let count = pending.len();
                    (pending, count, rejection(connection, |_| true))
                }
                WatchedChange::Resources { resources, .. } => {
                    let stream = self.streams.get(&connection.id);
                    let count = stream.map_or(0, |stream| stream.pending);
                    let kinds = stream.map(|stream| stream.pending_kinds(resources)).unwrap_or_default();
                    let pending = stream.map(|stream| self.reasons(connection, stream, resources));
                    (pending.unwrap_or_default(), count, rejection(connection, |kind| kinds.contains(&kind)))
                }
            };
            let pending = pending.into_iter().take(MAX_PENDING_PER_PROXY).collect();
            LaggingProxy { proxy: short_id(&connection.key.0), pending, count, rejection }
        };
        self.lagging.iter().map(of).collect()
    }

    /// The last acknowledgements, as of the last poll, of the proxies that acknowledged changed resources, in order of connecting.
    #[must_use]
    pub fn acknowledgements(&self) -> Vec<ProxyAck> {
        let acks = self.streams.iter().filter_map(|(stream, watched)| Some((stream, watched.last.as_ref()?)));
        let acks: BTreeMap<_, _> = acks.collect();
        acks.into_values().cloned().collect()
    }

    /// Frees what is known of streams that have ended.
    pub fn forget_ended(&mut self) {
        let connections = self.status.server.connections();
        self.streams.retain(|stream, _| connections.contains_key(stream));
    }

    /// Whether a stream has acknowledged the change; `None` if it does not concern the stream.
    fn visit(&mut self, connection: &Connection) -> Option<bool> {
        let WatchedChange::Resources { resources, by_layer, kinds } = &self.change else {
            return Some(connection.session().is_synced());
        };
        let stream = self.streams.entry(connection.id).or_default();
        let store = self.status.server.store();
        // What happens after these are read is seen at the next poll.
        let seen = (connection.session().revision(), store.epoch());
        if stream.seen != Some(seen) {
            stream.seen = Some(seen);
            let snapshot = store.snapshot(&connection.key, kinds.iter().copied());
            let in_scope = in_scope(by_layer, kinds, &snapshot);
            stream.update(connection, &snapshot, in_scope.into_iter().map(|at| (at, &resources[at])));
        }
        (!stream.resources.is_empty()).then_some(stream.pending == 0)
    }

    /// Resources that a stream has not acknowledged, each with the reason; not all if there are many.
    fn reasons(
        &self,
        connection: &Connection,
        stream: &WatchedStream,
        resources: &[(ResourceType, Text)],
    ) -> Vec<PendingResource> {
        let pending = stream.resources.iter().filter(|(_, state)| matches!(state, ResourceState::Pending(_)));
        let pending: Vec<_> = pending.map(|(at, _)| &resources[*at]).take(MAX_PENDING_PER_PROXY).collect();
        let snapshot = self.status.server.store().snapshot(&connection.key, pending.iter().map(|(kind, _)| *kind));
        let session = connection.session();
        let status = session.status();
        let of = |(kind, name): &&(ResourceType, Text)| {
            let current = snapshot.view(*kind).and_then(|view| view.version(name));
            let reason = reason(&session.progress(*kind, name)?, current, status.get(kind));
            Some(PendingResource { r#type: short_name(*kind), name: name.clone(), reason })
        };
        pending.iter().filter_map(of).collect()
    }
}

impl WatchedChange {
    fn new(change: AwaitedChange) -> Self {
        let AwaitedChange::Resources(changed) = change else { return Self::Everything };
        let named = changed.iter().flat_map(|((kind, _), names)| names.iter().map(|name| (*kind, name.clone())));
        let resources: BTreeSet<(ResourceType, Text)> = named.collect();
        let resources: Vec<_> = resources.into_iter().collect();
        let kinds = changed.keys().map(|(kind, _)| *kind).collect();
        let index = |(layer, names): ((ResourceType, Layer), BTreeSet<Text>)| {
            let of = |name| resources.binary_search(&(layer.0, name)).ok();
            let indices = names.into_iter().filter_map(of).collect();
            (layer, indices)
        };
        let by_layer = changed.into_iter().map(index).collect();
        Self::Resources { resources, by_layer, kinds }
    }
}

impl WatchedStream {
    /// Compares what the stream has acknowledged with what is current. `in_scope` has the changed resources in the proxy's scope.
    fn update<'a>(
        &mut self,
        connection: &Connection,
        snapshot: &ScopeSnapshot,
        in_scope: impl Iterator<Item = (usize, &'a (ResourceType, Text))>,
    ) {
        let session = connection.session();
        let mut before = std::mem::take(&mut self.resources);
        self.pending = 0;
        for (at, (kind, name)) in in_scope {
            let Some(acked) = session.acked_version(*kind, name) else { continue };
            let mut versions = match before.remove(&at) {
                Some(ResourceState::Acked) => {
                    self.resources.insert(at, ResourceState::Acked);
                    continue;
                }
                Some(ResourceState::Pending(versions)) => versions,
                None => Vec::new(),
            };
            let current = snapshot.view(*kind).and_then(|view| view.version(name));
            if versions.last() != Some(&current) {
                versions.push(current);
            }
            if versions.contains(&acked) {
                self.resources.insert(at, ResourceState::Acked);
                self.note_ack(connection, session.times(*kind));
            } else {
                self.pending += 1;
                self.resources.insert(at, ResourceState::Pending(versions));
            }
        }
    }

    /// The types of the resources that are not acknowledged.
    fn pending_kinds(&self, resources: &[(ResourceType, Text)]) -> BTreeSet<ResourceType> {
        let pending = self.resources.iter().filter(|(_, state)| matches!(state, ResourceState::Pending(_)));
        pending.map(|(at, _)| resources[*at].0).collect()
    }

    /// Notes when the stream acknowledged a resource of the change, if it is the last one so far.
    fn note_ack(&mut self, connection: &Connection, (sent, acked): (Option<Instant>, Option<Instant>)) {
        let Some(acked) = acked else { return };
        if self.last.as_ref().is_none_or(|last| last.acked < acked) {
            self.last = Some(ProxyAck { proxy: short_id(&connection.key.0), sent, acked });
        }
    }
}

/// Indices of the changed resources that are in a layer of the proxy's scope.
fn in_scope(
    by_layer: &HashMap<(ResourceType, Layer), Vec<usize>>,
    kinds: &BTreeSet<ResourceType>,
    snapshot: &ScopeSnapshot,
) -> BTreeSet<usize> {
    let Some(scope) = snapshot.scope() else { return BTreeSet::new() };
    let layers = &scope.scope().layers;
    let seen = kinds.iter().filter_map(|kind| Some((kind, layers.get(kind)?)));
    let seen = seen.flat_map(|(kind, layers)| layers.iter().map(|layer| (*kind, layer.clone())));
    seen.filter_map(|layer| by_layer.get(&layer)).flatten().copied().collect()
}

/// The error message of a rejected response of one of these types.
fn rejection(connection: &Connection, is_awaited: impl Fn(ResourceType) -> bool) -> Option<Text> {
    let status = connection.session().status();
    let mut awaited = status.into_iter().filter(|(kind, _)| is_awaited(*kind));
    awaited.find_map(|(_, status)| status.error.map(|(_, message)| message))
}

/// The types of a stream whose last response is not acknowledged.
fn pending_types(connection: &Connection) -> Vec<PendingResource> {
    let session = connection.session();
    let unsynced = session.status().into_iter().filter(|(_, status)| {
        // A type without a response has nothing for this proxy, unless a change waits to be sent.
        !matches!(status.state(), SyncState::Synced | SyncState::NotSent)
    });
    let mut pending: Vec<PendingResource> = unsynced
        .map(|(kind, status)| {
            let reason = match &status.error {
                Some((_, message)) => format!("rejected: {message}"),
                None => sent_reason(Some(&status)),
            };
            PendingResource { r#type: short_name(kind), name: Text::default(), reason }
        })
        .collect();
    if session.unsent_since().is_some() && pending.is_empty() {
        let reason = "a change is not sent yet".to_owned();
        pending.push(PendingResource { r#type: "", name: Text::default(), reason });
    }
    pending
}

/// Why a proxy has not acknowledged the current version of a resource.
fn reason(progress: &ResourceProgress, current: Option<Version>, status: Option<&TypeStatus>) -> String {
    match &progress.error {
        Some(message) => format!("rejected: {message}"),
        None if progress.sent == current => sent_reason(status),
        None if status.is_some_and(|status| status.unacked_since.is_some()) => {
            format!("not sent yet: an earlier response is {}", sent_reason(status))
        }
        None => "not sent yet".to_owned(),
    }
}

fn sent_reason(status: Option<&TypeStatus>) -> String {
    let since = status.and_then(|status| status.unacked_since.or(status.sent_at));
    let seconds = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
    format!("sent {seconds:.1} s ago and not acknowledged")
}
