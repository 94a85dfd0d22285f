//! Reads the objects of one remote cluster with one kubeconfig.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use sluice_model::{Kind, ObjectKey, Redacted, Text};
use sluice_telemetry::unix_time;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::kube::KubeSource;
use crate::lane_order::LaneOrder;
use crate::{Change, ChangeOrigin, Sink};

/// An event of a reader, with its id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Event {
    /// All kinds are synced.
    Synced(u64),
    /// Some kinds are not synced within the timeout.
    TimedOut(u64),
    /// The reader has ended before it was stopped.
    Failed(u64),
}

type Keys = BTreeSet<(Kind, ObjectKey)>;

/// A running read of a cluster.
pub(super) struct ClusterReader {
    pub(super) id: u64,
    pub(super) kubeconfig: Redacted,
    pub(super) client: Client,
    pub(super) is_synced: bool,
    pub(super) is_timed_out: bool,
    sink: Arc<ReaderSink>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Options of a reader.
pub(super) struct ReaderOptions {
    pub(super) id: u64,
    pub(super) kubeconfig: Redacted,
    pub(super) source: KubeSource,
    /// Receives the objects.
    pub(super) sink: Arc<dyn Sink>,
    /// Another reader of the cluster runs: changes are held until [`ClusterReader::replace`].
    pub(super) is_replacement: bool,
    /// Time until [`Event::TimedOut`]; zero is unlimited.
    pub(super) timeout: Duration,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// Stops the reader.
    pub(super) stop: CancellationToken,
}

impl ClusterReader {
    pub(super) fn start(options: ReaderOptions) -> Self {
        let ReaderOptions { id, kubeconfig, source, sink, is_replacement, timeout, events, stop } = options;
        let state = State {
            not_synced: source.cluster.kinds().into_iter().collect(),
            held: is_replacement.then(BTreeMap::new),
            known: Keys::new(),
            previous: Keys::new(),
            served: BTreeSet::new(),
        };
        let sink = Arc::new(ReaderSink::new(id, state, sink, events.clone()));
        let client = source.client.clone();
        let (source_sink, stopped) = (sink.clone(), stop.clone());
        let end = EndGuard { id, stop: stop.clone(), events: events.clone() };
        let task = tokio::spawn(async move {
            let _end = end;
            let time_out = async {
                if !timeout.is_zero() {
                    tokio::time::sleep(timeout).await;
                    let _ = events.send(Event::TimedOut(id));
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = source.run(source_sink, stopped) => {}
                () = time_out => {}
            }
        });
        Self { id, kubeconfig, client, is_synced: false, is_timed_out: false, sink, stop, task }
    }

    /// The kinds that are not synced yet.
    pub(super) fn not_synced(&self) -> Vec<Kind> {
        self.sink.state().not_synced.iter().copied().collect()
    }

    /// Stops the reader, and returns the keys of the objects that it has committed.
    pub(super) async fn stop(self) -> Keys {
        self.stop.cancel();
        // Nothing is committed after the end of the task.
        let _ = self.task.await;
        let mut state = self.sink.state();
        if state.held.is_some() {
            return Keys::new();
        }
        let mut keys = std::mem::take(&mut state.known);
        keys.append(&mut state.previous);
        keys
    }

    /// Stops the reader, and deletes the objects that it has committed. The cluster serves no kind any more.
    pub(super) async fn stop_and_delete(self) {
        let sink = self.sink.clone();
        let changes = self.stop().await.into_iter().map(deletion).collect();
        let served = std::mem::take(&mut sink.state().served);
        tokio::task::block_in_place(|| {
            sink.inner.commit(changes);
            served.iter().for_each(|(cluster, kind)| sink.inner.served(cluster, *kind, false));
        });
    }

    /// Commits the held changes in place of the objects of the previous reader. Its objects of kinds that are not synced
    /// yet stay until these kinds are synced.
    pub(super) fn replace(&self, previous: Keys) {
        tokio::task::block_in_place(|| self.sink.replace(previous));
    }
}

/// Reports a reader that ends or panics before it is stopped.
struct EndGuard {
    id: u64,
    stop: CancellationToken,
    events: mpsc::UnboundedSender<Event>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            // Fails only at the end of the process.
            let _ = self.events.send(Event::Failed(self.id));
        }
    }
}

/// The sink of a reader. It passes changes on, or holds them while another reader of the cluster runs.
struct ReaderSink {
    id: u64,
    /// Is locked before the state, and during a commit, which may wait for a full lane.
    order: LaneOrder,
    /// Is never locked during a commit: asynchronous tasks lock it too.
    state: Mutex<State>,
    inner: Arc<dyn Sink>,
    events: mpsc::UnboundedSender<Event>,
}

struct State {
    /// Kinds that are not synced yet.
    not_synced: BTreeSet<Kind>,
    /// Changes that are not committed yet; `None` if changes are not held.
    held: Option<BTreeMap<(Kind, ObjectKey), Change>>,
    /// Existing objects.
    known: Keys,
    /// Objects of the previous reader that may no longer exist.
    previous: Keys,
    /// Kinds of CustomResourceDefinitions that the cluster serves, with its id.
    served: BTreeSet<(Text, Kind)>,
}

impl State {
    /// Records changes of objects. Returns those that are not held.
    fn record(&mut self, changes: Vec<Change>) -> Vec<Change> {
        for change in &changes {
            let key = (change.kind, change.key.clone());
            if change.object.is_some() {
                self.known.insert(key);
            } else {
                self.previous.remove(&key);
                self.known.remove(&key);
            }
        }
        let Some(held) = &mut self.held else { return changes };
        for change in changes {
            let key = (change.kind, change.key.clone());
            match change.object {
                Some(_) => held.insert(key, change),
                None => held.remove(&key),
            };
        }
        Vec::new()
    }

    /// Deletions of the previous reader's objects that do not exist, of synced kinds.
    fn take_deletions(&mut self) -> Vec<Change> {
        let (not_synced, synced): (Keys, Keys) =
            std::mem::take(&mut self.previous).into_iter().partition(|(kind, _)| self.not_synced.contains(kind));
        self.previous = not_synced;
        synced.into_iter().filter(|key| !self.known.contains(key)).map(deletion).collect()
    }
}

impl ReaderSink {
    fn new(id: u64, state: State, inner: Arc<dyn Sink>, events: mpsc::UnboundedSender<Event>) -> Self {
        Self { id, order: LaneOrder::default(), state: Mutex::new(state), inner, events }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, previous: Keys) {
        let _order = self.order.wait_for_all();
        let changes = {
            let mut state = self.state();
            state.previous = previous;
            let held = state.held.take().unwrap_or_default();
            let mut changes: Vec<Change> = held.into_values().collect();
            changes.extend(state.take_deletions());
            changes
        };
        self.inner.commit(changes);
    }
}

impl Sink for ReaderSink {
    fn commit(&self, changes: Vec<Change>) {
        let _order = self.order.wait(changes.iter().map(|change| change.kind));
        let changes = self.state().record(changes);
        if !changes.is_empty() {
            self.inner.commit(changes);
        }
    }

    fn synced(&self, _: &Text, kinds: &[Kind]) {
        // What is deleted is of these kinds: objects of kinds that were synced before have been deleted then.
        let _order = self.order.wait(kinds.iter().copied());
        let (deletions, is_last) = {
            let mut state = self.state();
            let was_synced = state.not_synced.is_empty();
            state.not_synced.retain(|kind| !kinds.contains(kind));
            let deletions = if state.held.is_none() { state.take_deletions() } else { Vec::new() };
            (deletions, !was_synced && state.not_synced.is_empty())
        };
        if !deletions.is_empty() {
            self.inner.commit(deletions);
        }
        if is_last {
            let _ = self.events.send(Event::Synced(self.id));
        }
    }

    fn served(&self, cluster: &Text, kind: Kind, is_served: bool) {
        let mut state = self.state();
        let served = (cluster.clone(), kind);
        match is_served {
            true => state.served.insert(served),
            false => state.served.remove(&served),
        };
        // The lock is held, so that reports stay in order. A report does not wait.
        self.inner.served(cluster, kind, is_served);
    }

    fn settle(&self, done: oneshot::Sender<()>) {
        self.inner.settle(done);
    }
}

fn deletion((kind, key): (Kind, ObjectKey)) -> Change {
    Change { kind, key, object: None, origin: ChangeOrigin { received: unix_time(), ..ChangeOrigin::default() } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full_lane::FullLane;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl Recorder {
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.0.lock().expect("no panic"))
        }
    }

    impl Sink for Recorder {
        fn commit(&self, changes: Vec<Change>) {
            let display =
                |change: &Change| format!("{}{}", if change.object.is_some() { "+" } else { "-" }, change.key.name);
            self.0.lock().expect("no panic").push(changes.iter().map(display).collect::<Vec<_>>().join(" "));
        }

        fn synced(&self, _: &Text, _: &[Kind]) {}

        fn served(&self, cluster: &Text, kind: Kind, is_served: bool) {
            self.0.lock().expect("no panic").push(format!("{cluster} {kind} {is_served}"));
        }
    }

    fn key(kind: Kind, name: &str) -> (Kind, ObjectKey) {
        (kind, ObjectKey::new("east", "shop", name))
    }

    fn set(kind: Kind, name: &str) -> Change {
        let (kind, key) = key(kind, name);
        let object = sluice_model::ParsedObject { kind, key: key.clone(), object: None, rejects: Vec::new() };
        Change { kind, key, object: Some(Box::new(object)), origin: ChangeOrigin::default() }
    }

    /// The sink of a replacement.
    fn holding_sink() -> (Arc<Recorder>, ReaderSink, mpsc::UnboundedReceiver<Event>) {
        let (sender, events) = mpsc::unbounded_channel();
        let recorder = Arc::new(Recorder::default());
        let state = State {
            not_synced: BTreeSet::from([Kind::Pod, Kind::Service]),
            held: Some(BTreeMap::new()),
            known: Keys::new(),
            previous: Keys::new(),
            served: BTreeSet::new(),
        };
        let sink = ReaderSink::new(7, state, recorder.clone(), sender);
        (recorder, sink, events)
    }

    #[test]
    fn endpoints_and_the_state_of_the_reader_do_not_wait_for_a_full_lane_of_configuration() {
        let (full, (_, sink, mut events)) = (Arc::new(FullLane::default()), holding_sink());
        let state = sink.state.into_inner().expect("no panic");
        let state = State { held: None, previous: Keys::from([key(Kind::Pod, "old")]), ..state };
        let sink = Arc::new(ReaderSink::new(7, state, full.clone(), sink.events));
        let commit = |change| {
            let sink = sink.clone();
            std::thread::spawn(move || sink.commit(vec![change]))
        };
        let first = commit(set(Kind::Service, "first"));
        full.delays_a_commit();
        let second = commit(deletion(key(Kind::Service, "first")));
        let (done, is_done) = std::sync::mpsc::channel();
        let others = std::thread::spawn({
            let sink = sink.clone();
            move || {
                sink.commit(vec![set(Kind::Pod, "new")]);
                sink.synced(&"east".into(), &[Kind::Pod]);
                sink.served(&"east".into(), Kind::ServiceExport, true);
                let not_synced: Vec<Kind> = sink.state().not_synced.iter().copied().collect();
                // The test may have given up.
                let _ = done.send(not_synced);
            }
        });
        let not_synced = is_done.recv_timeout(Duration::from_secs(20));
        let committed = full.take();
        full.open();
        for thread in [first, second, others] {
            thread.join().expect("no panic");
        }
        assert_eq!(not_synced, Ok(vec![Kind::Service]), "nothing waits for the lane");
        assert_eq!(committed, ["+new", "-old", "ServiceExport true"]);
        assert_eq!(full.take(), ["+first", "-first"], "changes of one lane stay in order");
        sink.synced(&"east".into(), &[Kind::Service]);
        assert_eq!(events.try_recv(), Ok(Event::Synced(7)));
    }

    #[test]
    fn held_changes_replace_the_previous_objects_in_one_commit() {
        let (recorder, sink, mut events) = holding_sink();
        sink.commit(vec![set(Kind::Pod, "kept"), set(Kind::Pod, "short")]);
        sink.commit(vec![deletion(key(Kind::Pod, "short"))]);
        sink.synced(&"east".into(), &[Kind::Pod]);
        assert!(events.try_recv().is_err(), "Services are not synced");
        sink.synced(&"east".into(), &[Kind::Service]);
        assert_eq!(events.try_recv(), Ok(Event::Synced(7)));
        assert_eq!(recorder.take(), Vec::<String>::new());
        sink.replace(Keys::from([key(Kind::Pod, "kept"), key(Kind::Service, "stale")]));
        assert_eq!(recorder.take(), ["+kept -stale"]);
        sink.commit(vec![set(Kind::Pod, "new")]);
        assert_eq!(recorder.take(), ["+new"]);
    }

    #[test]
    fn served_kinds_are_reported_even_while_changes_are_held() {
        let (recorder, sink, _) = holding_sink();
        sink.served(&"east".into(), Kind::ServiceExport, true);
        sink.served(&"east".into(), Kind::WorkloadEntry, true);
        sink.served(&"east".into(), Kind::WorkloadEntry, false);
        assert_eq!(recorder.take(), ["east ServiceExport true", "east WorkloadEntry true", "east WorkloadEntry false"]);
        assert_eq!(sink.state().served, BTreeSet::from([("east".into(), Kind::ServiceExport)]));
    }

    #[test]
    fn previous_objects_stay_until_their_kind_is_synced() {
        let (recorder, sink, mut events) = holding_sink();
        sink.commit(vec![set(Kind::Pod, "pod")]);
        sink.synced(&"east".into(), &[Kind::Pod]);
        sink.replace(Keys::from([key(Kind::Pod, "old"), key(Kind::Service, "old"), key(Kind::Service, "kept")]));
        assert_eq!(recorder.take(), ["+pod -old"]);
        sink.commit(vec![set(Kind::Service, "kept")]);
        assert_eq!(recorder.take(), ["+kept"]);
        assert!(events.try_recv().is_err());
        sink.synced(&"east".into(), &[Kind::Service]);
        assert_eq!(recorder.take(), ["-old"]);
        assert_eq!(events.try_recv(), Ok(Event::Synced(7)));
        sink.synced(&"east".into(), &[Kind::Service]);
        assert!(events.try_recv().is_err(), "a later list is not an event");
    }
}
