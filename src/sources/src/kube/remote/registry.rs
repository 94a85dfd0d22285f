//! The objects of one cluster as one kubeconfig leads to them.

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
use crate::{Change, ChangeOrigin, Sink};

/// What is told of a registry, by its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Event {
    /// Everything has been read once.
    Synced(u64),
    /// That has not come in time.
    Late(u64),
}

type Keys = BTreeSet<(Kind, ObjectKey)>;

/// A registry, reading.
pub(super) struct Registry {
    pub(super) number: u64,
    pub(super) kubeconfig: Redacted,
    pub(super) client: Client,
    pub(super) is_synced: bool,
    pub(super) is_late: bool,
    writer: Arc<Writer>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// How a registry is started.
pub(super) struct Start {
    pub(super) number: u64,
    pub(super) kubeconfig: Redacted,
    /// What it reads objects from.
    pub(super) source: KubeSource,
    /// Where they go.
    pub(super) sink: Arc<dyn Sink>,
    /// Another registry of the cluster is there: hold them back until it is replaced.
    pub(super) holds: bool,
    /// How long reading may take until that is told; zero is for ever.
    pub(super) timeout: Duration,
    pub(super) tell: mpsc::UnboundedSender<Event>,
    /// Ends it.
    pub(super) stop: CancellationToken,
}

impl Registry {
    pub(super) fn start(start: Start) -> Self {
        let Start { number, kubeconfig, source, sink, holds, timeout, tell, stop } = start;
        let state = State {
            waiting: source.cluster.kinds().into_iter().collect(),
            held: holds.then(BTreeMap::new),
            known: Keys::new(),
            before: Keys::new(),
        };
        let writer = Arc::new(Writer { number, state: Mutex::new(state), sink, tell: tell.clone() });
        let client = source.client.clone();
        let (to, stopped) = (writer.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let late = async {
                if !timeout.is_zero() {
                    tokio::time::sleep(timeout).await;
                    let _ = tell.send(Event::Late(number));
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = source.run(to, stopped) => {}
                () = late => {}
            }
        });
        Self { number, kubeconfig, client, is_synced: false, is_late: false, writer, stop, task }
    }

    /// The kinds of which not everything has been read yet.
    pub(super) fn waiting(&self) -> Vec<Kind> {
        self.writer.state().waiting.iter().copied().collect()
    }

    /// Ends reading; gives the objects that are there by it.
    pub(super) async fn stop(self) -> Keys {
        self.stop.cancel();
        // Nothing is written any more once the task has ended.
        let _ = self.task.await;
        let mut state = self.writer.state();
        if state.held.is_some() {
            return Keys::new();
        }
        let mut keys = std::mem::take(&mut state.known);
        keys.append(&mut state.before);
        keys
    }

    /// Ends reading; nothing that was read is there any longer.
    pub(super) async fn retract(self) {
        let sink = self.writer.sink.clone();
        let changes = self.stop().await.into_iter().map(gone).collect();
        tokio::task::block_in_place(|| sink.commit(changes));
    }

    /// Lets through what was held back, in place of the objects that another registry has left. Of kinds that have not
    /// been read yet, those stay until they are.
    pub(super) fn replace(&self, before: Keys) {
        tokio::task::block_in_place(|| self.writer.replace(before));
    }
}

/// What a registry's objects go through.
struct Writer {
    number: u64,
    state: Mutex<State>,
    sink: Arc<dyn Sink>,
    tell: mpsc::UnboundedSender<Event>,
}

struct State {
    /// Kinds of which not everything has been read yet.
    waiting: BTreeSet<Kind>,
    /// What is not let through yet, if anything is held back.
    held: Option<BTreeMap<(Kind, ObjectKey), Change>>,
    /// The objects there are.
    known: Keys,
    /// Objects of the registry before that may be gone.
    before: Keys,
}

impl State {
    /// Takes what the registry before has left and is there no longer, of kinds that have been read.
    fn stale(&mut self) -> Vec<Change> {
        let (stay, read): (Keys, Keys) =
            std::mem::take(&mut self.before).into_iter().partition(|(kind, _)| self.waiting.contains(kind));
        self.before = stay;
        read.into_iter().filter(|key| !self.known.contains(key)).map(gone).collect()
    }
}

impl Writer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, before: Keys) {
        let mut state = self.state();
        state.before = before;
        let held = state.held.take().unwrap_or_default();
        let mut changes: Vec<Change> = held.into_values().collect();
        changes.extend(state.stale());
        self.sink.commit(changes);
    }
}

impl Sink for Writer {
    fn commit(&self, changes: Vec<Change>) {
        let mut state = self.state();
        for change in &changes {
            let key = (change.kind, change.key.clone());
            if change.object.is_some() {
                state.known.insert(key);
            } else {
                state.before.remove(&key);
                state.known.remove(&key);
            }
        }
        let Some(held) = &mut state.held else {
            // Others wait: what is let through keeps its order.
            self.sink.commit(changes);
            return;
        };
        for change in changes {
            let key = (change.kind, change.key.clone());
            match change.object {
                Some(_) => held.insert(key, change),
                None => held.remove(&key),
            };
        }
    }

    fn synced(&self, _: &Text, kinds: &[Kind]) {
        let mut state = self.state();
        let was_waiting = !state.waiting.is_empty();
        state.waiting.retain(|kind| !kinds.contains(kind));
        if state.held.is_none() && !state.before.is_empty() {
            let stale = state.stale();
            self.sink.commit(stale);
        }
        if was_waiting && state.waiting.is_empty() {
            let _ = self.tell.send(Event::Synced(self.number));
        }
    }

    fn settle(&self, done: oneshot::Sender<()>) {
        self.sink.settle(done);
    }
}

fn gone((kind, key): (Kind, ObjectKey)) -> Change {
    Change { kind, key, object: None, origin: ChangeOrigin { received: unix_time(), ..ChangeOrigin::default() } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl Recorder {
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.0.lock().expect("no panic"))
        }
    }

    impl Sink for Recorder {
        fn commit(&self, changes: Vec<Change>) {
            let shown =
                |change: &Change| format!("{}{}", if change.object.is_some() { "+" } else { "-" }, change.key.name);
            self.0.lock().expect("no panic").push(changes.iter().map(shown).collect::<Vec<_>>().join(" "));
        }

        fn synced(&self, _: &Text, _: &[Kind]) {}
    }

    fn key(kind: Kind, name: &str) -> (Kind, ObjectKey) {
        (kind, ObjectKey::new("east", "shop", name))
    }

    fn set(kind: Kind, name: &str) -> Change {
        let (kind, key) = key(kind, name);
        let object = sluice_model::ParsedObject { kind, key: key.clone(), object: None, rejects: Vec::new() };
        Change { kind, key, object: Some(Box::new(object)), origin: ChangeOrigin::default() }
    }

    fn writer(holds: bool) -> (Arc<Recorder>, Writer, mpsc::UnboundedReceiver<Event>) {
        let (tell, told) = mpsc::unbounded_channel();
        let sink = Arc::new(Recorder::default());
        let state = State {
            waiting: BTreeSet::from([Kind::Pod, Kind::Service]),
            held: holds.then(BTreeMap::new),
            known: Keys::new(),
            before: Keys::new(),
        };
        (sink.clone(), Writer { number: 7, state: Mutex::new(state), sink, tell }, told)
    }

    #[test]
    fn what_is_held_back_replaces_what_was_there_at_once() {
        let (sink, writer, mut told) = writer(true);
        writer.commit(vec![set(Kind::Pod, "kept"), set(Kind::Pod, "short")]);
        writer.commit(vec![gone(key(Kind::Pod, "short"))]);
        writer.synced(&"east".into(), &[Kind::Pod]);
        assert!(told.try_recv().is_err(), "Services are missing");
        writer.synced(&"east".into(), &[Kind::Service]);
        assert_eq!(told.try_recv(), Ok(Event::Synced(7)));
        assert_eq!(sink.take(), Vec::<String>::new());
        writer.replace(Keys::from([key(Kind::Pod, "kept"), key(Kind::Service, "stale")]));
        assert_eq!(sink.take(), ["+kept -stale"]);
        writer.commit(vec![set(Kind::Pod, "new")]);
        assert_eq!(sink.take(), ["+new"]);
    }

    #[test]
    fn of_kinds_that_are_not_read_nothing_is_lost() {
        let (sink, writer, mut told) = writer(true);
        writer.commit(vec![set(Kind::Pod, "pod")]);
        writer.synced(&"east".into(), &[Kind::Pod]);
        writer.replace(Keys::from([key(Kind::Pod, "old"), key(Kind::Service, "old"), key(Kind::Service, "kept")]));
        assert_eq!(sink.take(), ["+pod -old"]);
        writer.commit(vec![set(Kind::Service, "kept")]);
        assert_eq!(sink.take(), ["+kept"]);
        assert!(told.try_recv().is_err());
        writer.synced(&"east".into(), &[Kind::Service]);
        assert_eq!(sink.take(), ["-old"]);
        assert_eq!(told.try_recv(), Ok(Event::Synced(7)));
        writer.synced(&"east".into(), &[Kind::Service]);
        assert!(told.try_recv().is_err(), "a later list is no news");
    }
}
