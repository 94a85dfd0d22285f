//! Sources of configuration (C08, C10): several sources of the objects of Istio's API groups, in place of the local cluster alone.
//!
//! The mesh config lists them (`configSources`), and it is an object of the local cluster itself. So configuration of the local
//! cluster is held until the mesh config has been read. From then on, the list is fixed: as in Istio, another list takes effect
//! when the process restarts. Services, workloads and other kinds are read from the local cluster in any case.

mod findings;
mod merge;
mod states;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_model::{ConfigSource, ConfigSourceKind, Kind, Text};
use sluice_parse::{KINDS, KindInfo, kind_info};
use tokio::sync::{oneshot, watch};

use crate::lane_order::LaneOrder;
use crate::{Change, Cluster, Reporter, Sink};
pub use findings::{SourceFinding, SourceFindings};
use merge::Merge;
pub use states::{ConfigSourceState, ConfigSourceStates, ConfigSourceStatus, ConfigSourceSummary};

/// The kinds that sources of configuration have: those of Istio's API groups.
pub fn configuration_kinds() -> impl Iterator<Item = &'static KindInfo> {
    KINDS.iter().filter(|info| info.is_istio())
}

/// Combines the sources of configuration. A clone is another handle.
#[derive(Clone)]
pub struct ConfigurationSources(Arc<Shared>);

struct Shared {
    sink: Arc<dyn Sink>,
    /// The local cluster.
    cluster: Cluster,
    reporter: Reporter,
    /// Is locked before the state, and during a commit, which may wait for a full lane.
    order: LaneOrder,
    state: Mutex<State>,
    /// The local cluster is the only source, and nothing is held.
    is_local_only: AtomicBool,
    /// The ConfigMaps of the local cluster have been committed.
    config_maps_read: watch::Sender<bool>,
}

enum State {
    /// The mesh config is not known yet. What the local cluster reported about configuration waits.
    Held(Vec<HeldReport>),
    /// The local cluster is the only source.
    Local,
    /// The sources of the mesh config.
    Merged(Merge),
}

/// A report of the local cluster about kinds of custom resources.
enum HeldReport {
    Commit(Vec<Change>),
    Synced(Vec<Kind>),
}

impl ConfigurationSources {
    /// Passes objects to `sink`. `cluster` is the local cluster. Objects that several sources have are reported to `reporter`.
    #[must_use]
    pub fn new(sink: Arc<dyn Sink>, cluster: Cluster, reporter: Reporter) -> Self {
        Self(Arc::new(Shared {
            sink,
            cluster,
            reporter,
            order: LaneOrder::default(),
            state: Mutex::new(State::Held(Vec::new())),
            is_local_only: AtomicBool::new(false),
            config_maps_read: watch::Sender::new(false),
        }))
    }

    /// The sink of the local cluster.
    #[must_use]
    pub fn local(&self) -> Arc<dyn Sink> {
        Arc::new(LocalSink(self.0.clone()))
    }

    /// Waits until the ConfigMaps of the local cluster have been read and applied.
    pub async fn mesh_config_read(&self) {
        let mut read = self.0.config_maps_read.subscribe();
        // The sender is part of `self`.
        let _ = read.wait_for(|is_read| *is_read).await;
        let (done, is_done) = oneshot::channel();
        self.0.sink.settle(done);
        let _ = is_done.await;
    }

    /// Fixes the list of sources; an empty one is the local cluster. Returns a sink for each source that is not the local cluster and
    /// that can be read. Such a sink takes kinds of [`configuration_kinds`] under the id of the local cluster.
    pub fn fix(&self, sources: &[ConfigSource]) -> Vec<(usize, Arc<dyn Sink>)> {
        let shared = &self.0;
        let _order = shared.order.wait_for_all();
        let mut state = shared.lock();
        let State::Held(held) = std::mem::replace(&mut *state, State::Local) else { return Vec::new() };
        let not_local: Vec<Kind> =
            configuration_kinds().map(|info| info.kind).filter(|kind| !shared.cluster.reads(*kind)).collect();
        if sources.is_empty() {
            shared.sink.synced(&shared.cluster.id, &not_local);
            for report in held {
                match report {
                    HeldReport::Commit(changes) => shared.sink.commit(changes),
                    HeldReport::Synced(kinds) => shared.sink.synced(&shared.cluster.id, &kinds),
                }
            }
            shared.is_local_only.store(true, Ordering::Release);
            return Vec::new();
        }
        let mut merge = Merge::new(sources, &not_local);
        shared.sink.synced(&shared.cluster.id, &merge.take_synced());
        for report in held {
            match report {
                HeldReport::Commit(changes) => shared.commit(shared.merge_local(&mut merge, changes)),
                HeldReport::Synced(kinds) => shared.synced_local(&mut merge, &kinds),
            }
        }
        *state = State::Merged(merge);
        let read = sources
            .iter()
            .enumerate()
            .filter(|(_, source)| matches!(source.kind, ConfigSourceKind::Xds(_) | ConfigSourceKind::Directory(_)));
        let sink = |rank| Arc::new(RankedSink { shared: shared.clone(), rank }) as Arc<dyn Sink>;
        read.map(|(rank, _)| (rank, sink(rank))).collect()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.sink.commit(changes);
        }
    }

    /// The changes of the objects that decide, after changes of a source. They are added to those of other kinds.
    fn merge(&self, merge: &mut Merge, rank: usize, changes: Vec<Change>, mut others: Vec<Change>) -> Vec<Change> {
        for change in changes {
            let id = (change.kind, change.key.clone());
            others.extend(merge.apply(rank, change));
            match merge.duplicate(&id) {
                Some(duplicate) => self.reporter.add_duplicate_of_sources(duplicate),
                None => self.reporter.remove_duplicate_of_sources(&id),
            }
        }
        others
    }

    fn merge_local(&self, merge: &mut Merge, changes: Vec<Change>) -> Vec<Change> {
        let (configuration, mut others): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| is_configuration(change.kind));
        match merge.local() {
            Some(rank) => self.merge(merge, rank, configuration, others),
            None => {
                // Without `k8s://`, no custom resources of the cluster are read.
                others.retain(|change| !is_istio_or_gateway_api(change.kind));
                others
            }
        }
    }

    fn synced_local(&self, merge: &mut Merge, kinds: &[Kind]) {
        let (configuration, others): (Vec<Kind>, Vec<Kind>) = kinds.iter().partition(|kind| is_configuration(**kind));
        self.sink.synced(&self.cluster.id, &others);
        if let Some(rank) = merge.local() {
            self.synced(merge, rank, &configuration);
        }
    }

    fn synced(&self, merge: &mut Merge, rank: usize, kinds: &[Kind]) {
        merge.synced(rank, kinds);
        let synced = merge.take_synced();
        if !synced.is_empty() {
            self.sink.synced(&self.cluster.id, &synced);
        }
    }
}

/// The sink of the local cluster. Kinds of Kubernetes itself never wait for configuration.
struct LocalSink(Arc<Shared>);

impl Sink for LocalSink {
    fn commit(&self, changes: Vec<Change>) {
        let shared = &self.0;
        if shared.is_local_only.load(Ordering::Acquire)
            || !changes.iter().any(|change| is_istio_or_gateway_api(change.kind))
        {
            return shared.sink.commit(changes);
        }
        let _order = shared.order.wait(changes.iter().map(|change| change.kind));
        let changes = match &mut *shared.lock() {
            State::Held(held) => {
                let (custom, others): (Vec<_>, Vec<_>) =
                    changes.into_iter().partition(|change| is_istio_or_gateway_api(change.kind));
                held.push(HeldReport::Commit(custom));
                others
            }
            State::Local => changes,
            State::Merged(merge) => shared.merge_local(merge, changes),
        };
        shared.commit(changes);
    }

    fn synced(&self, cluster: &Text, kinds: &[Kind]) {
        let shared = &self.0;
        match &mut *shared.lock() {
            State::Held(held) => {
                let (custom, others): (Vec<Kind>, Vec<Kind>) =
                    kinds.iter().partition(|kind| is_istio_or_gateway_api(**kind));
                held.push(HeldReport::Synced(custom));
                shared.sink.synced(cluster, &others);
            }
            State::Local => shared.sink.synced(cluster, kinds),
            State::Merged(merge) => shared.synced_local(merge, kinds),
        }
        if kinds.contains(&Kind::ConfigMap) {
            shared.config_maps_read.send_replace(true);
        }
    }

    fn served(&self, cluster: &Text, kind: Kind, is_served: bool) {
        self.0.sink.served(cluster, kind, is_served);
    }

    fn settle(&self, done: oneshot::Sender<()>) {
        self.0.sink.settle(done);
    }
}

/// The sink of another source.
struct RankedSink {
    shared: Arc<Shared>,
    /// Its index in the list.
    rank: usize,
}

impl Sink for RankedSink {
    fn commit(&self, changes: Vec<Change>) {
        let shared = &self.shared;
        let _order = shared.order.wait(changes.iter().map(|change| change.kind));
        let changes = match &mut *shared.lock() {
            State::Merged(merge) => shared.merge(merge, self.rank, changes, Vec::new()),
            State::Held(_) | State::Local => return,
        };
        shared.commit(changes);
    }

    fn synced(&self, _cluster: &Text, kinds: &[Kind]) {
        if let State::Merged(merge) = &mut *self.shared.lock() {
            self.shared.synced(merge, self.rank, kinds);
        }
    }

    fn settle(&self, done: oneshot::Sender<()>) {
        self.shared.sink.settle(done);
    }
}

fn is_istio_or_gateway_api(kind: Kind) -> bool {
    kind_info(kind).is_some_and(KindInfo::is_configuration)
}

fn is_configuration(kind: Kind) -> bool {
    kind_info(kind).is_some_and(KindInfo::is_istio)
}

#[cfg(test)]
mod tests;
