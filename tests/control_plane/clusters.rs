//! Remote clusters whose kubeconfigs are in Secrets (S15). Each is an API server over real HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sluice_auth::{Authenticator, Call, ReviewedTokens, TrustDomain, Verdict};
use sluice_authority::{AuthorityMetrics, RemoteRoots, RootObjects, RootsOptions, TrustBundle};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, Handles, build};
use sluice_kube::{Clients, KubeOptions, ROOTS_LOCK};
use sluice_model::{Identity, Kind, ObjectKey, Proxy, ProxyKey, Reject, Severity, Text};
use sluice_parse::kind_info;
use sluice_sources::kube::{
    ClusterMetrics, KubeSource, KubeconfigSource, RemoteClusters, RemoteOptions, RemoteStates, SecretReviewer,
    SyncStatus, WatchStates,
};
use sluice_sources::{Change, Cluster, InputSink, MeshOverride, Sink, SourceMetrics};
use sluice_testkit::api_server::{self, ApiServer, Right};
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

const SYSTEM: &str = "istio-system";
const OWN: &str = "own";
/// A text that no output may contain.
const SECRET_TEXT: &str = "hush-hush";

/// Records the deletions of objects of remote clusters before they reach the inputs.
struct DeletionRecorder {
    inner: Arc<dyn Sink>,
    deletions: Mutex<Vec<String>>,
}

impl Sink for DeletionRecorder {
    fn commit(&self, changes: Vec<Change>) {
        let deletions = changes.iter().filter(|change| change.object.is_none() && *change.key.cluster != *OWN);
        let deletions = deletions.map(|change| format!("{} {}/{}", change.kind, change.key.cluster, change.key.name));
        self.deletions.lock().expect("no test panics with the lock").extend(deletions);
        self.inner.commit(changes);
    }

    fn synced(&self, cluster: &Text, kinds: &[Kind]) {
        self.inner.synced(cluster, kinds);
    }

    fn settle(&self, done: oneshot::Sender<()>) {
        self.inner.settle(done);
    }
}

/// A control plane that reads a cluster, and the clusters whose kubeconfigs are in its Secrets.
struct RemoteClustersFixture {
    engine: Engine,
    handles: Handles,
    clients: Clients,
    states: RemoteStates,
    registry: Registry,
    recorder: Arc<DeletionRecorder>,
    stop: CancellationToken,
}

impl RemoteClustersFixture {
    /// Starts it, and waits until proxies would be served.
    async fn start(own: &ApiServer, timeout: Duration, allowed: &[&str]) -> Self {
        let options = GraphOptions { cluster: OWN.into(), reviews_secrets: true, ..GraphOptions::default() };
        let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
        let cluster = Cluster {
            id: OWN.into(),
            domain: "cluster.local".into(),
            is_remote: false,
            ignored: BTreeSet::new(),
            revision: "".into(),
        };
        let kinds = BTreeMap::from([(cluster.id.clone(), cluster.kinds())]);
        let mesh = MeshOverride::new(ObjectKey::new(OWN, SYSTEM, "istio"), None);
        let inputs = InputSink::start(engine.clone(), handles.inputs.clone(), kinds, mesh, SourceMetrics::default());
        let recorder =
            Arc::new(DeletionRecorder { inner: Arc::new(inputs.expect("a thread")), deletions: Mutex::default() });
        let (stop, client) = (CancellationToken::new(), own.client().expect("a client"));
        let kube = KubeOptions {
            page_size: 2,
            watch_timeout: Duration::from_secs(60),
            list_silence: Duration::from_secs(20),
            first_retry: Duration::from_millis(5),
            max_retry: Duration::from_millis(50),
            ..KubeOptions::default()
        };
        let source = KubeSource {
            client: client.clone(),
            cluster: cluster.clone(),
            system_namespace: SYSTEM.into(),
            namespace: None,
            options: kube,
            states: WatchStates::default(),
        };
        tokio::spawn(source.run(recorder.clone(), stop.clone()));
        let clients = Clients::from(BTreeMap::from([(OWN.into(), client.clone())]));
        let (states, metrics) = (RemoteStates::new(BTreeSet::from(["files".into()])), ClusterMetrics::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let options = RemoteOptions {
            cluster,
            configured: BTreeSet::from(["files".into()]),
            system_namespace: SYSTEM.into(),
            namespace: None,
            timeout,
            allowed: allowed.iter().map(|option| (*option).to_owned()).collect(),
            kube,
            watch_states: WatchStates::default(),
        };
        let rejects = handles.inputs.cluster_rejects.clone();
        let remotes = RemoteClusters::new(options, recorder.clone(), rejects, clients.clone(), states.clone(), metrics);
        let settled = remotes.settled();
        tokio::spawn(remotes.run(KubeconfigSource::Secrets(client), stop.clone()));
        let waiting = engine.clone();
        let synced = tokio::task::spawn_blocking(move || waiting.wait_synced(Duration::from_secs(20))).await;
        assert!(synced.expect("no panic"), "the config cluster is read");
        tokio::time::timeout(Duration::from_secs(20), settled)
            .await
            .expect("remote clusters are read, or the timeout has passed");
        Self { engine, handles, clients, states, registry, recorder, stop }
    }

    async fn start_with_long_timeout(own: &ApiServer) -> Self {
        Self::start(own, Duration::from_secs(60), &[]).await
    }

    /// Clusters and addresses of a host's endpoints.
    fn endpoints(&self, host: &str) -> Vec<String> {
        let snapshot = self.engine.snapshot();
        let found = snapshot.iter(&self.handles.endpoints).find(|(key, _)| key.host.to_string() == host);
        let shown = |it: &sluice_model::Endpoint| format!("{} {}", it.cluster, it.addresses[0]);
        let mut shown: Vec<String> = found.iter().flat_map(|(_, endpoints)| endpoints.iter().map(shown)).collect();
        shown.sort();
        shown
    }

    async fn has(&self, expect: &[&str]) {
        let what = format!("the cart has {expect:?}");
        until(&what, || (self.endpoints("cart.shop.svc.cluster.local") == expect).then_some(())).await;
    }

    /// The rejects of a Secret: severity and path of the field.
    fn found(&self, secret: &str) -> Vec<(Severity, String)> {
        let snapshot = self.engine.snapshot();
        let rejects = snapshot.iter(&self.handles.rejects).filter(|(key, _)| *key.object.name == *secret);
        let shown = |it: &Reject| (it.severity, it.field_path.to_string());
        rejects.flat_map(|(_, rejects)| rejects.iter().map(shown)).collect()
    }

    async fn finds(&self, secret: &str, expect: &[(Severity, &str)]) {
        let expect: Vec<_> = expect.iter().map(|(severity, path)| (*severity, (*path).to_owned())).collect();
        let mut found = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            found = self.found(secret);
            if found == expect {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{secret}: {found:?}, not {expect:?}");
    }

    fn status(&self, cluster: &str) -> Option<SyncStatus> {
        self.states.all().into_iter().find(|info| *info.id == *cluster).map(|info| info.sync_status)
    }

    async fn is(&self, cluster: &str, status: Option<SyncStatus>) {
        until(&format!("{cluster} is {status:?}"), || (self.status(cluster) == status).then_some(())).await;
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("text");
        text
    }

    fn deletions(&self) -> Vec<String> {
        self.recorder.deletions.lock().expect("no test panics with the lock").clone()
    }

    /// Every record of every collection.
    fn everything(&self) -> BTreeMap<String, BTreeSet<String>> {
        let dump = |name: &str| {
            let dump = self.engine.dump(name).expect("a collection");
            dump.records().map(|(key, value)| format!("{key} {value}")).collect()
        };
        self.engine.graph().iter().map(|info| (info.name.clone(), dump(&info.name))).collect()
    }

    /// Checks that every collection equals that of a control plane that has just started.
    async fn is_as_from_scratch(&self, own: &ApiServer) {
        let fresh = Self::start_with_long_timeout(own).await.everything();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let current = self.everything();
            if current == fresh {
                return;
            }
            if Instant::now() > deadline {
                for (name, records) in &fresh {
                    assert_eq!(&current[name], records, "{name}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for RemoteClustersFixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A server with service `cart`, which has an endpoint of this address.
async fn cluster(address: &str) -> ApiServer {
    let server = ApiServer::start().await.expect("a server");
    server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
    server.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "cart", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]},
    }));
    slice(&server, "cart-1", address);
    server
}

fn slice(server: &ApiServer, name: &str, address: &str) {
    server.apply(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "cart"}},
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}], "ports": [{"port": 8080}],
    }));
}

/// Applies a Secret with kubeconfigs of clusters.
fn apply_kubeconfigs(own: &ApiServer, name: &str, created: &str, kubeconfigs: &[(&str, Value)]) {
    let encode = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let data: BTreeMap<_, _> = kubeconfigs.iter().map(|(id, it)| (*id, STANDARD.encode(encode(it)))).collect();
    own.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": {
            "name": name, "namespace": SYSTEM, "labels": {"istio/multiCluster": "true"}, "creationTimestamp": created,
        },
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_clusters_follow_their_secrets() {
    let (own, east, west) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await, cluster("10.3.0.1").await);
    let kubeconfigs = [("east", east.kubeconfig(json!({}))), ("west", west.kubeconfig(json!({})))];
    apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &kubeconfigs);
    let mesh = RemoteClustersFixture::start_with_long_timeout(&own).await;
    // No proxy is served before the remote clusters are synced.
    assert_eq!(mesh.endpoints("cart.shop.svc.cluster.local"), ["east 10.2.0.1", "own 10.1.0.1", "west 10.3.0.1"]);
    let shown = serde_json::to_value(mesh.states.all()).expect("JSON");
    let secret = "istio-system/remote";
    assert_eq!(
        shown,
        json!([
            {"id": "files", "secretName": "", "syncStatus": "synced"},
            {"id": "east", "secretName": secret, "syncStatus": "synced"},
            {"id": "west", "secretName": secret, "syncStatus": "synced"},
        ])
    );
    let metrics = mesh.metrics();
    for line in [
        "istiod_managed_clusters{cluster_type=\"local\"} 1",
        "istiod_managed_clusters{cluster_type=\"remote\"} 3",
        "istiod_remote_cluster_sync_status{cluster=\"east\",cluster_type=\"remote\",status=\"synced\"} 1",
        "remote_cluster_secret_events_total{event=\"add\"} 1",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line} in\n{metrics}");
    }
    // Configuration is read from the config cluster only. Workloads are watched in every cluster.
    for kind in ["configmaps", "ingresses"] {
        assert_eq!(east.count("list", kind), 0, "{kind}");
    }
    slice(&east, "cart-2", "10.2.0.2");
    mesh.has(&["east 10.2.0.1", "east 10.2.0.2", "own 10.1.0.1", "west 10.3.0.1"]).await;

    apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &kubeconfigs[..1]);
    mesh.has(&["east 10.2.0.1", "east 10.2.0.2", "own 10.1.0.1"]).await;
    assert_eq!(mesh.status("west"), None);
    assert_eq!(mesh.clients.ids(), ["east", OWN]);
    mesh.is_as_from_scratch(&own).await;

    own.delete("secrets", SYSTEM, "remote");
    mesh.has(&["own 10.1.0.1"]).await;
    assert_eq!(mesh.clients.ids(), [OWN]);
    mesh.is_as_from_scratch(&own).await;
    apply_kubeconfigs(&own, "again", "2026-01-02T00:00:00Z", &kubeconfigs[1..]);
    mesh.has(&["own 10.1.0.1", "west 10.3.0.1"]).await;
    mesh.is_as_from_scratch(&own).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_credentials_keep_the_objects_read_with_the_old_ones() {
    let (own, east) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await);
    slice(&east, "cart-2", "10.2.0.2");
    east.accept_only_tokens(&["old"]);
    let rotate = |token: &str| {
        let kubeconfig = east.kubeconfig(json!({"token": token}));
        apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &[("east", kubeconfig)]);
    };
    rotate("old");
    let mesh = RemoteClustersFixture::start_with_long_timeout(&own).await;
    mesh.has(&["east 10.2.0.1", "east 10.2.0.2", "own 10.1.0.1"]).await;

    // The reader with the new credentials is not synced, so the old reader continues.
    rotate("new");
    mesh.is("east", Some(SyncStatus::Syncing)).await;
    slice(&east, "cart-3", "10.2.0.3");
    mesh.has(&["east 10.2.0.1", "east 10.2.0.2", "east 10.2.0.3", "own 10.1.0.1"]).await;

    // The old watches end, and an object is deleted without an event.
    east.accept_only_tokens(&["none"]);
    east.disconnect();
    east.delete("endpointslices", "shop", "cart-2");
    slice(&east, "cart-4", "10.2.0.4");
    east.accept_only_tokens(&["new"]);
    mesh.has(&["east 10.2.0.1", "east 10.2.0.3", "east 10.2.0.4", "own 10.1.0.1"]).await;
    mesh.is("east", Some(SyncStatus::Synced)).await;
    assert_eq!(mesh.deletions(), ["EndpointSlice east/cart-2"], "no other object was ever deleted");
    slice(&east, "cart-1", "10.2.0.5");
    mesh.has(&["east 10.2.0.3", "east 10.2.0.4", "east 10.2.0.5", "own 10.1.0.1"]).await;
    mesh.is_as_from_scratch(&own).await;

    // Credentials that replace others before those are synced, and credentials that are reverted.
    rotate("wrong");
    mesh.is("east", Some(SyncStatus::Syncing)).await;
    rotate("new");
    mesh.is("east", Some(SyncStatus::Synced)).await;
    // Another Secret may declare the same cluster.
    let kubeconfig = east.kubeconfig(json!({"token": "new"}));
    apply_kubeconfigs(&own, "other", "2026-01-02T00:00:00Z", &[("east", kubeconfig)]);
    mesh.finds("other", &[(Severity::Error, "data[east]")]).await;
    own.delete("secrets", SYSTEM, "remote");
    mesh.finds("other", &[]).await;
    let secret = mesh.states.all()[1].secret_name.clone();
    assert_eq!((secret.as_str(), mesh.deletions().len()), ("istio-system/other", 1));
    mesh.is_as_from_scratch(&own).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_kubeconfig_is_reported_and_leaves_other_clusters_untouched() {
    let (own, east, west) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await, cluster("10.3.0.1").await);
    let user = |user: Value| east.kubeconfig(user);
    let good = west.kubeconfig(json!({"token": SECRET_TEXT}));
    let when = "2026-01-01T00:00:00Z";
    apply_kubeconfigs(
        &own,
        "remote",
        when,
        &[
            ("broken", json!(format!("a: {{{SECRET_TEXT}"))),
            ("east", user(json!({"exec": {"command": SECRET_TEXT}}))),
            ("files", good.clone()),
            (
                "key",
                user(json!({"client-certificate-data": STANDARD.encode(SECRET_TEXT), "client-key-data": "aHVzaA=="})),
            ),
            (OWN, good.clone()),
            ("west", good.clone()),
        ],
    );
    apply_kubeconfigs(&own, "younger", "2026-02-01T00:00:00Z", &[("west", good.clone())]);
    let mesh = RemoteClustersFixture::start_with_long_timeout(&own).await;
    mesh.has(&["own 10.1.0.1", "west 10.3.0.1"]).await;
    let expect = [
        (Severity::Error, "data[broken]"),
        (Severity::Error, "data[east].users[0].user.exec"),
        (Severity::Error, "data[files]"),
        (Severity::Error, "data[key]"),
        (Severity::Warning, "data[own]"),
    ];
    mesh.finds("remote", &expect).await;
    mesh.finds("younger", &[(Severity::Error, "data[west]")]).await;
    assert_eq!(mesh.clients.ids(), [OWN, "west"]);
    mesh.is_as_from_scratch(&own).await;

    // A running reader continues when its kubeconfig becomes invalid. A corrected kubeconfig is no longer reported.
    apply_kubeconfigs(&own, "remote", when, &[("west", json!(SECRET_TEXT)), ("east", user(json!({})))]);
    own.delete("secrets", SYSTEM, "younger");
    mesh.finds("remote", &[(Severity::Error, "data[west]")]).await;
    mesh.finds("younger", &[]).await;
    mesh.has(&["east 10.2.0.1", "own 10.1.0.1", "west 10.3.0.1"]).await;
    slice(&west, "cart-2", "10.3.0.2");
    mesh.has(&["east 10.2.0.1", "own 10.1.0.1", "west 10.3.0.1", "west 10.3.0.2"]).await;
    apply_kubeconfigs(&own, "remote", when, &[("west", good), ("east", user(json!({})))]);
    mesh.finds("remote", &[]).await;
    mesh.is_as_from_scratch(&own).await;

    let shown = format!("{:?} {:?} {}", mesh.everything(), mesh.states.all(), mesh.metrics());
    let encoded = STANDARD.encode(SECRET_TEXT);
    assert!(
        !shown.contains(SECRET_TEXT) && !shown.contains(encoded.trim_end_matches('=')),
        "the secret text is in the output"
    );

    // A token file is read only if that is allowed.
    let file = std::env::temp_dir().join(format!("sluice-token-{}", std::process::id()));
    std::fs::write(&file, "from-a-file").expect("write a token");
    east.accept_only_tokens(&["from-a-file"]);
    apply_kubeconfigs(&own, "remote", when, &[("east", user(json!({"tokenFile": file})))]);
    mesh.finds("remote", &[(Severity::Error, "data[east].users[0].user.tokenFile")]).await;
    let with_token_files = RemoteClustersFixture::start(&own, Duration::from_secs(60), &["tokenFile"]).await;
    with_token_files.has(&["east 10.2.0.1", "own 10.1.0.1"]).await;
    std::fs::remove_file(&file).expect("remove the token");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_cluster_delays_the_start_only_until_the_timeout() {
    let (own, east) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await);
    east.forbid("pods", true);
    apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &[("east", east.kubeconfig(json!({})))]);
    let mesh = RemoteClustersFixture::start(&own, Duration::from_millis(100), &[]).await;
    assert_eq!(mesh.status("east"), Some(SyncStatus::Timeout));
    let timeouts = "remote_cluster_sync_timeouts_total{cluster=\"east\"} 1";
    assert!(mesh.metrics().lines().any(|line| line == timeouts), "{}", mesh.metrics());
    // The readable part of the cluster is used, and the rest when it becomes readable.
    mesh.has(&["east 10.2.0.1", "own 10.1.0.1"]).await;
    // New credentials may not read the rest either. They replace the old ones, which had not read the whole cluster.
    slice(&east, "cart-2", "10.2.0.2");
    apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &[("east", east.kubeconfig(json!({"token": "new"})))]);
    east.accept_only_tokens(&["new"]);
    east.disconnect();
    slice(&east, "cart-3", "10.2.0.3");
    mesh.has(&["east 10.2.0.1", "east 10.2.0.2", "east 10.2.0.3", "own 10.1.0.1"]).await;
    assert_eq!(mesh.deletions(), Vec::<String>::new());
    east.forbid("pods", false);
    mesh.is("east", Some(SyncStatus::Synced)).await;
    mesh.is_as_from_scratch(&own).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_reviewed_by_remote_clusters() {
    let (own, east) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await);
    let status = |account: &str| {
        let user = format!("system:serviceaccount:shop:{account}");
        json!({"authenticated": true, "audiences": ["istio-ca"],
               "user": {"username": user, "groups": ["system:serviceaccounts"]}})
    };
    own.review("token-of-own", status("own"));
    east.review("token-of-east", status("east"));
    let mesh = RemoteClustersFixture::start_with_long_timeout(&own).await;
    let audiences = ["istio-ca".to_owned()];
    let trust_domain = TrustDomain::new("td".into());
    let tokens = ReviewedTokens::new(mesh.clients.clone(), OWN.into(), BTreeMap::new(), &audiences, trust_domain);
    let ask = async |token: &str, cluster: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {token}")).expect("a header"));
        headers.insert("clusterid", HeaderValue::from_str(cluster).expect("a header"));
        match tokens.authenticate(&Call { headers: &headers, peer: None, certificates: &[] }).await {
            Verdict::Account(identity, proven) => {
                assert_eq!(proven.as_str(), cluster, "the cluster that reviewed the token");
                identity.to_string()
            }
            Verdict::Rejected(reason) => reason,
            other => panic!("{other:?}"),
        }
    };
    let unknown = "the caller names cluster \"east\"; known clusters are [\"own\"]";
    assert_eq!(ask("token-of-east", "east").await, unknown);
    apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &[("east", east.kubeconfig(json!({})))]);
    mesh.is("east", Some(SyncStatus::Synced)).await;
    assert_eq!(ask("token-of-east", "east").await, "spiffe://td/ns/shop/sa/east");
    assert_eq!(ask("token-of-own", OWN).await, "spiffe://td/ns/shop/sa/own");
    // A token is valid in its own cluster only.
    for (token, cluster) in [("token-of-east", OWN), ("token-of-own", "east"), ("token-of-east", "")] {
        assert_eq!(ask(token, cluster).await, "the token is not authenticated", "{token} {cluster}");
    }
    own.delete("secrets", SYSTEM, "remote");
    mesh.is("east", None).await;
    assert_eq!(ask("token-of-east", "east").await, unknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_remote_cluster_match_the_manifest() {
    let (own, east) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await);
    let info = kind_info(Kind::WorkloadEntry).expect("in the table");
    let (group, versions) = (info.group, info.versions.to_vec());
    east.define(api_server::ResourceKind { group, versions, name: info.name, plural: info.plural }, true);
    apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &[("east", east.kubeconfig(json!({})))]);
    let mesh = RemoteClustersFixture::start_with_long_timeout(&own).await;

    // Proxies of a cluster may read its Secrets if that cluster permits it. What the primary cluster permits has no effect.
    east.allow_reading_secrets("edge", "gateway", true);
    own.allow_reading_secrets("edge", "other", true);
    let (wanted, inputs) = (mesh.handles.wanted_secret_reviews.clone(), mesh.handles.inputs.clone());
    let reviewer = SecretReviewer::new(mesh.clients.clone(), mesh.engine.feed(), wanted, inputs.secret_reviews.clone());
    tokio::spawn(reviewer.run(mesh.stop.clone()));
    mesh.engine.transaction(|tx| inputs.mark_all_synced(tx));
    for account in ["gateway", "other"] {
        let proxy = Proxy {
            cluster: "east".into(),
            identity: Some(Identity::new("cluster.local", "edge", account)),
            ..Proxy::default()
        };
        mesh.engine.transaction(|tx| {
            tx.set(&inputs.proxies, ProxyKey(account.into()), proxy);
            tx.set(&inputs.secret_clients, ProxyKey(account.into()), ());
        });
    }
    let answers = until("both are reviewed", || {
        let dump = mesh.engine.dump("secret_reviews").expect("a collection");
        let answers: BTreeMap<_, _> =
            dump.records().map(|(key, answer)| (key["service_account"].to_string(), answer)).collect();
        (answers.len() == 2).then_some(answers)
    });
    let expect = [("\"gateway\"", json!(true)), ("\"other\"", json!(false))];
    assert_eq!(answers.await, BTreeMap::from(expect.map(|(name, answer)| (name.to_owned(), answer))));
    assert_eq!(own.count("create", "subjectaccessreviews"), 0);
    let audiences = ["istio-ca".to_owned()];
    let trust_domain = TrustDomain::new("td".into());
    let tokens = ReviewedTokens::new(mesh.clients.clone(), OWN.into(), BTreeMap::new(), &audiences, trust_domain);
    let headers = [("authorization", "Bearer token"), ("clusterid", "east")];
    let headers = headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let headers = HeaderMap::from_iter(headers);
    let verdict = tokens.authenticate(&Call { headers: &headers, peer: None, certificates: &[] }).await;
    assert!(matches!(verdict, Verdict::Rejected(_)), "{verdict:?}");

    let granted = api_server::granted_by_rules("", rules!("reader"));
    let used = || -> BTreeSet<_> {
        east.requests().into_keys().map(|it| (it.namespace, it.group, it.resource, it.verb)).collect()
    };
    // Watches begin after the lists.
    until("all is watched", || (used().len() >= granted.len()).then_some(())).await;
    assert_eq!(used(), granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn sluiced_is_ready_when_remote_clusters_are_synced() {
    let (own, east) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await);
    apply_kubeconfigs(
        &own,
        "remote",
        "2026-01-01T00:00:00Z",
        &[("east", east.kubeconfig(json!({"token": SECRET_TEXT})))],
    );
    let directory = tempfile::tempdir().expect("a directory");
    let (kubeconfig, log) = (directory.path().join("kubeconfig"), directory.path().join("log"));
    own.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    let options = Options { kubeconfig: Some(kubeconfig), log: Some(log.clone()), ..Options::new(directory.path()) };
    let sluiced = Sluiced::start(&options).await.expect("it starts");
    let get = async |path: &str| {
        let (status, text) = sluiced.get(path).await.expect("an answer");
        assert_eq!(status, 200, "{path}: {text}");
        text
    };
    let clusters: Value = serde_json::from_str(&get("/debug/clusterz").await).expect("JSON");
    let expected = [("Kubernetes", ""), ("east", "istio-system/remote")];
    assert_eq!(clusters.as_array().map(Vec::len), Some(expected.len()), "{clusters}");
    for (row, (id, secret)) in clusters.as_array().into_iter().flatten().zip(expected) {
        assert_eq!(
            (&row["id"], &row["secretName"], &row["syncStatus"]),
            (&json!(id), &json!(secret), &json!("synced"))
        );
        let watches = row["watches"].as_array().expect("watched collections");
        let pods = watches.iter().find(|watch| watch["resource"] == "/api/v1/pods").expect("Pods are watched");
        assert!(pods["ageSeconds"].is_f64() && pods.get("failure").is_none() && row["oldestSeconds"].is_f64(), "{row}");
    }
    let endpoints = get("/debug/endpointz").await;
    assert!(endpoints.contains("10.1.0.1") && endpoints.contains("10.2.0.1"), "{endpoints}");
    let managed = "istiod_managed_clusters{cluster_type=\"remote\"} 1";
    assert!(get("/metrics").await.lines().any(|line| line == managed));
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains("reading a remote cluster") && !log.contains(SECRET_TEXT));
    assert!(!get("/debug/krtz").await.contains(SECRET_TEXT));
    assert_eq!(sluiced.stop(Duration::from_secs(20)).await.expect("it stops"), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_are_written_to_remote_clusters_that_request_them_by_an_annotation() {
    let (own, east, west) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await, cluster("10.3.0.1").await);
    let annotate = |server: &ApiServer, clusters: &str| {
        let annotations = json!({"topology.istio.io/controlPlaneClusters": clusters});
        let metadata = json!({"name": SYSTEM, "annotations": annotations});
        server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    };
    annotate(&own, OWN);
    annotate(&east, "other, own");
    annotate(&west, "other");
    let kubeconfig = |server: &ApiServer, token: &str| server.kubeconfig(json!({"token": token}));
    let rotate_to = |token: &str| {
        let kubeconfigs = [("east", kubeconfig(&east, token)), ("west", kubeconfig(&west, token))];
        apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &kubeconfigs);
    };
    rotate_to("old");
    let mesh = RemoteClustersFixture::start_with_long_timeout(&own).await;
    let options = RootsOptions {
        own: OWN.into(),
        system_namespace: SYSTEM.into(),
        roots: Some(RootObjects { roots: "istio-ca-root-cert".to_owned(), revoked: None, cluster_trust_bundle: false }),
        webhooks: true,
        pod: Some("one".into()),
        revision: "default".into(),
    };
    let (bundle, receiver) = watch::channel(TrustBundle { roots: "one".to_owned(), ..TrustBundle::default() });
    let namespaces = (mesh.handles.namespaces.clone(), mesh.handles.discovered_namespaces.clone());
    let roots = RemoteRoots::new(
        options,
        mesh.clients.clone(),
        mesh.engine.clone(),
        namespaces,
        receiver,
        AuthorityMetrics::default(),
    );
    let running = tokio::spawn(roots.run(mesh.stop.clone()));
    let has = async |server: &ApiServer, namespace: &str, roots: &str| {
        let text = |object: Value| object["data"]["root-cert.pem"].as_str().map(str::to_owned);
        let written = || server.get("", "configmaps", namespace, "istio-ca-root-cert").and_then(text);
        until(&format!("{namespace} has {roots}"), || (written().as_deref() == Some(roots)).then_some(())).await;
    };
    has(&east, "shop", "one").await;
    has(&east, SYSTEM, "one").await;
    bundle.send_modify(|bundle| bundle.roots = "two".to_owned());
    has(&east, "shop", "two").await;
    let mut granted = api_server::granted_by_rules("", rules!("remote-roots"));
    granted.extend(api_server::granted_by_rules(SYSTEM, rules!("remote-roots-lock")));
    let lock = |server: &ApiServer| server.get("", "configmaps", SYSTEM, ROOTS_LOCK.name());
    let holder = || lock(&east).map(|lock| ROOTS_LOCK.holder(&lock)).unwrap_or_default();
    let first = holder();
    assert!(first.starts_with("one-"), "one of several replicas writes: {first}");
    let record = lock(&east).expect("it exists")["metadata"]["annotations"].to_string();
    assert!(record.contains("^default"), "a control plane of the cluster takes precedence: {record}");

    // Writing continues with new credentials, and begins in a cluster that is annotated later.
    rotate_to("new");
    until("another writes", || (holder().starts_with("one-") && holder() != first).then_some(())).await;
    for server in [&east, &west] {
        server.accept_only_tokens(&["new"]);
    }
    bundle.send_modify(|bundle| bundle.roots = "three".to_owned());
    has(&east, "shop", "three").await;
    assert!(
        west.get("", "configmaps", "shop", "istio-ca-root-cert").is_none(),
        "another control plane serves the cluster"
    );
    annotate(&west, "*");
    has(&west, "shop", "three").await;
    assert!(
        own.get("", "configmaps", "shop", "istio-ca-root-cert").is_none(),
        "the config cluster is written by another task"
    );
    let used = east.requests().into_keys().filter(|it| it.resource == "configmaps");
    let used: BTreeSet<_> = used.map(|it| (it.namespace, it.group, it.resource, it.verb)).collect();
    let of_lock = |verb: &str| matches!(verb, "get" | "update");
    let everywhere = |(_, group, resource, verb): Right| match of_lock(&verb) {
        true => (SYSTEM.to_owned(), group, resource, verb),
        false => (String::new(), group, resource, verb),
    };
    // The default revision decides only between control planes of several revisions.
    let granted: BTreeSet<_> = granted.into_iter().filter(|(_, group, ..)| group.is_empty()).collect();
    assert_eq!(used.into_iter().map(everywhere).collect::<BTreeSet<_>>(), granted);

    // Writing stops when another control plane serves the cluster, or no Secret refers to it.
    annotate(&east, "other");
    own.delete("secrets", SYSTEM, "remote");
    mesh.is("west", None).await;
    mesh.stop.cancel();
    running.await.expect("no panic");
}
