//! Remote clusters whose kubeconfigs are in Secrets (S15).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sluice_auth::{Authenticator, Call, ReviewedTokens, TrustDomain, Verdict};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, Handles, build};
use sluice_kube::Clients;
use sluice_model::{Kind, Reject, Severity, Text};
use sluice_sources::kube::{
    ClusterMetrics, KubeSource, KubeconfigSource, RemoteClusters, RemoteOptions, RemoteStates, SyncStatus, WatchStates,
};
use sluice_sources::{Change, Sink};
use sluice_testkit::kube_api::{KubeApi, Route};
use sluice_testkit::wait::until;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::source::{cluster_named, options, source, start_sink};

/// The id of the cluster that has the Secrets.
pub(crate) const OWN: &str = "own";

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

/// The cluster that a control plane reads, with Secrets about the others.
#[derive(Clone)]
pub(crate) struct ConfigCluster {
    pub(crate) client: kube::Client,
    /// The namespace of the Secrets.
    pub(crate) system: String,
    /// The namespace of the Service `cart` in all clusters.
    pub(crate) shop: String,
}

/// A control plane that reads a cluster, and the clusters whose kubeconfigs are in its Secrets.
pub(crate) struct RemoteClustersFixture {
    of: ConfigCluster,
    pub(crate) engine: Engine,
    pub(crate) handles: Handles,
    pub(crate) clients: Clients,
    pub(crate) states: RemoteStates,
    registry: Registry,
    recorder: Arc<DeletionRecorder>,
    pub(crate) stop: CancellationToken,
}

impl RemoteClustersFixture {
    /// Starts it, and waits until proxies would be served.
    pub(crate) async fn start(of: ConfigCluster, timeout: Duration, allowed: &[&str]) -> Self {
        let graph = GraphOptions { cluster: OWN.into(), reviews_secrets: true, ..GraphOptions::default() };
        let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &graph));
        let cluster = cluster_named(OWN);
        let inputs = start_sink(&engine, &handles, &cluster, &of.system);
        let recorder = Arc::new(DeletionRecorder { inner: Arc::new(inputs), deletions: Mutex::default() });
        let (stop, client) = (CancellationToken::new(), of.client.clone());
        let source = KubeSource {
            cluster: cluster.clone(),
            system_namespace: of.system.as_str().into(),
            ..source(client.clone(), options())
        };
        tokio::spawn(source.run(recorder.clone(), stop.clone()));
        let clients = Clients::from(BTreeMap::from([(OWN.into(), client.clone())]));
        let (states, metrics) = (RemoteStates::new(BTreeSet::from(["files".into()])), ClusterMetrics::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let options = RemoteOptions {
            cluster,
            configured: BTreeSet::from(["files".into()]),
            system_namespace: of.system.as_str().into(),
            namespace: None,
            timeout,
            allowed: allowed.iter().map(|option| (*option).to_owned()).collect(),
            kube: options(),
            watch_states: WatchStates::default(),
        };
        let rejects = handles.inputs.component_rejects.clone();
        let remotes = RemoteClusters::new(options, recorder.clone(), rejects, clients.clone(), states.clone(), metrics);
        let settled = remotes.settled();
        tokio::spawn(remotes.run(KubeconfigSource::Secrets(client), stop.clone()));
        let waiting = engine.clone();
        let synced = tokio::task::spawn_blocking(move || waiting.wait_synced(Duration::from_secs(20))).await;
        assert!(synced.expect("no panic"), "the config cluster is read");
        tokio::time::timeout(Duration::from_secs(20), settled)
            .await
            .expect("remote clusters are read, or the timeout has passed");
        Self { of, engine, handles, clients, states, registry, recorder, stop }
    }

    pub(crate) async fn start_with_long_timeout(of: ConfigCluster) -> Self {
        Self::start(of, Duration::from_secs(60), &[]).await
    }

    /// Clusters and addresses of the endpoints of the Service `cart`.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        let host = format!("cart.{}.svc.cluster.local", self.of.shop);
        let snapshot = self.engine.snapshot();
        let found = snapshot.iter(&self.handles.endpoints).find(|(key, _)| key.host.to_string() == host);
        let shown = |it: &sluice_model::Endpoint| format!("{} {}", it.cluster, it.addresses[0]);
        let mut shown: Vec<String> = found.iter().flat_map(|(_, endpoints)| endpoints.iter().map(shown)).collect();
        shown.sort();
        shown
    }

    pub(crate) async fn has(&self, expect: &[&str]) {
        let what = format!("the cart has {expect:?}");
        until(&what, || (self.endpoints() == expect).then_some(())).await;
    }

    /// The rejects of a Secret: severity and path of the field.
    fn found(&self, secret: &str) -> Vec<(Severity, String)> {
        let snapshot = self.engine.snapshot();
        let rejects = snapshot.iter(&self.handles.rejects).filter(|(key, _)| *key.object.name == *secret);
        let shown = |it: &Reject| (it.severity, it.field_path.to_string());
        rejects.flat_map(|(_, rejects)| rejects.iter().map(shown)).collect()
    }

    pub(crate) async fn finds(&self, secret: &str, expect: &[(Severity, &str)]) {
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

    pub(crate) fn status(&self, cluster: &str) -> Option<SyncStatus> {
        self.states.all().into_iter().find(|info| *info.id == *cluster).map(|info| info.sync_status)
    }

    pub(crate) async fn is(&self, cluster: &str, status: Option<SyncStatus>) {
        until(&format!("{cluster} is {status:?}"), || (self.status(cluster) == status).then_some(())).await;
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("text");
        text
    }

    pub(crate) fn deletions(&self) -> Vec<String> {
        self.recorder.deletions.lock().expect("no test panics with the lock").clone()
    }

    /// Every record of every collection.
    pub(crate) fn everything(&self) -> BTreeMap<String, BTreeSet<String>> {
        let dump = |name: &str| {
            let dump = self.engine.dump(name).expect("a collection");
            dump.records().map(|(key, value)| format!("{key} {value}")).collect()
        };
        self.engine.graph().iter().map(|info| (info.name.clone(), dump(&info.name))).collect()
    }

    /// Checks that every collection equals that of a control plane that has just started.
    pub(crate) async fn is_as_from_scratch(&self) {
        let fresh = Self::start_with_long_timeout(self.of.clone()).await.everything();
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

/// A cluster with the Service `cart`, which has an endpoint of an address.
pub(super) struct CartCluster {
    pub(super) api: KubeApi,
    pub(super) shop: String,
}

impl CartCluster {
    async fn new(api: KubeApi, shop: &str, address: &str) -> Self {
        api.create_namespace(shop).await;
        let metadata = json!({"name": "cart", "namespace": shop});
        let spec = json!({"ports": [{"port": 80}]});
        api.apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})).await;
        let cluster = Self { api, shop: shop.to_owned() };
        cluster.slice("cart-1", address).await;
        cluster
    }

    async fn slice(&self, name: &str, address: &str) {
        let labels = json!({"kubernetes.io/service-name": "cart"});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": self.shop, "labels": labels},
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}], "ports": [{"port": 8080}],
        });
        self.api.apply(slice).await;
    }
}

/// A cluster with Secrets, and the one that they refer to.
pub(super) struct ClusterPair {
    pub(super) own: CartCluster,
    pub(super) east: CartCluster,
    pub(super) system: String,
}

impl ClusterPair {
    pub(super) async fn new(own: KubeApi, east: KubeApi) -> Self {
        let (system, shop) = (own.namespace("istio-system").await, own.own_name("shop"));
        let own = CartCluster::new(own, &shop, "10.1.0.1").await;
        Self { own, east: CartCluster::new(east, &shop, "10.2.0.1").await, system }
    }

    pub(super) async fn config_cluster(&self) -> ConfigCluster {
        let (system, shop) = (self.system.clone(), self.own.shop.clone());
        ConfigCluster { client: super::client(&self.own.api).await, system, shop }
    }

    /// Applies a Secret with a kubeconfig of the cluster `east`.
    pub(super) async fn apply_kubeconfig(&self, name: &str, kubeconfig: &Value) {
        let data = json!({"east": STANDARD.encode(kubeconfig.to_string())});
        let metadata = json!({"name": name, "namespace": self.system, "labels": {"istio/multiCluster": "true"}});
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data});
        self.own.api.apply(secret).await;
    }

    pub(super) async fn delete_kubeconfig(&self, name: &str) {
        self.own.api.delete("v1", "Secret", &self.system, name).await;
    }
}

with_api_server!(new_credentials_keep_the_objects_read_with_the_old_ones, own, own_remote);
async fn new_credentials_keep_the_objects_read_with_the_old_ones(own: KubeApi, own_remote: KubeApi) {
    let clusters = ClusterPair::new(own, own_remote).await;
    let east = &clusters.east;
    east.slice("cart-2", "10.2.0.2").await;
    let old = east.api.add_account("old").await;
    east.api.permit("old", true).await;
    let new = east.api.add_account("new").await;
    clusters.apply_kubeconfig("remote", &old).await;
    let mesh = RemoteClustersFixture::start_with_long_timeout(clusters.config_cluster().await).await;
    mesh.has(&["east 10.2.0.1", "east 10.2.0.2", "own 10.1.0.1"]).await;

    // The reader with the new credentials is not synced, so the old reader continues.
    clusters.apply_kubeconfig("remote", &new).await;
    mesh.is("east", Some(SyncStatus::Syncing)).await;
    east.slice("cart-3", "10.2.0.3").await;
    mesh.has(&["east 10.2.0.1", "east 10.2.0.2", "east 10.2.0.3", "own 10.1.0.1"]).await;

    // The old watches end, and an object is deleted without an event.
    east.api.permit("old", false).await;
    east.api.disconnect();
    east.api.delete("discovery.k8s.io/v1", "EndpointSlice", &east.shop, "cart-2").await;
    east.slice("cart-4", "10.2.0.4").await;
    east.api.permit("new", true).await;
    mesh.has(&["east 10.2.0.1", "east 10.2.0.3", "east 10.2.0.4", "own 10.1.0.1"]).await;
    mesh.is("east", Some(SyncStatus::Synced)).await;
    assert_eq!(mesh.deletions(), ["EndpointSlice east/cart-2"], "no other object was ever deleted");
    east.slice("cart-1", "10.2.0.5").await;
    mesh.has(&["east 10.2.0.3", "east 10.2.0.4", "east 10.2.0.5", "own 10.1.0.1"]).await;
    mesh.is_as_from_scratch().await;

    // Credentials that replace others before those are synced, and credentials that are reverted.
    clusters.apply_kubeconfig("remote", &east.api.add_account("without-rights").await).await;
    mesh.is("east", Some(SyncStatus::Syncing)).await;
    clusters.apply_kubeconfig("remote", &new).await;
    mesh.is("east", Some(SyncStatus::Synced)).await;
    // Another Secret may declare the same cluster.
    clusters.apply_kubeconfig("remote-2", &new).await;
    mesh.finds("remote-2", &[(Severity::Error, "data[east]")]).await;
    clusters.delete_kubeconfig("remote").await;
    mesh.finds("remote-2", &[]).await;
    let other = format!("{}/remote-2", clusters.system);
    until("the other Secret declares the cluster", || {
        (mesh.states.all()[1].secret_name.to_string() == other).then_some(())
    })
    .await;
    assert_eq!(mesh.deletions().len(), 1);
    mesh.is_as_from_scratch().await;
}

with_api_server!(an_unreadable_kind_delays_the_start_only_until_the_timeout, shared, remote);
async fn an_unreadable_kind_delays_the_start_only_until_the_timeout(shared: KubeApi, remote: KubeApi) {
    let clusters = ClusterPair::new(shared, remote).await;
    let east = &clusters.east;
    east.api.forbid("pods", true).await;
    let old = east.api.add_account("old").await;
    east.api.permit("old", true).await;
    clusters.apply_kubeconfig("remote", &old).await;
    let timeout = Duration::from_millis(100);
    let mesh = RemoteClustersFixture::start(clusters.config_cluster().await, timeout, &[]).await;
    assert_eq!(mesh.status("east"), Some(SyncStatus::Timeout));
    let timeouts = "remote_cluster_sync_timeouts_total{cluster=\"east\"} 1";
    assert!(mesh.metrics().lines().any(|line| line == timeouts), "{}", mesh.metrics());
    // The readable part of the cluster is used, and the rest when it becomes readable.
    mesh.has(&["east 10.2.0.1", "own 10.1.0.1"]).await;
    // New credentials may not read the rest either. They replace the old ones, which had not read the whole cluster.
    east.slice("cart-2", "10.2.0.2").await;
    let new = east.api.add_account("new").await;
    east.api.permit("new", true).await;
    clusters.apply_kubeconfig("remote", &new).await;
    east.api.permit("old", false).await;
    east.api.disconnect();
    east.slice("cart-3", "10.2.0.3").await;
    mesh.has(&["east 10.2.0.1", "east 10.2.0.2", "east 10.2.0.3", "own 10.1.0.1"]).await;
    assert_eq!(mesh.deletions(), Vec::<String>::new());
    east.api.forbid("pods", false).await;
    mesh.is("east", Some(SyncStatus::Synced)).await;
}

with_api_server!(tokens_are_reviewed_by_remote_clusters, shared, remote);
async fn tokens_are_reviewed_by_remote_clusters(shared: KubeApi, remote: KubeApi) {
    let clusters = ClusterPair::new(shared, remote).await;
    let (own, east, shop) = (&clusters.own.api, &clusters.east.api, &clusters.own.shop);
    let (own_token, _) = own.pod_token(shop, "own", "pod-of-own").await;
    let (east_token, _) = east.pod_token(shop, "east", "pod-of-east").await;
    let mesh = RemoteClustersFixture::start_with_long_timeout(clusters.config_cluster().await).await;
    let audiences = ["istio-ca".to_owned()];
    let trust_domain = TrustDomain::new("td".into());
    let tokens = ReviewedTokens::new(mesh.clients.clone(), OWN.into(), BTreeMap::new(), &audiences, trust_domain);
    let ask = async |token: &str, cluster: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {token}")).expect("a header"));
        headers.insert("clusterid", HeaderValue::from_str(cluster).expect("a header"));
        match tokens.authenticate(&Call { headers: &headers, peer: None, certificates: &[] }).await {
            Verdict::Pod(identity, pod) => {
                assert_eq!(pod.cluster.as_str(), cluster, "the cluster that reviewed the token");
                identity.to_string()
            }
            Verdict::Rejected(reason) => reason,
            other => panic!("{other:?}"),
        }
    };
    let unknown = "the caller names cluster \"east\"; known clusters are [\"own\"]";
    assert_eq!(ask(&east_token, "east").await, unknown);
    clusters.apply_kubeconfig("remote", &east.kubeconfig(Route::Proxied)).await;
    mesh.is("east", Some(SyncStatus::Synced)).await;
    assert_eq!(ask(&east_token, "east").await, format!("spiffe://td/ns/{shop}/sa/east"));
    assert_eq!(ask(&own_token, OWN).await, format!("spiffe://td/ns/{shop}/sa/own"));
    // A token is valid in its own cluster only.
    let made_up = "made-up".to_owned();
    for (token, cluster) in [(&east_token, OWN), (&own_token, "east"), (&east_token, ""), (&made_up, OWN)] {
        assert_eq!(ask(token, cluster).await, "the Kubernetes API rejects the token", "{token} {cluster}");
    }
    clusters.delete_kubeconfig("remote").await;
    mesh.is("east", None).await;
    assert_eq!(ask(&east_token, "east").await, unknown);
}
