//! A source that reads an API server, and the changes that it commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_engine::Engine;
use sluice_graph::Handles;
use sluice_kube::KubeOptions;
use sluice_model::{Kind, ObjectKey, Text};
use sluice_parse::KINDS;
use sluice_sources::kube::{KubeSource, WatchStates};
use sluice_sources::{Change, Cluster, InputSink, MeshOverride, Originals, Sink, SourceMetrics};
use sluice_testkit::kube_api::KubeApi;
use tokio_util::sync::CancellationToken;

/// The changes that a source has committed.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Record>);

#[derive(Clone, Default)]
pub(crate) struct Record {
    /// Names of objects with the version they came with, by kind.
    pub(crate) objects: BTreeMap<Kind, BTreeMap<String, String>>,
    pub(crate) synced: BTreeSet<Kind>,
    pub(crate) deleted: Vec<String>,
}

impl Recorder {
    fn read(&self) -> Record {
        self.0.lock().expect("no test panics with the lock").clone()
    }

    /// Waits until the record meets a condition.
    pub(crate) async fn until(&self, what: &str, is_met: impl Fn(&Record) -> bool) -> Record {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let record = self.read();
            if is_met(&record) {
                return record;
            }
            assert!(Instant::now() < deadline, "{what}: {:?} synced {:?}", record.objects, record.synced);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn synced(&self) -> Record {
        self.until("everything is synced", |record| record.synced.len() == KINDS.len()).await
    }

    /// Waits until a namespace has objects of a kind with exactly these names.
    pub(crate) async fn has(&self, kind: Kind, namespace: &str, names: &[&str]) -> Record {
        let what = format!("{kind} of {namespace} are {names:?}");
        self.until(&what, |record| record.names_in(kind, namespace) == names).await
    }
}

impl Record {
    /// The names of the objects of a namespace.
    pub(crate) fn names_in(&self, kind: Kind, namespace: &str) -> Vec<&str> {
        let all = self.objects.get(&kind).into_iter().flat_map(BTreeMap::keys);
        all.filter_map(|name| name.split_once('/')).filter(|(of, _)| *of == namespace).map(|(_, name)| name).collect()
    }

    /// The names of deleted objects of a namespace, in the order of the deletions.
    pub(crate) fn deleted_in(&self, namespace: &str) -> Vec<&str> {
        let all = self.deleted.iter().filter_map(|name| name.split_once('/'));
        all.filter(|(of, _)| *of == namespace).map(|(_, name)| name).collect()
    }
}

impl Sink for Recorder {
    fn commit(&self, changes: Vec<Change>) {
        let mut record = self.0.lock().expect("no test panics with the lock");
        for change in changes {
            let name = format!("{}/{}", change.key.namespace, change.key.name);
            let objects = record.objects.entry(change.kind).or_default();
            if change.object.is_some() {
                objects.insert(name, change.origin.version.to_string());
            } else {
                objects.remove(&name);
                record.deleted.push(name);
            }
        }
    }

    fn synced(&self, _: &Text, kinds: &[Kind]) {
        self.0.lock().expect("no test panics with the lock").synced.extend(kinds);
    }
}

/// A source of a server, running.
pub(crate) struct RunningSource<S> {
    pub(crate) server: S,
    pub(crate) sink: Arc<Recorder>,
    pub(crate) states: WatchStates,
    stop: CancellationToken,
}

impl RunningSource<KubeApi> {
    pub(crate) async fn start(api: KubeApi) -> Self {
        let client = super::client(&api).await;
        Self::run(api, client, options())
    }
}

impl<S> RunningSource<S> {
    pub(crate) fn run(server: S, client: kube::Client, options: KubeOptions) -> Self {
        Self::of(server, source(client, options))
    }

    pub(crate) fn of(server: S, source: KubeSource) -> Self {
        let (sink, stop) = (Arc::new(Recorder::default()), CancellationToken::new());
        let states = source.states.clone();
        tokio::spawn(source.run(sink.clone(), stop.clone()));
        Self { server, sink, states, stop }
    }
}

impl<S> Drop for RunningSource<S> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn cluster() -> Cluster {
    cluster_named("c")
}

pub(crate) fn cluster_named(id: &str) -> Cluster {
    Cluster {
        id: id.into(),
        domain: "cluster.local".into(),
        is_remote: false,
        reads_remote_gateways: true,
        ignored: BTreeSet::new(),
        revision: "".into(),
        multi_cluster_api: sluice_model::MultiClusterApi::default(),
    }
}

/// Starts the thread that writes the changes of a cluster's objects into the inputs. The mesh config is in ConfigMap `istio` of the
/// namespace `system`.
pub(crate) fn start_sink(engine: &Engine, handles: &Handles, cluster: &Cluster, system: &str) -> InputSink {
    let kinds = BTreeMap::from([(cluster.id.clone(), cluster.kinds())]);
    let mesh = MeshOverride::new(ObjectKey::new(cluster.id.clone(), system, "istio"), None);
    let (originals, metrics) = (Originals::default(), SourceMetrics::default());
    let sink = InputSink::start(engine.clone(), handles.inputs.clone(), kinds, mesh, originals, metrics);
    sink.expect("the thread of the sources")
}

pub(crate) fn source(client: kube::Client, options: KubeOptions) -> KubeSource {
    KubeSource {
        client,
        cluster: cluster(),
        system_namespace: "istio-system".into(),
        namespace: None,
        options,
        states: WatchStates::default(),
    }
}

/// Small pages and short waits after failures.
pub(crate) fn options() -> KubeOptions {
    KubeOptions {
        page_size: 2,
        watch_timeout: Duration::from_secs(60),
        list_silence: Duration::from_secs(20),
        first_retry: Duration::from_millis(5),
        max_retry: Duration::from_millis(50),
        ..KubeOptions::default()
    }
}

pub(crate) fn service(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
           "spec": {"ports": [{"port": 80}]}})
}

pub(crate) fn virtual_service(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
           "metadata": {"name": name, "namespace": namespace},
           "spec": {"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}}]}]}})
}
