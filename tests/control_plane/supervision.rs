//! Sources whose receiver of changes panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sluice_model::{Kind, Text};
use sluice_sources::files::FileSource;
use sluice_sources::kube::{KubeSource, WatchStates};
use sluice_sources::{Change, Reporter, Sink};
use sluice_tasks::Tasks;
use sluice_testkit::api_server::ApiServer;
use tokio_util::sync::CancellationToken;

use crate::kube::{Recorder, client_of, cluster, options};

/// Panics instead of the next commits with this kind.
struct PanickingSink {
    inner: Arc<Recorder>,
    kind: Kind,
    panics: AtomicUsize,
}

impl PanickingSink {
    fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self { inner: Arc::default(), kind, panics: AtomicUsize::new(0) })
    }

    fn panic_next(&self) {
        self.panics.fetch_add(1, Ordering::SeqCst);
    }

    fn is_due(&self, changes: &[Change]) -> bool {
        let take = |panics: usize| panics.checked_sub(1);
        changes.iter().any(|change| change.kind == self.kind)
            && self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }
}

impl Sink for PanickingSink {
    fn commit(&self, changes: Vec<Change>) {
        assert!(!self.is_due(&changes), "injected by the test");
        self.inner.commit(changes);
    }

    fn synced(&self, cluster: &Text, kinds: &[Kind]) {
        Sink::synced(&*self.inner, cluster, kinds);
    }
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_whose_receiver_panics_lists_again_and_misses_no_change() {
    let server = ApiServer::start().await.expect("a server");
    server.apply(service("kettle"));
    let sink = PanickingSink::new(Kind::Service);
    // The first page of the list.
    sink.panic_next();
    let source = KubeSource {
        client: client_of(server.address()),
        cluster: cluster(),
        system_namespace: "istio-system".into(),
        namespace: None,
        options: options(),
        states: WatchStates::default(),
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(source.run(sink.clone(), stop.clone()));
    sink.inner.synced().await;
    let services = async |expected: &[&str]| {
        sink.inner.until("the services", |record| record.names(Kind::Service) == expected).await;
    };
    services(&["shop/kettle"]).await;
    // An event of the watch.
    sink.panic_next();
    server.apply(service("teapot"));
    services(&["shop/kettle", "shop/teapot"]).await;
    // A deletion.
    sink.panic_next();
    server.delete("services", "shop", "kettle");
    services(&["shop/teapot"]).await;
    assert_eq!(sink.panics.load(Ordering::SeqCst), 0, "each panic has occurred");
    stop.cancel();
    running.await.expect("the source ends without a panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn thread_of_a_directory_whose_receiver_panics_ends_the_process_with_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let sink = PanickingSink::new(Kind::Service);
    let mut files = FileSource::open(cluster(), directory.path(), Reporter::default()).expect("readable");
    files.load(&*sink, false).expect("valid");
    let mut guard = files.follow(sink.clone()).expect("a thread");
    let mut tasks = Tasks::new(CancellationToken::new());
    tasks.watch_thread(guard.end().expect("the first call"));
    sink.panic_next();
    std::fs::write(directory.path().join("service.yaml"), service("kettle").to_string()).expect("written");
    let failure = tasks.wait_for(std::future::pending::<()>()).await.expect_err("the thread has ended");
    assert_eq!(failure.to_string(), "task files-c: panicked: injected by the test");
}
