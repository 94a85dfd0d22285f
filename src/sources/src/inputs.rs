//! Writes the changes of all sources to the inputs of the graph.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sluice_engine::{Engine, Transaction};
use sluice_graph::{Inputs, ServedKind};
use sluice_model::{Kind, Text};
use sluice_parse::{KindInfo, kind_info};
use sluice_tasks::{NamedThread, ThreadEnd};
use tokio::sync::oneshot;

use super::backlog::{Backlog, Lane};
use super::metrics::{KnownObjects, SourceMetrics};
use super::{Change, CurrentMesh, Originals, Sink};

/// Maximum number of changes that wait in each lane of the backlog. A source waits while the lane of its changes is full,
/// so a source of endpoints never waits for configuration.
const MAX_WAITING_CHANGES: usize = 32_768;

/// The inputs of the graph as a sink. One thread commits everything that the sources have added meanwhile as one
/// epoch, changes of endpoints first.
pub struct InputSink {
    waiting: Arc<WaitingCommits>,
    thread: NamedThread,
}

/// What the sources have added and the thread has not taken yet.
#[derive(Default)]
struct WaitingCommits {
    commits: Mutex<Commits>,
    /// Something was added, or the sink was dropped.
    added: Condvar,
    /// The thread has taken changes, or has ended.
    taken: Condvar,
}

#[derive(Default)]
struct Commits {
    backlog: Backlog,
    synced: Vec<(Text, Vec<Kind>)>,
    served: Vec<(ServedKind, bool)>,
    settled: Vec<oneshot::Sender<()>>,
    /// The sink was dropped, or the thread has ended.
    is_closed: bool,
}

/// What the thread commits next.
struct NextCommit {
    changes: Vec<Change>,
    synced: Vec<(Text, Vec<Kind>)>,
    served: Vec<(ServedKind, bool)>,
    settled: Vec<oneshot::Sender<()>>,
}

impl WaitingCommits {
    fn lock(&self) -> MutexGuard<'_, Commits> {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds changes to their lanes, once these are not full. They stay together unless the second lane is full.
    fn add(&self, lanes: [(Lane, Vec<Change>); 2]) {
        let mut commits = self.lock();
        for (lane, changes) in lanes {
            if changes.is_empty() {
                continue;
            }
            let is_full =
                |commits: &mut Commits| !commits.is_closed && commits.backlog.len_of(lane) >= MAX_WAITING_CHANGES;
            commits = self.taken.wait_while(commits, is_full).unwrap_or_else(PoisonError::into_inner);
            if !commits.is_closed {
                commits.backlog.add(lane, changes);
                self.added.notify_one();
            }
        }
    }

    /// Waits for something to commit. `takes_all`: some kinds are not synced yet. `None` after the sink was dropped.
    fn next(&self, takes_all: bool) -> Option<NextCommit> {
        let is_empty = |commits: &mut Commits| {
            let is_unchanged = commits.backlog.len() == 0 && commits.synced.is_empty() && commits.served.is_empty();
            is_unchanged && commits.settled.is_empty() && !commits.is_closed
        };
        let mut commits = self.added.wait_while(self.lock(), is_empty).unwrap_or_else(PoisonError::into_inner);
        let (synced, settled) = (std::mem::take(&mut commits.synced), std::mem::take(&mut commits.settled));
        let served = std::mem::take(&mut commits.served);
        // Kinds are reported as synced only after all their changes are committed. A list that is read again is no such report.
        let takes_all = takes_all || !settled.is_empty();
        let changes = if takes_all { commits.backlog.take_all() } else { commits.backlog.take_next() };
        drop(commits);
        self.taken.notify_all();
        let is_end = changes.is_empty() && synced.is_empty() && served.is_empty() && settled.is_empty();
        (!is_end).then_some(NextCommit { changes, synced, served, settled })
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.added.notify_all();
        self.taken.notify_all();
    }
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
        mesh: impl Into<CurrentMesh>,
        originals: Originals,
        metrics: SourceMetrics,
    ) -> std::io::Result<Self> {
        let not_synced = clusters.iter().flat_map(|(cluster, kinds)| kinds.iter().map(|kind| (*kind, cluster.clone())));
        let not_synced: BTreeSet<_> = not_synced.collect();
        let waiting = Arc::new(WaitingCommits::default());
        let committer = Committer {
            engine,
            inputs,
            not_synced,
            mesh: mesh.into(),
            originals,
            metrics,
            known: KnownObjects::default(),
            waiting: waiting.clone(),
        };
        let thread = NamedThread::start("sources", move || committer.run())?;
        Ok(Self { waiting, thread })
    }

    /// The end of the thread. `None` from the second call on.
    pub fn end(&mut self) -> Option<ThreadEnd> {
        self.thread.end()
    }
}

impl Drop for InputSink {
    fn drop(&mut self) {
        self.waiting.close();
    }
}

impl Sink for InputSink {
    fn commit(&self, changes: Vec<Change>) {
        let is_endpoint = |change: &Change| Lane::of(change.kind) == Lane::Endpoints;
        let (endpoints, others) = changes.into_iter().partition(is_endpoint);
        self.waiting.add([(Lane::Endpoints, endpoints), (Lane::Others, others)]);
    }

    fn synced(&self, cluster: &Text, kinds: &[Kind]) {
        self.waiting.lock().synced.push((cluster.clone(), kinds.to_vec()));
        self.waiting.added.notify_one();
    }

    fn served(&self, cluster: &Text, kind: Kind, is_served: bool) {
        self.waiting.lock().served.push((ServedKind { cluster: cluster.clone(), kind }, is_served));
        self.waiting.added.notify_one();
    }

    fn settle(&self, done: oneshot::Sender<()>) {
        let mut commits = self.waiting.lock();
        // A receiver does not wait for a thread that has ended.
        if !commits.is_closed {
            commits.settled.push(done);
            self.waiting.added.notify_one();
        }
    }
}

struct Committer {
    engine: Engine,
    inputs: Inputs,
    /// The kinds that have not been read for the first time yet, by cluster.
    not_synced: BTreeSet<(Kind, Text)>,
    mesh: CurrentMesh,
    originals: Originals,
    metrics: SourceMetrics,
    known: KnownObjects,
    waiting: Arc<WaitingCommits>,
}

impl Drop for Committer {
    fn drop(&mut self) {
        // Sources must not wait for a thread that has ended.
        self.waiting.close();
        self.waiting.lock().settled.clear();
    }
}

impl Committer {
    fn run(mut self) {
        while let Some(NextCommit { changes, synced, served, settled }) = self.waiting.next(!self.not_synced.is_empty())
        {
            self.commit(changes, &synced, served);
            for done in settled {
                // The receiver may have ended.
                let _ = done.send(());
            }
        }
    }

    fn commit(&mut self, changes: Vec<Change>, synced: &[(Text, Vec<Kind>)], served: Vec<(ServedKind, bool)>) {
        let done = self.now_synced(synced);
        let all = !done.is_empty() && self.not_synced.is_empty();
        let changes = changes.into_iter().map(|change| {
            self.metrics.count(&change, &mut self.known);
            self.originals.set(&change);
            self.mesh.apply(change)
        });
        let changes: Vec<_> = changes.collect();
        let has_endpoints = changes.iter().any(|change| Lane::of(change.kind) == Lane::Endpoints);
        let write = |tx: &mut Transaction| {
            for (kind, is_served) in served {
                match is_served {
                    true => tx.set(&self.inputs.served_kinds, kind, ()),
                    false => tx.delete(&self.inputs.served_kinds, kind),
                }
            }
            for change in changes {
                self.write(tx, change);
            }
            for kind in done {
                self.inputs.mark_synced(tx, kind);
            }
            if all {
                self.inputs.mark_all_synced(tx);
            }
        };
        // Changes of endpoints do not wait behind other writes, such as those of thousands of new proxies.
        match has_endpoints {
            true => self.engine.priority_transaction(write),
            false => self.engine.transaction(write),
        };
    }

    /// The kinds that are now read in every cluster.
    fn now_synced(&mut self, synced: &[(Text, Vec<Kind>)]) -> BTreeSet<Kind> {
        let mut done = BTreeSet::new();
        for (cluster, kinds) in synced {
            for kind in kinds {
                if self.not_synced.remove(&(*kind, cluster.clone())) {
                    done.insert(*kind);
                }
            }
        }
        done.retain(|kind| !self.not_synced.iter().any(|(waiting, _)| waiting == kind));
        done
    }

    fn write(&self, tx: &mut Transaction, change: Change) {
        let Change { kind, key, object, mut origin } = change;
        if kind_info(kind).is_some_and(KindInfo::is_istio) {
            self.inputs.request_condition(tx, kind, key.clone(), origin.condition_request.take().map(|it| *it));
        }
        let (received, generation) = (Some(origin.received), origin.generation);
        let version = if origin.version.is_empty() || !origin.place.is_empty() { origin.place } else { origin.version };
        let origin = sluice_engine::Origin { received, generation, ..sluice_engine::Origin::version(version.as_str()) };
        match object {
            Some(parsed) => self.inputs.apply(tx, *parsed, origin),
            None => self.inputs.delete(tx, kind, key, origin),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use sluice_engine::{Clock, EngineOptions};
    use sluice_graph::{GraphOptions, Handles};
    use sluice_model::{Namespace, Object, ObjectKey, ParsedObject};

    use super::*;
    use crate::{ChangeOrigin, MeshOverride};

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

    fn start(epoch: &LongEpoch) -> (Engine, Handles, InputSink) {
        let options = EngineOptions { clock: epoch.clock(), ..EngineOptions::default() };
        let (engine, handles) =
            Engine::start(options, |builder| sluice_graph::build(builder, &GraphOptions::default()));
        let mesh = MeshOverride::new(ObjectKey::new("Kubernetes", "istio-system", "istio"), None);
        let inputs = handles.inputs.clone();
        let sink = InputSink::start(
            engine.clone(),
            inputs,
            BTreeMap::new(),
            mesh,
            Originals::default(),
            SourceMetrics::default(),
        );
        (engine, handles, sink.expect("a thread"))
    }

    fn change(kind: Kind, key: ObjectKey, object: Object) -> Change {
        let object = Box::new(ParsedObject { kind, key: key.clone(), object: Some(object), rejects: Vec::new() });
        Change { kind, key, object: Some(object), origin: ChangeOrigin::default() }
    }

    fn namespace(number: usize) -> ObjectKey {
        ObjectKey::new("Kubernetes", "", format!("n-{number:05}"))
    }

    #[test]
    fn endpoint_change_overtakes_a_full_backlog_of_configuration_and_keeps_the_order_of_its_object() {
        const NAMESPACES: usize = 40_960;
        let epoch = LongEpoch::default();
        let (engine, handles, sink) = start(&epoch);
        epoch.set(true);
        let pod = ObjectKey::new("Kubernetes", "shop", "web");
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                for commit in 0..NAMESPACES / 8192 {
                    let numbers = commit * 8192..(commit + 1) * 8192;
                    let set = |n| change(Kind::Namespace, namespace(n), Object::Namespace(Namespace::default()));
                    sink.commit(numbers.map(set).collect());
                }
            });
            while sink.waiting.lock().backlog.len_of(Lane::Others) < MAX_WAITING_CHANGES {
                std::thread::yield_now();
            }
            // The source of the Pods does not wait.
            for uid in ["first", "second"] {
                let object = json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": "web", "namespace": "shop", "uid": uid},
                    "spec": {}, "status": {"phase": "Running", "podIP": "10.0.0.1"},
                });
                let parsed = sluice_parse::parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("a Pod");
                sink.commit(vec![change(Kind::Pod, pod.clone(), parsed.object.expect("valid"))]);
            }
            epoch.set(false);
            writing.join().expect("no panic");
        });
        let (done, is_done) = oneshot::channel();
        sink.settle(done);
        is_done.blocking_recv().expect("the thread runs");

        let snapshot = engine.snapshot();
        assert_eq!(snapshot.get(&handles.pods, &pod).map(|pod| pod.uid.to_string()).as_deref(), Some("second"));
        let at = snapshot.changed_at(&handles.pods, &pod).expect("written");
        assert_eq!(snapshot.len(&handles.namespaces), NAMESPACES);
        let is_before =
            |n: &usize| snapshot.changed_at(&handles.namespaces, &namespace(*n)).is_some_and(|epoch| epoch < at);
        let before = (0..NAMESPACES).filter(is_before).count();
        assert!(before <= 2 * 1024, "{before} changes of configuration went first");
    }

    #[test]
    fn list_that_is_read_again_does_not_commit_the_whole_backlog_as_one_epoch() {
        let waiting = WaitingCommits::default();
        let set = |n| change(Kind::Namespace, namespace(n), Object::Namespace(Namespace::default()));
        let next = |takes_all| {
            waiting.add([(Lane::Endpoints, Vec::new()), (Lane::Others, (0..3000).map(set).collect())]);
            waiting.lock().synced.push(("Kubernetes".into(), vec![Kind::Namespace]));
            waiting.next(takes_all).map(|next| (next.changes.len(), next.synced.len()))
        };
        assert_eq!(next(true), Some((3000, 1)), "a first list");
        assert_eq!(next(false), Some((1024, 1)), "all kinds are synced");
    }

    #[test]
    fn sources_do_not_wait_for_a_thread_that_has_ended() {
        let epoch = LongEpoch::default();
        let (_engine, _handles, sink) = start(&epoch);
        sink.waiting.close();
        for n in 0..2 * MAX_WAITING_CHANGES {
            sink.commit(vec![change(Kind::Namespace, namespace(n), Object::Namespace(Namespace::default()))]);
        }
        let (done, is_done) = oneshot::channel();
        sink.settle(done);
        assert!(is_done.blocking_recv().is_err(), "nothing is applied");
    }
}
