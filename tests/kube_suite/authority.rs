//! The Secret of the certificate authority, and reviews of tokens.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use sluice_auth::{Authenticator, Call, PodName, ReviewedTokens, TrustDomain, Verdict};
use sluice_authority::{AuthorityConfig, AuthorityError, AuthorityKeeper};
use sluice_ca::{Material, NewKey};
use sluice_model::Identity;
use sluice_testkit::kube_api::KubeApi;
use sluice_testkit::wait::until_async;
use tokio_util::sync::CancellationToken;

use super::client;

const OWN_SECRET: &str = "istio-ca-secret";

/// A namespace with the Secrets of authorities.
struct SecretsNamespace<'a> {
    api: &'a KubeApi,
    name: String,
}

impl<'a> SecretsNamespace<'a> {
    async fn new(api: &'a KubeApi, name: &str) -> Self {
        Self { api, name: api.namespace(name).await }
    }

    async fn open(&self, config: AuthorityConfig) -> Result<AuthorityKeeper, AuthorityError> {
        AuthorityKeeper::open(config, Some((client(self.api).await, (&*self.name).into())), "td.example").await
    }

    async fn secret(&self, name: &str) -> Option<Value> {
        self.api.get("v1", "Secret", &self.name, name).await
    }

    async fn apply(&self, name: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<_, _> = data.iter().map(|(key, text)| (*key, STANDARD.encode(text))).collect();
        let metadata = json!({"namespace": self.name, "name": name});
        self.api.apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})).await;
    }
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

with_api_server!(a_root_is_created_once_in_its_secret, shared);
async fn a_root_is_created_once_in_its_secret(api: KubeApi) {
    let namespace = SecretsNamespace::new(&api, "one").await;
    let first = namespace.open(AuthorityConfig::default()).await.expect("made");
    let created = namespace.secret(OWN_SECRET).await.expect("it is kept");
    assert_eq!(created["type"], "istio.io/ca-root");
    let keys: Vec<&String> = created["data"].as_object().expect("data").keys().collect();
    assert_eq!(keys, ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "key.pem", "root-cert.pem"]);
    assert_eq!(data(&created, "ca-cert.pem"), first.signer().current().roots_pem());
    assert_eq!(data(&created, "root-cert.pem"), data(&created, "ca-cert.pem"));
    assert!(data(&created, "ca-key.pem").starts_with("-----BEGIN PRIVATE KEY-----"));
    assert_eq!(rsa_bits(&data(&created, "ca-cert.pem")), Some(2048), "the size of istiod's");

    // Another replica, and one configured to use `cacerts`, load the existing authority.
    for in_cacerts in [false, true] {
        let next = namespace.open(AuthorityConfig { in_cacerts, ..AuthorityConfig::default() }).await.expect("loaded");
        assert_eq!(next.signer().current().roots_pem(), first.signer().current().roots_pem());
    }
    assert_eq!((api.count("create", "secrets"), namespace.secret("cacerts").await), (1, None));

    let namespace = SecretsNamespace::new(&api, "two").await;
    namespace.open(AuthorityConfig { in_cacerts: true, ..AuthorityConfig::default() }).await.expect("made");
    let created = namespace.secret("cacerts").await.expect("it is kept");
    assert_eq!(data(&created, "istio-generated"), "");

    let namespace = SecretsNamespace::new(&api, "three").await;
    let root_key = Some(NewKey::EcdsaP256);
    namespace.open(AuthorityConfig { root_key, ..AuthorityConfig::default() }).await.expect("made");
    let created = namespace.secret(OWN_SECRET).await.expect("it is kept");
    assert_eq!(rsa_bits(&data(&created, "ca-cert.pem")), None);
}

with_api_server!(replicas_that_start_together_have_one_root, shared);
async fn replicas_that_start_together_have_one_root(api: KubeApi) {
    let namespace = SecretsNamespace::new(&api, "one").await;
    let config = || AuthorityConfig { root_key: Some(NewKey::EcdsaP256), ..AuthorityConfig::default() };
    let opened = tokio::join!(namespace.open(config()), namespace.open(config()), namespace.open(config()));
    let roots =
        [opened.0, opened.1, opened.2].map(|keeper| keeper.expect("opened").signer().current().roots_pem().to_owned());
    let stored = data(&namespace.secret(OWN_SECRET).await.expect("it is kept"), "ca-cert.pem");
    assert!(roots.iter().all(|root| *root == stored), "{roots:?} and not {stored}");
}

with_api_server!(a_plugged_in_authority_is_read_from_its_secret, shared);
async fn a_plugged_in_authority_is_read_from_its_secret(api: KubeApi) {
    let namespace = SecretsNamespace::new(&api, "one").await;
    let root = root("org", Duration::from_secs(86400), now());
    let files = [
        ("ca-cert.pem", root.certificate.as_str()),
        ("ca-key.pem", root.key.as_str()),
        ("cert-chain.pem", root.certificate.as_str()),
        ("root-cert.pem", root.roots.as_str()),
    ];
    namespace.apply("cacerts", &files).await;
    let remote = AuthorityConfig { remote_certs: true, ..AuthorityConfig::default() };
    let keeper = namespace.open(remote).await.expect("loaded");
    assert_eq!(keeper.signer().current().roots_pem(), root.roots);
    assert_eq!(namespace.secret(OWN_SECRET).await, None);
}

with_api_server!(an_unusable_secret_is_named_without_its_key, shared);
async fn an_unusable_secret_is_named_without_its_key(api: KubeApi) {
    let namespace = SecretsNamespace::new(&api, "one").await;
    let [one, other] = [1, 2].map(|_| root("td", Duration::from_secs(86400), now()));
    let files = [("ca-cert.pem", one.certificate.as_str()), ("ca-key.pem", other.key.as_str())];
    namespace.apply(OWN_SECRET, &files).await;
    let error = namespace.open(AuthorityConfig::default()).await.err().expect("it cannot be used").to_string();
    assert_eq!(
        error,
        "certificate authority in Secret istio-ca-secret: private key: does not match the signing certificate"
    );
}

with_api_server!(forbidden_secrets_are_requested_again, shared);
async fn forbidden_secrets_are_requested_again(api: KubeApi) {
    let namespace = SecretsNamespace::new(&api, "one").await;
    api.forbid("secrets", true).await;
    let permit = async {
        until_async("it is requested twice", async || (api.count("get", "secrets") > 1).then_some(())).await;
        api.forbid("secrets", false).await;
    };
    let (opened, ()) = tokio::join!(namespace.open(AuthorityConfig::default()), permit);
    assert!(opened.is_ok() && namespace.secret(OWN_SECRET).await.is_some());
}

pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    i64::try_from(since.as_secs()).expect("a time")
}

pub(super) fn root(organization: &str, lifetime: Duration, begins: i64) -> Material {
    sluice_ca::root::create(organization, NewKey::EcdsaP256, lifetime, begins).expect("a root")
}

with_api_server!(an_expiring_root_is_renewed_by_one_replica_and_read_by_the_others, shared);
async fn an_expiring_root_is_renewed_by_one_replica_and_read_by_the_others(api: KubeApi) {
    let namespace = SecretsNamespace::new(&api, "one").await;
    let old = root("td", Duration::from_secs(10_000), now() - 9_000);
    let (certificate, key) = (old.certificate.as_str(), old.key.as_str());
    let files = [("ca-cert.pem", certificate), ("ca-key.pem", key), ("of-another-writer", "else")];
    namespace.apply(OWN_SECRET, &files).await;
    let config =
        || AuthorityConfig { check_interval: Duration::from_millis(50), jitter: false, ..AuthorityConfig::default() };
    let keepers = [namespace.open(config()).await.expect("loaded"), namespace.open(config()).await.expect("loaded")];
    let signers: Vec<_> = keepers.iter().map(AuthorityKeeper::signer).collect();
    let stop = CancellationToken::new();
    for keeper in keepers {
        tokio::spawn(keeper.run(stop.clone()));
    }
    let renewed = until_async("both sign with the new root", async || {
        let stored = data(&namespace.secret(OWN_SECRET).await?, "ca-cert.pem");
        let is_new = stored != old.certificate && signers.iter().all(|signer| signer.current().roots_pem() == stored);
        is_new.then_some(stored)
    })
    .await;
    stop.cancel();
    let stored = namespace.secret(OWN_SECRET).await.expect("it is there");
    assert_eq!(data(&stored, "ca-key.pem"), *old.key, "the key does not change");
    assert_eq!(data(&stored, "of-another-writer"), "else");
    let certificate = sluice_ca::Certificate::from_pem("root", &renewed).expect("a certificate");
    assert!(certificate.not_after > now() + 3649 * 86400);
}

with_api_server!(tokens_are_reviewed_by_the_cluster_of_the_caller, shared, remote);
async fn tokens_are_reviewed_by_the_cluster_of_the_caller(own: KubeApi, remote: KubeApi) {
    let (own_shop, remote_shop) = (own.namespace("shop").await, remote.namespace("shop").await);
    let (own_token, own_uid) = own.pod_token(&own_shop, "cart", "own").await;
    let (remote_token, remote_uid) = remote.pod_token(&remote_shop, "till", "remote").await;
    let clients = BTreeMap::from([("own".into(), client(&own).await), ("remote".into(), client(&remote).await)]);
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
    let expected = |namespace: &str, account: &str, cluster: &str, uid: &str| {
        let (cluster, namespace_name) = (cluster.into(), namespace.into());
        let name = if account == "cart" { "own" } else { "remote" }.into();
        let pod = PodName { cluster, namespace: namespace_name, name, uid: uid.into() };
        Verdict::Pod(Identity::new("td", namespace, account), pod)
    };
    for name in ["", "own"] {
        assert_eq!(authenticate(&own_token, name).await, expected(&own_shop, "cart", "own", &own_uid));
    }
    for name in ["remote", "far"] {
        assert_eq!(authenticate(&remote_token, name).await, expected(&remote_shop, "till", "remote", &remote_uid));
    }
    let refused = [(&*own_token, "remote"), (&remote_token, ""), (&own_token, "elsewhere"), ("none", "own")];
    for (token, cluster) in refused {
        let verdict = authenticate(token, cluster).await;
        assert!(
            matches!(&verdict, Verdict::Rejected(reason) if !reason.contains(token)),
            "{token} {cluster}: {verdict:?}"
        );
    }
    let (later, _) = own.pod_token(&own_shop, "cart", "later").await;
    own.proxy().refuse();
    assert!(
        matches!(authenticate(&later, "").await, Verdict::Rejected(reason) if reason.contains("cannot review the token"))
    );
}
