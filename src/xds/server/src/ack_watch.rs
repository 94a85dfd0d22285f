//! Follows the acknowledgements of a change: which proxies it concerns, and which of them have not acknowledged it.

use std::collections::{BTreeSet, HashMap, HashSet};
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

/// One resource of one stream.
type StreamResource = (u64, ResourceType, Text);

/// Follows the acknowledgements of a change. A proxy acknowledges a changed resource with the version that was current at any
/// [`Self::poll`], so that later changes do not delay the end.
pub struct AckWatch {
    status: StatusReader,
    change: AwaitedChange,
    /// The versions that were current at a poll.
    versions: HashMap<StreamResource, Vec<Option<Version>>>,
    acked: HashSet<StreamResource>,
    /// The streams that had acknowledged everything, with their number of requests at that time: they are visited again when they
    /// have sent another one, which may subscribe to more.
    complete: HashMap<u64, u64>,
    /// The last acknowledgement of each stream.
    last: HashMap<u64, ProxyAck>,
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

/// The proxies that a change concerns.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AckReport {
    /// Number of proxies that it concerns.
    pub concerned: usize,
    /// Number of those that acknowledged it.
    pub acked: usize,
    /// Those that did not, in order of connecting.
    pub lagging: Vec<LaggingProxy>,
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
        Self {
            status,
            change,
            versions: HashMap::new(),
            acked: HashSet::new(),
            complete: HashMap::new(),
            last: HashMap::new(),
        }
    }

    /// The current state.
    pub fn poll(&mut self) -> AckReport {
        let mut report = AckReport::default();
        for connection in self.status.server.connections().values() {
            let Some(pending) = self.pending(connection) else { continue };
            report.concerned += 1;
            if pending.is_empty() {
                report.acked += 1;
                continue;
            }
            let count = pending.len();
            let pending = pending.into_iter().take(MAX_PENDING_PER_PROXY).collect();
            report.lagging.push(LaggingProxy { proxy: short_id(&connection.key.0), pending, count });
        }
        report
    }

    /// The last acknowledgements, as of the last poll, of the proxies that acknowledged changed resources, in order of connecting.
    #[must_use]
    pub fn acknowledgements(&self) -> Vec<ProxyAck> {
        let mut acks: Vec<_> = self.last.iter().collect();
        acks.sort_by_key(|(stream, _)| **stream);
        acks.into_iter().map(|(_, ack)| ack.clone()).collect()
    }

    /// The resources of the change that a stream has not acknowledged; `None` if the change does not concern it.
    fn pending(&mut self, connection: &Arc<Connection>) -> Option<Vec<PendingResource>> {
        let AwaitedChange::Resources(changed) = &self.change else { return Some(pending_types(connection)) };
        if self.complete.get(&connection.id).is_some_and(|requests| *requests == connection.session().requests()) {
            return Some(Vec::new());
        }
        let kinds: BTreeSet<ResourceType> = changed.keys().map(|(kind, _)| *kind).collect();
        let snapshot = self.status.server.store().snapshot(&connection.key, kinds.iter().copied());
        let resources = in_scope(changed, &snapshot);
        let session = connection.session();
        let status = session.status();
        let (mut pending, mut concerns) = (Vec::new(), false);
        for (kind, name) in resources {
            let Some(progress) = session.progress(kind, name) else { continue };
            concerns = true;
            let resource = (connection.id, kind, name.clone());
            if self.acked.contains(&resource) {
                continue;
            }
            let current = snapshot.view(kind).and_then(|view| view.version(name));
            let versions = self.versions.entry(resource.clone()).or_default();
            if versions.last() != Some(&current) {
                versions.push(current);
            }
            if versions.contains(&progress.acked) {
                self.versions.remove(&resource);
                self.acked.insert(resource);
                note_ack(&mut self.last, connection, status.get(&kind));
            } else {
                let reason = reason(&progress, current, status.get(&kind));
                pending.push(PendingResource { r#type: short_name(kind), name: name.clone(), reason });
            }
        }
        match concerns && pending.is_empty() {
            true => drop(self.complete.insert(connection.id, session.requests())),
            false => drop(self.complete.remove(&connection.id)),
        }
        concerns.then_some(pending)
    }
}

/// Notes when a stream acknowledged a resource of the change, if it is the last one so far.
fn note_ack(last: &mut HashMap<u64, ProxyAck>, connection: &Connection, status: Option<&TypeStatus>) {
    let Some((status, acked)) = status.and_then(|status| Some((status, status.acked_at?))) else { return };
    let ack = ProxyAck { proxy: short_id(&connection.key.0), sent: status.sent_at, acked };
    let last = last.entry(connection.id).or_insert_with(|| ack.clone());
    if last.acked < acked {
        *last = ack;
    }
}

/// The changed resources that are in a layer of the proxy's scope.
fn in_scope<'a>(changed: &'a ChangedResources, snapshot: &ScopeSnapshot) -> BTreeSet<(ResourceType, &'a Text)> {
    let Some(scope) = snapshot.scope() else { return BTreeSet::new() };
    let layers = &scope.scope().layers;
    let is_seen = |kind: &ResourceType, layer: &Layer| layers.get(kind).is_some_and(|of_kind| of_kind.contains(layer));
    let seen = changed.iter().filter(|((kind, layer), _)| is_seen(kind, layer));
    seen.flat_map(|((kind, _), names)| names.iter().map(|name| (*kind, name))).collect()
}

/// The types of a stream whose last response is not acknowledged.
fn pending_types(connection: &Arc<Connection>) -> Vec<PendingResource> {
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
