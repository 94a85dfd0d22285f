//! The Kubernetes source against an API server over real HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};
use sluice_auth::{Authenticator, Call, ReviewedTokens, TrustDomain, Verdict};
use sluice_authority::{
    AuthorityConfig, AuthorityKeeper, AuthorityMetrics, BundleWriter, KubernetesSigner, SignerConfig, TrustBundle,
    TrustBundleWriter, WebhookConfigurationWriter, WebhookKind,
};
use sluice_engine::{Engine, EngineOptions, Published};
use sluice_graph::{AddressPools, GraphOptions, Inputs, build};
use sluice_kube::{Election, KubeOptions, Lock, ROOTS_LOCK};
use sluice_model::{Kind, Namespace, ObjectKey, SecretReader, Text};
use sluice_parse::{KINDS, kind_info};
use sluice_sources::kube::{KubeSource, PartWriter, SecretReviewer, WatchStates};
use sluice_sources::{Change, Cluster, InputSink, MeshOverride, Sink, SourceMetrics};
use sluice_testkit::api_server::{self, ApiServer, Right};
use sluice_testkit::wait::until;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::kube_writes;

/// The changes that a source has committed.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Record>);

#[derive(Clone, Default)]
pub(crate) struct Record {
    /// Names of objects with the version they came with, by kind.
    objects: BTreeMap<Kind, BTreeMap<String, String>>,
    synced: BTreeSet<Kind>,
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
}

impl Record {
    pub(crate) fn is_synced(&self, kind: Kind) -> bool {
        self.synced.contains(&kind)
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<&str> {
        self.objects.get(&kind).into_iter().flat_map(BTreeMap::keys).map(String::as_str).collect()
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
pub(crate) struct RunningSource {
    pub(crate) server: ApiServer,
    pub(crate) sink: Arc<Recorder>,
    pub(crate) states: WatchStates,
    stop: CancellationToken,
}

pub(crate) fn cluster() -> Cluster {
    Cluster {
        id: "c".into(),
        domain: "cluster.local".into(),
        is_remote: false,
        ignored: BTreeSet::new(),
        revision: "".into(),
    }
}

fn source(server: &ApiServer) -> KubeSource {
    KubeSource {
        client: client_of(server.address()),
        cluster: cluster(),
        system_namespace: "istio-system".into(),
        namespace: None,
        options: options(),
        states: WatchStates::default(),
    }
}

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

impl RunningSource {
    pub(crate) async fn start(server: ApiServer) -> Self {
        Self::start_with(server, options()).await
    }

    pub(crate) async fn start_with(server: ApiServer, options: KubeOptions) -> Self {
        let source = KubeSource { options, ..source(&server) };
        Self::run(server, source)
    }

    /// Reads the server through the proxy at an address, as the control plane does.
    pub(crate) fn start_behind(server: ApiServer, proxy: SocketAddr) -> Self {
        let client = client_of(proxy);
        let source = KubeSource { client, options: KubeOptions::default(), ..source(&server) };
        Self::run(server, source)
    }

    fn run(server: ApiServer, source: KubeSource) -> Self {
        let (sink, stop) = (Arc::new(Recorder::default()), CancellationToken::new());
        let states = source.states.clone();
        tokio::spawn(source.run(sink.clone(), stop.clone()));
        Self { server, sink, states, stop }
    }
}

/// The client of the control plane, for the API server at an address.
pub(crate) fn client_of(address: SocketAddr) -> kube::Client {
    let uri = format!("http://{address}").parse().expect("a URI");
    sluice_kube::client(kube::Config::new(uri)).expect("a client")
}

impl Drop for RunningSource {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "n"},
           "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}})
}

pub(crate) fn virtual_services() -> api_server::ResourceKind {
    api_server::ResourceKind {
        group: "networking.istio.io",
        versions: vec!["v1beta1", "v1"],
        name: "VirtualService",
        plural: "virtualservices",
    }
}

pub(crate) fn virtual_service(name: &str) -> Value {
    json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
           "metadata": {"name": name, "namespace": "n"},
           "spec": {"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}}]}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_read_in_pages_and_then_watched() {
    let server = ApiServer::start().await.expect("a server");
    for name in ["a", "b", "c", "d", "e"] {
        server.apply(service(name));
    }
    let running = RunningSource::start(server).await;
    let record = running.sink.synced().await;
    assert_eq!(record.names(Kind::Service), ["n/a", "n/b", "n/c", "n/d", "n/e"]);
    assert_eq!(running.server.count("list", "services"), 3, "two objects a page");

    let version = running.server.apply(service("f"));
    running.server.delete("services", "n", "a");
    let record = running.sink.until("f is added and a is deleted", |record| {
        record.names(Kind::Service).len() == 5 && !record.deleted.is_empty()
    });
    let record = record.await;
    assert_eq!(record.objects[&Kind::Service]["n/f"], version.to_string());
    assert_eq!(record.deleted, ["n/a"]);
    assert_eq!(running.server.count("list", "services"), 3, "a watch does not list again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_continues_at_its_resource_version() {
    let server = ApiServer::start().await.expect("a server");
    server.apply(service("a"));
    let running = RunningSource::start(server).await;
    running.sink.synced().await;
    let lists = running.server.count("list", "services");
    for round in 0..5 {
        let watches = running.server.count("watch", "services");
        running.server.disconnect();
        running.sink.until("it watches again", |_| running.server.count("watch", "services") > watches).await;
        running.server.apply(service(&format!("new-{round}")));
        running
            .sink
            .until("the change arrives after a disconnect", |record| record.names(Kind::Service).len() == 2 + round)
            .await;
    }
    assert_eq!(running.server.count("list", "services"), lists, "no event was missed, so nothing is listed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_expired_lists_again_and_reports_the_difference() {
    let server = ApiServer::start().await.expect("a server");
    for name in ["a", "b", "c"] {
        server.apply(service(name));
    }
    let running = RunningSource::start(server).await;
    running.sink.synced().await;
    let lists = running.server.count("list", "services");
    // These changes are made before a watch can report them.
    running.server.delete("services", "n", "b");
    running.server.apply(service("d"));
    running.server.compact();
    running.server.disconnect();
    let record =
        running.sink.until("the difference is found", |record| record.names(Kind::Service) == ["n/a", "n/c", "n/d"]);
    assert_eq!(record.await.deleted, ["n/b"]);
    running.server.apply(service("e"));
    running.sink.until("the watch continues", |record| record.names(Kind::Service).len() == 4).await;
    // The watch either saw the events, or expired and listed again. Both are correct; endless listing is not.
    assert!(running.server.count("list", "services") <= lists + 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn bookmarks_avoid_lists() {
    let server = ApiServer::start().await.expect("a server");
    server.apply(service("a"));
    let running = RunningSource::start(server).await;
    running.sink.synced().await;
    let lists = running.server.count("list", "services");
    // Changes of other kinds raise the resource version; bookmarks report it to watches of services.
    for name in ["x", "y", "z"] {
        running.server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    running.sink.until("the namespaces are read", |record| record.names(Kind::Namespace).len() == 3).await;
    let version = running.server.version();
    until("a bookmark is sent", || (running.server.bookmarked("services") >= version).then_some(())).await;
    running.server.compact();
    running.server.disconnect();
    running.server.apply(service("b"));
    running.sink.until("the change arrives", |record| record.names(Kind::Service).len() == 2).await;
    assert_eq!(running.server.count("list", "services"), lists, "the bookmark was new enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_follow_their_custom_resource_definition() {
    let running = RunningSource::start(ApiServer::start().await.expect("a server")).await;
    running.sink.synced().await;
    assert_eq!(running.server.count("list", "virtualservices"), 0, "a kind that is not defined is not listed");
    running.server.define(virtual_services(), true);
    running.server.apply(virtual_service("v"));
    running.sink.until("the kind is followed", |record| record.names(Kind::VirtualService) == ["n/v"]).await;
    running.server.apply(virtual_service("w"));
    running.sink.until("and watched", |record| record.names(Kind::VirtualService).len() == 2).await;
    running.server.define(virtual_services(), false);
    running.server.disconnect();
    running
        .sink
        .until("its objects are removed with the definition", |record| record.names(Kind::VirtualService).is_empty())
        .await;
    running.server.define(virtual_services(), true);
    running.server.apply(virtual_service("v"));
    running.sink.until("the kind is defined again", |record| record.names(Kind::VirtualService) == ["n/v"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_kind_delays_only_itself() {
    let server = ApiServer::start().await.expect("a server");
    server.apply(service("a"));
    server.forbid("pods", true);
    let running = RunningSource::start(server).await;
    let record = running.sink.until("the others are synced", |record| record.synced.len() == KINDS.len() - 1).await;
    assert!(!record.synced.contains(&Kind::Pod));
    assert_eq!(record.names(Kind::Service), ["n/a"]);
    running.server.forbid("pods", false);
    running.sink.synced().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_expired_lists_are_read_completely() {
    let server = ApiServer::start().await.expect("a server");
    for name in ["a", "b", "c", "d", "e"] {
        server.apply(service(name));
    }
    server.slow_lists(Duration::from_millis(150));
    let running = RunningSource::start(server).await;
    until("the second page is requested", || (running.server.count("list", "services") >= 2).then_some(())).await;
    // The continue token of the first page expires.
    running.server.compact();
    running.server.slow_lists(Duration::ZERO);
    let record = running.sink.synced().await;
    assert_eq!(record.names(Kind::Service).len(), 5);
    assert!(record.deleted.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_pods_are_not_listed() {
    let server = ApiServer::start().await.expect("a server");
    let pod = |name: &str, phase: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n"},
               "spec": {"containers": []}, "status": {"phase": phase, "podIP": "10.0.0.2"}})
    };
    server.apply(pod("good", "Running"));
    server.apply(pod("bad", "Failed"));
    let running = RunningSource::start(server).await;
    let record = running.sink.synced().await;
    assert_eq!(record.names(Kind::Pod), ["n/good"]);
    running.server.apply(pod("good", "Failed"));
    running.sink.until("the failed pod is removed", |record| record.names(Kind::Pod).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_without_effect_are_reported_and_delay_nothing() {
    let Some(info) = KINDS.iter().find(|info| info.parse.is_none() && info.warn_unsupported && info.is_custom()) else {
        return;
    };
    let server = ApiServer::start().await.expect("a server");
    server.forbid(info.plural, true);
    let (group, versions) = (info.group, info.versions.to_vec());
    server.define(api_server::ResourceKind { group, versions, name: info.name, plural: info.plural }, true);
    server.apply(json!({"apiVersion": info.api_version(), "kind": info.name,
                        "metadata": {"name": "a", "namespace": "n"}, "spec": {}}));
    let running = RunningSource::start(server).await;
    running.sink.synced().await;
    running.server.forbid(info.plural, false);
    running.sink.until("the object is reported", |record| record.names(info.kind) == ["n/a"]).await;
}

fn define(server: &ApiServer, kind: Kind) {
    let info = kind_info(kind).expect("in the table");
    let (group, versions) = (info.group, info.versions.to_vec());
    server.define(api_server::ResourceKind { group, versions, name: info.name, plural: info.plural }, true);
}

/// Runs a mesh that reads a server and writes allocated addresses to it, until the returned token is cancelled.
fn allocate(server: &ApiServer) -> CancellationToken {
    let options =
        GraphOptions { cluster: "c".into(), address_pools: Some(AddressPools::default()), ..GraphOptions::default() };
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
    let kinds = BTreeMap::from([(cluster().id, cluster().kinds())]);
    let mesh = MeshOverride::new(ObjectKey::new("c", "istio-system", "istio"), None);
    let sink = InputSink::start(engine.clone(), handles.inputs.clone(), kinds, mesh, SourceMetrics::default());
    let stop = CancellationToken::new();
    tokio::spawn(source(server).run(Arc::new(sink.expect("a thread")), stop.clone()));
    let writer = PartWriter::new(server.client().expect("a client"), engine.feed(), handles.address_updates.clone());
    tokio::spawn(writer.run(stop.clone()));
    stop
}

fn service_entry(name: &str, labels: Value, status: Option<Value>) -> Value {
    let mut object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"name": name, "namespace": "n", "labels": labels},
        "spec": {"hosts": [format!("{name}.example")], "resolution": "DNS",
                 "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]},
    });
    if let Some(status) = status {
        object["status"] = status;
    }
    object
}

/// Waits until `status.addresses` of a ServiceEntry has that many addresses, and returns them.
async fn written(server: &ApiServer, name: &str, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let object = server.get("networking.istio.io", "serviceentries", "n", name).expect("it is there");
        let addresses = object["status"]["addresses"].as_array().cloned();
        if let Some(addresses) = addresses.filter(|addresses| addresses.len() == count) {
            return addresses;
        }
        assert!(Instant::now() < deadline, "{object}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allocated_addresses_are_written_to_statuses() {
    let server = ApiServer::start().await.expect("a server");
    define(&server, Kind::ServiceEntry);
    server.apply(service_entry("fresh", json!({}), None));
    server.apply(service_entry("reported", json!({}), Some(json!({"conditions": []}))));
    server.apply(service_entry("emptied", json!({}), Some(json!({"addresses": []}))));
    let own = json!([{"host": "settled.example", "value": "240.240.7.7"}]);
    server.apply(service_entry("settled", json!({}), Some(json!({"addresses": own}))));
    let opted_out = json!({"networking.istio.io/enable-autoallocate-ip": "false"});
    server.apply(service_entry(
        "left",
        opted_out,
        Some(json!({"addresses": [{"host": "left.example", "value": "1.1.1.1"}]})),
    ));
    let stop = allocate(&server);
    let mut all = BTreeSet::new();
    for name in ["fresh", "reported", "emptied"] {
        let addresses = written(&server, name, 2).await;
        for address in &addresses {
            assert_eq!(address["host"], format!("{name}.example"));
            all.insert(address["value"].to_string());
        }
        assert!(addresses[0]["value"].as_str().is_some_and(|value| value.starts_with("240.240.")), "{addresses:?}");
    }
    assert_eq!(all.len(), 6, "{all:?}");
    written(&server, "left", 0).await;
    assert_eq!(Value::from(written(&server, "settled", 1).await), own);
    let object = server.get("networking.istio.io", "serviceentries", "n", "reported").expect("it is there");
    assert_eq!(object["status"]["conditions"], json!([]), "conditions of other writers are kept");
    stop.cancel();
}

/// A graph with proxies that subscribe to secrets, and the reviewer of their rights.
pub(crate) struct SecretReviewFixture {
    engine: Engine,
    wanted: Published<SecretReader, ()>,
    inputs: Inputs,
    stop: CancellationToken,
}

impl SecretReviewFixture {
    /// With servers by cluster id.
    pub(crate) fn start(servers: &[(&str, &ApiServer)]) -> Self {
        let options = GraphOptions { cluster: "c".into(), reviews_secrets: true, ..GraphOptions::default() };
        let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
        engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
        let clients = servers.iter().map(|(id, server)| (Text::from(*id), server.client().expect("a client")));
        let clients: BTreeMap<_, _> = clients.collect();
        let (wanted, inputs) = (handles.wanted_secret_reviews.clone(), handles.inputs.clone());
        let reviewer =
            SecretReviewer::new(clients.into(), engine.feed(), wanted.clone(), inputs.secret_reviews.clone());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move { reviewer.run(stopped).await });
        Self { engine, wanted, inputs, stop }
    }

    /// Connects a proxy of a cluster with that service account.
    pub(crate) fn connect(&self, cluster: &str, service_account: &str) {
        let proxy = sluice_model::Proxy {
            cluster: cluster.into(),
            identity: Some(sluice_model::Identity::new("cluster.local", "edge", service_account)),
            ..sluice_model::Proxy::default()
        };
        let key = sluice_model::ProxyKey(format!("{cluster}-{service_account}").into());
        self.engine.transaction(|tx| {
            tx.set(&self.inputs.proxies, key.clone(), proxy);
            tx.set(&self.inputs.secret_clients, key, ());
        });
    }

    /// Waits for the answer about the service account of a cluster.
    pub(crate) async fn answered(&self, cluster: &str, service_account: &str, expect: bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let dump = self.engine.dump("secret_reviews").expect("a collection");
            let is_asked = |key: &Value| key["cluster"] == *cluster && key["service_account"] == *service_account;
            let found = dump.records().find(|(key, _)| is_asked(key));
            if let Some((_, answer)) = found {
                assert_eq!(answer, json!(expect), "{cluster} {service_account}");
                return;
            }
            assert!(Instant::now() < deadline, "no answer about {cluster} {service_account}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for SecretReviewFixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_to_read_secrets_is_reviewed_by_the_cluster() {
    let server = ApiServer::start().await.expect("a server");
    server.allow_reading_secrets("edge", "gateway", true);
    server.allow_reading_secrets("bank", "thief", true);
    let reviewing = SecretReviewFixture::start(&[("c", &server)]);
    for (account, expect) in [("gateway", true), ("thief", false)] {
        reviewing.connect("c", account);
        reviewing.answered("c", account, expect).await;
    }
    assert_eq!(reviewing.engine.snapshot().iter(&reviewing.wanted).count(), 2);
    assert_eq!(server.count("create", "subjectaccessreviews"), 2, "each is reviewed once");
}

/// Every right in the chart is used, and none is missing.
#[tokio::test(flavor = "multi_thread")]
async fn the_chart_grants_exactly_the_rights_used() {
    let server = ApiServer::start().await.expect("a server");
    for info in KINDS.iter().filter(|info| info.is_custom() && info.group != "networking.k8s.io") {
        let (group, versions) = (info.group, info.versions.to_vec());
        server.define(api_server::ResourceKind { group, versions, name: info.name, plural: info.plural }, true);
    }
    server.apply(service_entry("one", json!({}), None));
    let running = RunningSource::start(server).await;
    running.sink.synced().await;
    let stop = allocate(&running.server);
    written(&running.server, "one", 2).await;
    stop.cancel();
    run_authority(&running.server).await;
    patch_webhooks(&running.server).await;
    kube_writes::register_workload(&running.server).await;
    kube_writes::write_ingress_status(&running.server).await;
    let reviewing = SecretReviewFixture::start(&[("c", &running.server)]);
    reviewing.connect("c", "gateway");
    reviewing.answered("c", "gateway", false).await;
    let granted = granted();
    let compare = || {
        let requests = running.server.requests().into_keys();
        let used: BTreeSet<_> = requests.map(|it| (it.namespace, it.group, it.resource, it.verb)).collect();
        assert!(used.len() > 10, "{used:?}");
        // A right in all namespaces includes the right in each.
        let (mut missing, mut unused) = (Vec::new(), granted.clone());
        for right in used {
            let everywhere = (String::new(), right.1.clone(), right.2.clone(), right.3.clone());
            match [right.clone(), everywhere].into_iter().find(|right| granted.contains(right)) {
                Some(right) => drop(unused.remove(&right)),
                None => missing.push(right),
            }
        }
        (missing, unused)
    };
    // Watches begin after the lists.
    until("every right is used", || compare().1.is_empty().then_some(())).await;
    let (missing, unused) = compare();
    assert!(missing.is_empty() && unused.is_empty(), "missing: {missing:?}\nunused: {unused:?}");
}

/// Writes roots into a webhook configuration of each kind.
async fn patch_webhooks(server: &ApiServer) {
    for (kind, name) in
        [("MutatingWebhookConfiguration", "rev.sidecar-injector.istio.io"), ("ValidatingWebhookConfiguration", "v")]
    {
        server.apply(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": "w", "labels": {"istio.io/rev": "default"}},
            "webhooks": [
                {"name": name, "clientConfig": {"service": {"name": "istiod"}}, "failurePolicy": "Ignore"},
            ],
        }));
    }
    let (_keep, bundle) = watch::channel(TrustBundle { roots: "roots".to_owned(), ..TrustBundle::default() });
    let (client, kinds) = (server.client().expect("a client"), vec![WebhookKind::Mutating, WebhookKind::Validating]);
    let metrics = AuthorityMetrics::default();
    let control_plane = ("c".into(), "istio-system".into(), "default".into());
    let writer = WebhookConfigurationWriter::new(client, control_plane, kinds, bundle, &metrics);
    let stop = CancellationToken::new();
    let writing = tokio::spawn(writer.run(stop.clone()));
    // Validation fails closed once the API server refuses a marked object in a dry run.
    for (resource, policy) in [("mutatingwebhookconfigurations", "Ignore"), ("validatingwebhookconfigurations", "Fail")]
    {
        until(resource, || {
            let object = server.get("admissionregistration.k8s.io", resource, "", "w")?;
            let webhook = &object["webhooks"][0];
            (webhook["clientConfig"]["caBundle"] == "cm9vdHM=" && webhook["failurePolicy"] == policy).then_some(())
        })
        .await;
    }
    assert_eq!(server.get("networking.istio.io", "gateways", "istio-system", "invalid-gateway"), None);
    stop.cancel();
    writing.await.expect("no panic");
}

/// The requests of the certificate authority: it creates, reads and renews its Secret, writes roots, and reviews a
/// token.
async fn run_authority(server: &ApiServer) {
    let client = || server.client().expect("a client");
    let config = AuthorityConfig {
        check_interval: Duration::from_millis(20),
        // Every root is due for renewal.
        grace_percent: 100,
        jitter: false,
        ..AuthorityConfig::default()
    };
    let cluster = Some((client(), "istio-system".into()));
    let keeper = AuthorityKeeper::open(config, cluster, "td").await.expect("an authority");
    let (engine, handles) = Engine::start(EngineOptions::default(), |builder| build(builder, &GraphOptions::default()));
    engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
    handles.inputs.namespaces.set(ObjectKey::new("east", "", "shop"), Namespace::default());
    let bundle = |text: &str| TrustBundle { roots: text.to_owned(), ..TrustBundle::default() };
    let (sender, receiver) = watch::channel(bundle("one"));
    let (feed, namespaces) = (engine.feed(), handles.namespaces.clone());
    let writer = BundleWriter::new(client(), "east".into(), None, feed, namespaces, receiver, ("roots", None));
    let stop = CancellationToken::new();
    tokio::spawn(keeper.run(stop.clone()));
    tokio::spawn(writer.run(stop.clone()));
    let until = async |verb: &str, resource: &str| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.count(verb, resource) == 0 {
            assert!(Instant::now() < deadline, "{verb} {resource}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until("update", "secrets").await;
    until("create", "configmaps").await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.count("patch", "configmaps") == 0 {
        assert!(Instant::now() < deadline, "the ConfigMap is restored");
        sender.send_replace(bundle(&format!("{:?}", Instant::now())));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let clusters = BTreeMap::from([("east".into(), client())]);
    let trust_domain = TrustDomain::new("td".into());
    let tokens =
        ReviewedTokens::new(clusters.into(), "east".into(), BTreeMap::new(), &["istio-ca".to_owned()], trust_domain);
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static("Bearer token"))]);
    let verdict = tokens.authenticate(&Call { headers: &headers, peer: None, certificates: &[] }).await;
    assert!(matches!(verdict, Verdict::Rejected(_)));
    // The election acquires the locks, and renews them.
    let election =
        Election::new(Some(client()), "istio-system".into(), "a", "").with_lease_duration(Duration::from_millis(100));
    let lead = |lock: Lock| {
        let election = election.clone();
        tokio::spawn(election.lead(lock, stop.clone(), |term| async move { term.ended().cancelled().await }))
    };
    let leading = [lead(ROOTS_LOCK), lead(Lock::webhooks(""))];
    until("update", "configmaps").await;
    until("update", "leases").await;
    stop.cancel();
    for leading in leading {
        leading.await.expect("no panic");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_a_cluster_signer_are_granted_only_with_one() {
    let server = ApiServer::start().await.expect("a server");
    let client = || server.client().expect("a client");
    let config = SignerConfig { signer: "a/b".into(), timeout: Duration::from_millis(1), ..SignerConfig::default() };
    let signer = KubernetesSigner::new(client(), config, sluice_ca::LifetimeLimits::default());
    let key = rcgen::KeyPair::generate().expect("a key");
    let identity = "spiffe://td/ns/shop/sa/cart";
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.subject_alt_names = vec![rcgen::SanType::URI(identity.try_into().expect("a name"))];
    let request = params.serialize_request(&key).expect("a request").pem().expect("the PEM text");
    signer.issue(&request, &[identity.to_owned()], 0, "").await.expect_err("no signer answers");
    let roots = |text: &str| TrustBundle { roots: text.to_owned(), ..TrustBundle::default() };
    let (sender, receiver) = watch::channel(roots("one"));
    let stop = CancellationToken::new();
    let writing = tokio::spawn(TrustBundleWriter::new(client(), receiver).run(stop.clone()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.count("update", "clustertrustbundles") == 0 {
        assert!(Instant::now() < deadline, "it is written");
        sender.send_replace(roots(&format!("{:?}", Instant::now())));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    writing.await.expect("no panic");
    let requests = server.requests().into_keys().map(|it| (it.namespace, it.group, it.resource, it.verb));
    let mut granted = api_server::granted_by_rules("", rules!("signer"));
    granted.extend(api_server::granted_by_rules("", rules!("trust-bundle")));
    // The API server itself checks the rights to approve and to sign for a signer.
    granted.retain(|(_, _, resource, _)| resource != "signers");
    assert_eq!(requests.collect::<BTreeSet<_>>(), granted);
}

/// Rights of the chart: namespace (empty is all), group, resource, verb.
fn granted() -> BTreeSet<Right> {
    let mut granted = api_server::granted_by_rules("", rules!("cluster"));
    granted.extend(api_server::granted_by_rules("", rules!("alpha-gateway-api")));
    granted.extend(api_server::granted_by_rules("istio-system", rules!("namespace")));
    granted
}
