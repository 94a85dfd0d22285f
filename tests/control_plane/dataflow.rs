//! The section "A change of a VirtualService, step by step" of `ARCHITECTURE.md`: a directory on disk, the
//! engine with the whole graph, the store, and a session.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_auth::Caller;
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, build};
use sluice_model::{Kind, Object, ObjectKey, ResourceType, Text};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_sources::files::FileSource;
use sluice_sources::{Change, InputSink, Reporter, Sink};
use sluice_testkit::wait::until;
use sluice_xds::{AdsStream, DiscoveryServer, EngineProxies, Metrics, OptionalProxies, Outputs, follow};
use sluice_xds_protocol::{HeldList, Interest, NameList, Request, Response, Store, XdsProtocol};

use crate::kube_suite::source::{cluster_named, start_sink};

fn sample(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "manifests/demo", name].iter().collect()
}

/// Records the changes of a source, and forwards them.
struct Recorder {
    inner: InputSink,
    recorded: Mutex<Vec<Change>>,
}

impl Sink for Recorder {
    fn commit(&self, changes: Vec<Change>) {
        self.recorded.lock().expect("recorder").extend(changes.clone());
        self.inner.commit(changes);
    }

    fn synced(&self, cluster: &Text, kinds: &[Kind]) {
        self.inner.synced(cluster, kinds);
    }
}

fn request(stream: &mut AdsStream, kind: ResourceType, names: &[&str], node: Option<Node>, nonce: &str) {
    let subscribe = names.iter().collect();
    let request = Request {
        node,
        type_url: kind.type_url().to_owned(),
        nonce: nonce.to_owned(),
        error: None,
        interest: Interest::Change { subscribe, unsubscribe: NameList::default(), holds: HeldList::default() },
    };
    stream.request(request, Instant::now()).expect("the request is accepted");
}

fn names(response: &Response) -> Vec<String> {
    response.versions().into_iter().map(|(name, _)| name.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_virtual_service_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    for file in ["services.yaml", "kettle-versions.yaml", "kettle-routes.yaml"] {
        std::fs::copy(sample(file), directory.path().join(file)).expect("copy a sample");
    }
    let options = GraphOptions::default();
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
    let cluster = cluster_named("Kubernetes");
    let inner = start_sink(&engine, &handles, &cluster, "istio-system");
    let sink = Arc::new(Recorder { inner, recorded: Mutex::default() });
    let mut source = FileSource::open(cluster, directory.path(), Reporter::default()).expect("the directory");
    source.load(&*sink, true).expect("the samples are valid");
    let _following = source.follow(sink.clone()).expect("the directory is followed");
    until("everything is synced", || engine.wait_synced(Duration::ZERO).then_some(())).await;

    let store = Arc::new(Store::default());
    let (profiled, published) = (engine.clone(), handles.clone());
    let proxies = Arc::new(EngineProxies::new(
        handles.inputs.proxies.clone(),
        handles.inputs.secret_clients.clone(),
        BTreeMap::new(),
        OptionalProxies::default(),
        move |proxy| published.client_profile(&profiled.snapshot(), proxy),
    ));
    let server = DiscoveryServer::new(store.clone(), proxies, Metrics::default(), true);
    let outputs = Outputs {
        resources: handles.resources.clone(),
        segments: handles.segments.clone(),
        scopes: handles.scopes.clone(),
    };
    let (followed, target) = (engine.clone(), store.clone());
    tokio::spawn(async move {
        follow(&followed, &outputs, target, &Metrics::default(), tokio::sync::oneshot::channel().0).await
    });
    until("the store is ready", || store.is_ready().then_some(())).await;

    // A sidecar of the shop holds the route table of a port, and has no pending changes.
    let node = Node { id: "sidecar~10.0.0.9~counter.teashop~teashop.svc.cluster.local".into(), ..Node::default() };
    let mut stream = server.open(XdsProtocol::Delta, Caller::default()).expect("the store is ready");
    request(&mut stream, ResourceType::Route, &["80"], Some(node), "");
    let first = until("the first answer", || stream.poll(Instant::now())).await;
    assert_eq!(names(&first), ["80"]);
    request(&mut stream, ResourceType::Route, &[], None, &first.nonce);
    engine.flush();
    assert!(stream.poll(Instant::now()).is_none());
    sink.recorded.lock().expect("recorder").clear();
    let mut feed = engine.feed();
    feed.try_next();
    let before = engine.snapshot().epoch();

    // The edit.
    std::fs::copy(sample("../demo-edits/kettle-canary.yaml"), directory.path().join("staged")).expect("stage");
    std::fs::rename(directory.path().join("staged"), directory.path().join("kettle-routes.yaml")).expect("rename");

    // 1. A source sees it: one change of one object.
    let change = until("the source sees the edit", || sink.recorded.lock().expect("recorder").first().cloned()).await;
    let key = ObjectKey::new("Kubernetes", "teashop", "kettle-routes");
    assert_eq!((change.kind, &change.key), (Kind::VirtualService, &key));
    assert!(change.origin.place.contains("kettle-routes.yaml"), "{:?}", change.origin);

    // 2. It is parsed: a value and no rejects.
    let parsed = change.object.expect("the object is not deleted");
    assert!(parsed.rejects.is_empty(), "{:?}", parsed.rejects);
    assert!(matches!(parsed.object, Some(Object::VirtualService(_))));

    // 3. and 4. Its input is written and one epoch runs.
    let batch = until("an epoch", || feed.try_next()).await;
    assert_eq!(batch.epoch().0, before.0 + 1);
    let event: Vec<_> = batch.events(&handles.virtual_services).map(|event| (*event.key).clone()).collect();
    assert_eq!(event, [key]);

    // 5. to 7. One virtual host is bound, built and published, in the views of all namespaces and of its own namespace.
    // No cluster, endpoint, listener or other virtual host changes.
    let mut changed = Vec::new();
    for segments in &handles.segments {
        for event in batch.events(segments) {
            let layer = event.key.layer.to_string();
            let view = layer.split('[').next().unwrap_or_default().to_owned();
            changed.push(format!("{view} {} {}", event.key.name, event.key.segment));
        }
    }
    changed.sort();
    changed.dedup();
    assert_eq!(
        changed,
        ["base 80 kettle.teashop.svc.cluster.local:80", "namespace:teashop 80 kettle.teashop.svc.cluster.local:80",]
    );
    for resources in &handles.resources {
        let touched: Vec<_> = batch.events(resources).map(|event| event.key).collect();
        assert!(touched.is_empty(), "{touched:?}");
    }

    // 8. The session is woken and sends that route table.
    let answer = until("the session answers", || stream.poll(Instant::now())).await;
    assert_eq!(names(&answer), ["80"]);
    assert_ne!(answer.versions(), first.versions());
    request(&mut stream, ResourceType::Route, &[], None, &answer.nonce);
    assert!(stream.poll(Instant::now()).is_none());

    // An edit that changes nothing sends nothing.
    let text = std::fs::read_to_string(sample("../demo-edits/kettle-canary.yaml")).expect("read");
    std::fs::write(directory.path().join("kettle-routes.yaml"), format!("# a comment\n{text}")).expect("write");
    // A namespace that is written afterwards shows that the source has read the edit.
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: written-afterwards}\n";
    std::fs::write(directory.path().join("written-afterwards.yaml"), namespace).expect("write");
    let is_read = || {
        let recorded = sink.recorded.lock().expect("recorder");
        recorded.iter().any(|change| &*change.key.name == "written-afterwards").then_some(())
    };
    until("the source reads the namespace", is_read).await;
    engine.flush();
    assert!(stream.poll(Instant::now()).is_none());
}
