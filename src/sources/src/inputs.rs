//! Writes the changes of all sources to the inputs of the graph.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::{fmt, thread};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_engine::{Engine, Transaction};
use sluice_graph::Inputs;
use sluice_model::{Kind, Text};
use sluice_telemetry::Count;
use tokio::sync::oneshot;

use super::backlog::Backlog;
use super::{Change, MeshOverride, Sink};

/// Maximum number of queued commits. A source waits while the queue is full.
const MAX_QUEUED_COMMITS: usize = 64;
/// Maximum number of changes in the backlog. It holds at least one commit of each source, so that changes of endpoints
/// can go first.
const MAX_BACKLOG_CHANGES: usize = 32_768;

/// A message of a source.
enum SourceMessage {
    Changes(Vec<Change>),
    Synced(Text, Vec<Kind>),
    Settle(oneshot::Sender<()>),
}

/// The inputs of the graph as a sink. One thread commits everything that the sources have queued meanwhile as one
/// epoch.
pub struct InputSink {
    messages: SyncSender<SourceMessage>,
}

impl InputSink {
    /// Starts the thread. A kind is synced when every cluster of `clusters` has reported it as synced.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        engine: Engine,
        inputs: Inputs,
        clusters: BTreeMap<Text, Vec<Kind>>,
        mesh: MeshOverride,
        metrics: SourceMetrics,
    ) -> std::io::Result<Self> {
        let (messages, receiver) = sync_channel(MAX_QUEUED_COMMITS);
        let waiting = clusters.iter().flat_map(|(cluster, kinds)| kinds.iter().map(|kind| (*kind, cluster.clone())));
        let waiting: BTreeSet<_> = waiting.collect();
        let committer = Committer { engine, inputs, waiting, mesh, metrics };
        thread::Builder::new().name("sources".to_owned()).spawn(move || committer.run(&receiver))?;
        Ok(Self { messages })
    }

    fn send(&self, message: SourceMessage) {
        // Fails only when the thread has ended, at the end of the process.
        let _ = self.messages.send(message);
    }
}

impl Sink for InputSink {
    fn commit(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.send(SourceMessage::Changes(changes));
        }
    }

    fn synced(&self, cluster: &Text, kinds: &[Kind]) {
        self.send(SourceMessage::Synced(cluster.clone(), kinds.to_vec()));
    }

    fn settle(&self, done: oneshot::Sender<()>) {
        self.send(SourceMessage::Settle(done));
    }
}

struct Committer {
    engine: Engine,
    inputs: Inputs,
    /// The kinds that have not been read for the first time yet, by cluster.
    waiting: BTreeSet<(Kind, Text)>,
    mesh: MeshOverride,
    metrics: SourceMetrics,
}

impl Committer {
    fn run(mut self, messages: &Receiver<SourceMessage>) {
        let mut backlog = Backlog::default();
        loop {
            let (mut synced, mut settled) = (Vec::new(), Vec::new());
            let mut next = if backlog.len() == 0 { messages.recv().ok() } else { messages.try_recv().ok() };
            if next.is_none() && backlog.len() == 0 {
                return;
            }
            while let Some(message) = next.take() {
                match message {
                    SourceMessage::Changes(more) => backlog.add(more),
                    SourceMessage::Synced(cluster, kinds) => synced.push((cluster, kinds)),
                    SourceMessage::Settle(done) => settled.push(done),
                }
                if backlog.len() < MAX_BACKLOG_CHANGES {
                    next = messages.try_recv().ok();
                }
            }
            // Kinds are reported as synced only after all their changes are committed.
            let must_take_all = !synced.is_empty() || !settled.is_empty() || !self.waiting.is_empty();
            let changes = if must_take_all { backlog.take_all() } else { backlog.take_next() };
            self.commit(changes, &synced);
            for done in settled {
                // The receiver may have ended.
                let _ = done.send(());
            }
        }
    }

    fn commit(&mut self, changes: Vec<Change>, synced: &[(Text, Vec<Kind>)]) {
        let done = self.now_synced(synced);
        let all = !done.is_empty() && self.waiting.is_empty();
        let changes = changes.into_iter().map(|change| {
            self.metrics.count(&change);
            self.mesh.apply(change)
        });
        let changes: Vec<_> = changes.collect();
        self.engine.transaction(|tx| {
            for change in changes {
                self.write(tx, change);
            }
            for kind in done {
                self.inputs.mark_synced(tx, kind);
            }
            if all {
                self.inputs.mark_all_synced(tx);
            }
        });
    }

    /// The kinds that are now read in every cluster.
    fn now_synced(&mut self, synced: &[(Text, Vec<Kind>)]) -> BTreeSet<Kind> {
        let mut done = BTreeSet::new();
        for (cluster, kinds) in synced {
            for kind in kinds {
                if self.waiting.remove(&(*kind, cluster.clone())) {
                    done.insert(*kind);
                }
            }
        }
        done.retain(|kind| !self.waiting.iter().any(|(waiting, _)| waiting == kind));
        done
    }

    fn write(&self, tx: &mut Transaction, change: Change) {
        let Change { kind, key, object, origin } = change;
        let received = Some(origin.received);
        let version = if origin.version.is_empty() || !origin.place.is_empty() { origin.place } else { origin.version };
        let origin = sluice_engine::Origin { received, ..sluice_engine::Origin::version(version.as_str()) };
        match object {
            Some(parsed) => self.inputs.apply(tx, *parsed, origin),
            None => self.inputs.delete(tx, kind, key, origin),
        }
    }
}

/// Labels of `pilot_k8s_cfg_events` and `pilot_k8s_reg_events`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct EventLabel {
    r#type: String,
    event: &'static str,
}

/// Number of changed objects, by kind (O13).
#[derive(Clone, Default)]
pub struct SourceMetrics {
    configuration: Family<EventLabel, Count>,
    registry: Family<EventLabel, Count>,
}

impl SourceMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("pilot_k8s_cfg_events", "Configuration objects that changed", self.configuration.clone());
        registry.register("pilot_k8s_reg_events", "Other objects that changed", self.registry.clone());
    }

    fn count(&self, change: &Change) {
        let custom = sluice_parse::kind_info(change.kind).is_some_and(sluice_parse::KindInfo::is_custom);
        let family = if custom { &self.configuration } else { &self.registry };
        let event = if change.object.is_some() { "set" } else { "delete" };
        family.get_or_create(&EventLabel { r#type: change.kind.to_string(), event }).inc();
    }
}

impl fmt::Debug for SourceMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceMetrics")
    }
}
