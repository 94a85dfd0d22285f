//! The certificate authority in a cluster: its Secret, the ConfigMaps in every namespace, and reviews of tokens.

mod external;
mod leader;
mod roots;
mod server;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use sluice_auth::{Authenticator, Call, PodName, ReviewedTokens, TrustDomain, Verdict};
use sluice_authority::{AuthorityConfig, AuthorityError, AuthorityKeeper, BundleWriter, TrustBundle};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, build};
use sluice_model::{Identity, Namespace, ObjectKey};
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::wait::until;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SYSTEM: &str = "istio-system";

async fn open(server: &ApiServer, config: AuthorityConfig) -> Result<AuthorityKeeper, AuthorityError> {
    let client = server.client().expect("a client");
    AuthorityKeeper::open(config, Some((client, SYSTEM.into())), "td.example").await
}

fn secret(server: &ApiServer, name: &str) -> Option<Value> {
    server.get("", "secrets", SYSTEM, name)
}

fn data(object: &Value, key: &str) -> String {
    let text = object["data"][key].as_str().expect("the key is there");
    String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text")
}

/// The size of a certificate's key, if that is RSA.
fn rsa_bits(pem: &str) -> Option<usize> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
    let certificate = pem.parse_x509().expect("a certificate");
    match certificate.public_key().parsed().expect("a key") {
        x509_parser::public_key::PublicKey::RSA(key) => Some(key.key_size()),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_is_created_once_in_its_secret() {
    let server = ApiServer::start().await.expect("a server");
    let first = open(&server, AuthorityConfig::default()).await.expect("made");
    let created = secret(&server, "istio-ca-secret").expect("it is kept");
    assert_eq!(created["type"], "istio.io/ca-root");
    let keys: Vec<&String> = created["data"].as_object().expect("data").keys().collect();
    assert_eq!(keys, ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "key.pem", "root-cert.pem"]);
    assert_eq!(data(&created, "ca-cert.pem"), first.signer().current().roots_pem());
    assert_eq!(data(&created, "root-cert.pem"), data(&created, "ca-cert.pem"));
    assert!(data(&created, "ca-key.pem").starts_with("-----BEGIN PRIVATE KEY-----"));
    assert_eq!(rsa_bits(&data(&created, "ca-cert.pem")), Some(2048), "the size of istiod's");

    // Another replica, and one configured to use `cacerts`, load the existing authority.
    for in_cacerts in [false, true] {
        let next = open(&server, AuthorityConfig { in_cacerts, ..AuthorityConfig::default() }).await.expect("loaded");
        assert_eq!(next.signer().current().roots_pem(), first.signer().current().roots_pem());
    }
    assert_eq!((server.count("create", "secrets"), secret(&server, "cacerts")), (1, None));

    let server = ApiServer::start().await.expect("a server");
    open(&server, AuthorityConfig { in_cacerts: true, ..AuthorityConfig::default() }).await.expect("made");
    let created = secret(&server, "cacerts").expect("it is kept");
    assert_eq!(data(&created, "istio-generated"), "");

    let server = ApiServer::start().await.expect("a server");
    let root_key = Some(sluice_ca::NewKey::EcdsaP256);
    open(&server, AuthorityConfig { root_key, ..AuthorityConfig::default() }).await.expect("made");
    assert_eq!(rsa_bits(&data(&secret(&server, "istio-ca-secret").expect("it is kept"), "ca-cert.pem")), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugged_in_authority_is_read_from_its_secret() {
    let server = ApiServer::start().await.expect("a server");
    let root = sluice_ca::root::create("org", sluice_ca::NewKey::EcdsaP256, Duration::from_secs(86400), now())
        .expect("a root");
    let encode = |text: &str| STANDARD.encode(text);
    server.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": SYSTEM, "name": "cacerts"},
        "data": {
            "ca-cert.pem": encode(&root.certificate), "ca-key.pem": encode(&root.key),
            "cert-chain.pem": encode(&root.certificate), "root-cert.pem": encode(&root.roots),
        },
    }));
    let remote = AuthorityConfig { remote_certs: true, ..AuthorityConfig::default() };
    let keeper = open(&server, remote).await.expect("loaded");
    assert_eq!(keeper.signer().current().roots_pem(), root.roots);
    assert_eq!(secret(&server, "istio-ca-secret"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_secret_is_named_without_its_key() {
    let server = ApiServer::start().await.expect("a server");
    let root = || {
        sluice_ca::root::create("td", sluice_ca::NewKey::EcdsaP256, Duration::from_secs(86400), now()).expect("a root")
    };
    let (one, other) = (root(), root());
    server.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": SYSTEM, "name": "istio-ca-secret"},
        "data": {"ca-cert.pem": STANDARD.encode(&one.certificate), "ca-key.pem": STANDARD.encode(other.key.as_str())},
    }));
    let error = open(&server, AuthorityConfig::default()).await.err().expect("it cannot be used").to_string();
    assert_eq!(
        error,
        "certificate authority in Secret istio-ca-secret: private key: does not match the signing certificate"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_api_server_is_retried() {
    let server = ApiServer::start().await.expect("a server");
    server.forbid("secrets", true);
    let opening = tokio::spawn({
        let client = server.client().expect("a client");
        async move { AuthorityKeeper::open(AuthorityConfig::default(), Some((client, SYSTEM.into())), "td").await.is_ok() }
    });
    until("it is requested twice", || (server.count("get", "secrets") > 1).then_some(())).await;
    server.forbid("secrets", false);
    assert!(opening.await.expect("no panic"));
    assert!(secret(&server, "istio-ca-secret").is_some());
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    i64::try_from(since.as_secs()).expect("a time")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiring_root_is_renewed_by_one_replica_and_read_by_the_others() {
    let server = ApiServer::start().await.expect("a server");
    let old = sluice_ca::root::create("td", sluice_ca::NewKey::EcdsaP256, Duration::from_secs(10_000), now() - 9_000)
        .expect("a root");
    server.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": SYSTEM, "name": "istio-ca-secret"},
        "data": {
            "ca-cert.pem": STANDARD.encode(&old.certificate), "ca-key.pem": STANDARD.encode(old.key.as_str()),
            "of-another-writer": STANDARD.encode("else"),
        },
    }));
    let config =
        || AuthorityConfig { check_interval: Duration::from_millis(50), jitter: false, ..AuthorityConfig::default() };
    let keepers = [open(&server, config()).await.expect("loaded"), open(&server, config()).await.expect("loaded")];
    let signers: Vec<_> = keepers.iter().map(AuthorityKeeper::signer).collect();
    let stop = CancellationToken::new();
    for keeper in keepers {
        tokio::spawn(keeper.run(stop.clone()));
    }
    let renewed = until("both sign with the new root", || {
        let stored = data(&secret(&server, "istio-ca-secret")?, "ca-cert.pem");
        let is_new = stored != old.certificate && signers.iter().all(|signer| signer.current().roots_pem() == stored);
        is_new.then_some(stored)
    })
    .await;
    stop.cancel();
    let stored = secret(&server, "istio-ca-secret").expect("it is there");
    assert_eq!(data(&stored, "ca-key.pem"), *old.key, "the key does not change");
    assert_eq!(data(&stored, "of-another-writer"), "else");
    let certificate = sluice_ca::Certificate::from_pem("root", &renewed).expect("a certificate");
    assert!(certificate.not_after > now() + 3649 * 86400);
}

/// A bundle writer over a graph with namespaces.
struct BundleWriterFixture {
    server: ApiServer,
    /// The engine runs as long as there is a handle.
    _engine: Engine,
    handles: sluice_graph::Handles,
    bundle: watch::Sender<TrustBundle>,
    stop: CancellationToken,
}

impl BundleWriterFixture {
    async fn start() -> Self {
        let server = ApiServer::start().await.expect("a server");
        let (engine, handles) =
            Engine::start(EngineOptions::default(), |builder| build(builder, &GraphOptions::default()));
        engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
        let (bundle, receiver) = watch::channel(TrustBundle { roots: "one".into(), ..TrustBundle::default() });
        let writer = BundleWriter::new(
            server.client().expect("a client"),
            "east".into(),
            None,
            engine.feed(),
            handles.namespaces.clone(),
            receiver,
            ("istio-ca-root-cert", Some("istio-ca-crl")),
        );
        let stop = CancellationToken::new();
        tokio::spawn(writer.run(stop.clone()));
        Self { server, _engine: engine, handles, bundle, stop }
    }

    fn namespace(&self, cluster: &str, name: &str) {
        let key = ObjectKey::new(cluster, "", name);
        self.handles.inputs.namespaces.set(key, Namespace::default());
    }

    fn text(&self, namespace: &str, name: &str, key: &str) -> Option<String> {
        let object = self.server.get("", "configmaps", namespace, name)?;
        assert_eq!(object["metadata"]["labels"]["istio.io/config"], "true");
        object["data"][key].as_str().map(str::to_owned)
    }

    async fn has(&self, namespace: &str, roots: &str) {
        until(&format!("{namespace} has {roots}"), || {
            (self.text(namespace, "istio-ca-root-cert", "root-cert.pem")? == roots).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_namespace_has_the_root_config_map_restored() {
    let fixture = BundleWriterFixture::start().await;
    for (cluster, name) in [("east", "shop"), ("east", "kube-public"), ("east", "kube-system"), ("west", "bank")] {
        fixture.namespace(cluster, name);
    }
    fixture.has("shop", "one").await;
    fixture.has("kube-system", "one").await;
    fixture.bundle.send_replace(TrustBundle { roots: "two".into(), revoked: "list".into(), ..TrustBundle::default() });
    fixture.has("shop", "two").await;
    until("the revocation lists are written", || {
        (fixture.text("shop", "istio-ca-crl", "ca-crl.pem")? == "list").then_some(())
    })
    .await;
    fixture.namespace("east", "late");
    fixture.has("late", "two").await;
    fixture.server.delete("configmaps", "shop", "istio-ca-root-cert");
    fixture.has("shop", "two").await;
    fixture.server.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "late", "name": "istio-ca-root-cert", "labels": {"istio.io/config": "true"}},
        "data": {"root-cert.pem": "forged", "mine": "kept"},
    }));
    fixture.has("late", "two").await;
    let late = fixture.server.get("", "configmaps", "late", "istio-ca-root-cert").expect("it is there");
    assert_eq!(late["data"]["mine"], "kept");
    for without in ["kube-public", "bank"] {
        assert_eq!(fixture.server.get("", "configmaps", without, "istio-ca-root-cert"), None, "{without}");
    }
    fixture.stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_reviewed_by_the_cluster_of_the_caller() {
    let (own, remote) = (ApiServer::start().await.expect("a server"), ApiServer::start().await.expect("a server"));
    let status = |account: &str| {
        json!({
            "authenticated": true, "audiences": ["istio-ca"],
            "user": {
                "username": format!("system:serviceaccount:shop:{account}"), "groups": ["system:serviceaccounts"],
                "extra": {"authentication.kubernetes.io/pod-name": ["p"], "authentication.kubernetes.io/pod-uid": ["u"]},
            },
        })
    };
    own.review("own-token", status("own"));
    remote.review("remote-token", status("remote"));
    let clients = BTreeMap::from([
        ("own".into(), own.client().expect("a client")),
        ("remote".into(), remote.client().expect("a client")),
    ]);
    let aliases = BTreeMap::from([("far".into(), "remote".into())]);
    let audiences = ["istio-ca".to_owned()];
    let tokens = ReviewedTokens::new(clients.into(), "own".into(), aliases, &audiences, TrustDomain::new("td".into()));
    let authenticate = async |token: &str, cluster: &str| {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("a header");
        headers.insert("authorization", value);
        if !cluster.is_empty() {
            headers.insert("clusterid", HeaderValue::from_str(cluster).expect("a header"));
        }
        tokens.authenticate(&Call { headers: &headers, peer: None, certificates: &[] }).await
    };
    let expected = |account: &str, cluster: &str| {
        let pod = PodName { cluster: cluster.into(), namespace: "shop".into(), name: "p".into(), uid: "u".into() };
        Verdict::Pod(Identity::new("td", "shop", account), pod)
    };
    for name in ["", "own"] {
        assert_eq!(authenticate("own-token", name).await, expected("own", "own"));
    }
    for name in ["remote", "far"] {
        assert_eq!(authenticate("remote-token", name).await, expected("remote", "remote"));
    }
    for (token, cluster) in [("own-token", "remote"), ("remote-token", ""), ("own-token", "elsewhere"), ("none", "own")]
    {
        let verdict = authenticate(token, cluster).await;
        assert!(
            matches!(&verdict, Verdict::Rejected(reason) if !reason.contains(token)),
            "{token} {cluster}: {verdict:?}"
        );
    }
    own.review("later-token", status("own"));
    own.forbid("tokenreviews", true);
    assert!(
        matches!(authenticate("later-token", "").await, Verdict::Rejected(reason) if reason.contains("cannot review the token"))
    );
}
