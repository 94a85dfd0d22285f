//! Remote clusters whose kubeconfigs are in Secrets (S15). Each is an API server over real HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use sluice_auth::{Authenticator, Call, ReviewedTokens, TrustDomain, Verdict};
use sluice_model::{Identity, Kind, Proxy, ProxyKey, Severity};
use sluice_parse::kind_info;
use sluice_sources::kube::{SecretReviewer, SyncStatus};
use sluice_testkit::api_server::{self, ApiServer};
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until;

use crate::kube_suite::remote::{ConfigCluster, OWN, RemoteClustersFixture};

const SYSTEM: &str = "istio-system";
/// A text that no output may contain.
const SECRET_TEXT: &str = "hush-hush";

fn config_cluster(own: &ApiServer) -> ConfigCluster {
    ConfigCluster { client: own.client().expect("a client"), system: SYSTEM.to_owned(), shop: "shop".to_owned() }
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
    let mesh = RemoteClustersFixture::start_with_long_timeout(config_cluster(&own)).await;
    // No proxy is served before the remote clusters are synced.
    assert_eq!(mesh.endpoints(), ["east 10.2.0.1", "own 10.1.0.1", "west 10.3.0.1"]);
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
    mesh.is_as_from_scratch().await;

    own.delete("secrets", SYSTEM, "remote");
    mesh.has(&["own 10.1.0.1"]).await;
    assert_eq!(mesh.clients.ids(), [OWN]);
    mesh.is_as_from_scratch().await;
    apply_kubeconfigs(&own, "again", "2026-01-02T00:00:00Z", &kubeconfigs[1..]);
    mesh.has(&["own 10.1.0.1", "west 10.3.0.1"]).await;
    mesh.is_as_from_scratch().await;
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
    let mesh = RemoteClustersFixture::start_with_long_timeout(config_cluster(&own)).await;
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
    mesh.is_as_from_scratch().await;

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
    mesh.is_as_from_scratch().await;

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
    let with_token_files =
        RemoteClustersFixture::start(config_cluster(&own), Duration::from_secs(60), &["tokenFile"]).await;
    with_token_files.has(&["east 10.2.0.1", "own 10.1.0.1"]).await;
    std::fs::remove_file(&file).expect("remove the token");
}

/// Lets a server serve a kind of a CustomResourceDefinition.
fn define(server: &ApiServer, kind: Kind) {
    let info = kind_info(kind).expect("in the table");
    let (group, versions) = (info.group, info.versions.to_vec());
    server.define(api_server::ResourceKind { group, versions, name: info.name, plural: info.plural }, true);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_of_a_remote_cluster_lead_into_its_network() {
    let (own, east) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await);
    let gateway = |namespace: &str, address: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {
                "name": "east-west", "namespace": namespace,
                "labels": {"topology.istio.io/network": "far", "istio.io/rev": "of-the-remote-cluster"},
            },
            "spec": {
                "gatewayClassName": "istio-east-west", "addresses": [{"type": "IPAddress", "value": address}],
                "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE", "tls": {"mode": "Terminate"}}],
            },
        })
    };
    apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &[("east", east.kubeconfig(json!({})))]);
    let mesh = RemoteClustersFixture::start_with_long_timeout(config_cluster(&own)).await;
    assert_eq!(mesh.status("east"), Some(SyncStatus::Synced), "the kind need not be served");
    assert_eq!(east.count("list", "gateways"), 0);
    let addresses = || {
        let dump = mesh.engine.dump("network_gateways").expect("a collection");
        let all = dump.records().flat_map(|(_, all)| all.as_array().cloned().unwrap_or_default()).collect::<Vec<_>>();
        let shown =
            |it: &Value| format!("{} {}", it["cluster"].as_str().unwrap_or(""), it["address"].as_str().unwrap_or(""));
        all.iter().map(shown).collect::<Vec<String>>()
    };
    let are = async |expect: &[&str]| {
        until(&format!("the gateways are {expect:?}"), || (addresses() == expect).then_some(())).await
    };
    define(&east, Kind::KubernetesGateway);
    east.apply(gateway("shop", "203.0.113.1"));
    are(&["east 203.0.113.1"]).await;
    east.apply(gateway("shop", "203.0.113.2"));
    are(&["east 203.0.113.2"]).await;
    mesh.is_as_from_scratch().await;
    // It is no Gateway of this mesh.
    assert_eq!(mesh.engine.dump("kubernetes_gateways").expect("a collection").records().count(), 0);
    assert_eq!(mesh.engine.dump("remote_gateways").expect("a collection").records().count(), 1);
    east.delete("gateways", "shop", "east-west");
    are(&[]).await;
    east.apply(gateway("shop", "203.0.113.3"));
    are(&["east 203.0.113.3"]).await;
    own.delete("secrets", SYSTEM, "remote");
    are(&[]).await;
    mesh.is_as_from_scratch().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_remote_cluster_match_the_manifest() {
    let (own, east) = (cluster("10.1.0.1").await, cluster("10.2.0.1").await);
    define(&east, Kind::WorkloadEntry);
    define(&east, Kind::KubernetesGateway);
    apply_kubeconfigs(&own, "remote", "2026-01-01T00:00:00Z", &[("east", east.kubeconfig(json!({})))]);
    let mesh = RemoteClustersFixture::start_with_long_timeout(config_cluster(&own)).await;

    // Proxies of a cluster may read its Secrets if that cluster permits it. What the primary cluster permits has no effect.
    east.allow_reading_secrets("edge", "gateway", true);
    own.allow_reading_secrets("edge", "other", true);
    let (wanted, inputs) = (mesh.handles.wanted_secret_reviews.clone(), mesh.handles.inputs.clone());
    let reviewer = SecretReviewer::new(mesh.clients.clone(), mesh.engine.feed(), wanted, inputs.secret_reviews.clone());
    tokio::spawn(reviewer.run(mesh.stop.clone()));
    mesh.engine.transaction(|tx| inputs.mark_all_synced(tx));
    for account in ["gateway", "other"] {
        let proxy = Proxy {
            proven_cluster: Some("east".into()),
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
