//! Certificates from a signer behind the Kubernetes API (P09).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    CertificateParams, DistinguishedName, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
    SignatureAlgorithm,
};
use serde_json::{Value, json};
use sluice_authority::{KubernetesSigner, SignerConfig};
use sluice_ca::{IssueError, Issued, LifetimeLimits};
use sluice_model::{CaCertificate, MeshConfig};
use sluice_testkit::kube_api::KubeApi;
use sluice_testkit::wait::until_async;
use tokio::task::JoinHandle;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

const CART: &str = "spiffe://td/ns/shop/sa/cart";
const API: (&str, &str) = ("certificates.k8s.io/v1", "CertificateSigningRequest");
/// The resource of [`API`].
pub(super) const REQUESTS: &str = "certificatesigningrequests";

/// A signing request of a workload that contains its own identity.
fn request() -> String {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(CART.try_into().expect("a name"))];
    params.serialize_request(&key).expect("a request").pem().expect("the PEM text")
}

/// What a signer does with an approved request.
pub(super) enum Answer {
    /// It signs: the certificate, PEM.
    Certificate(String),
    /// It fails for this reason.
    Failure(&'static str),
    /// It does not answer.
    None,
}

/// The objects of one signer.
#[derive(Clone)]
struct Requests {
    api: Arc<KubeApi>,
    signer: String,
}

impl Requests {
    async fn list(&self) -> Vec<Value> {
        let mut all = self.api.list(API.0, API.1).await;
        all.retain(|object| object["spec"]["signerName"] == self.signer);
        all
    }

    /// Approved requests without an answer.
    async fn open(&self) -> Vec<Value> {
        let mut all = self.list().await;
        all.retain(|object| {
            let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_approved = matches!(conditions, [approved] if approved["type"] == "Approved");
            is_approved && object["status"]["certificate"].is_null()
        });
        all
    }

    /// Writes the answer to a request. The request may be deleted in this moment, because its caller is gone.
    async fn answer(&self, object: &Value, answer: Answer) {
        let status = match answer {
            Answer::Certificate(pem) => json!({"certificate": STANDARD.encode(pem)}),
            Answer::Failure(message) => {
                let mut conditions = object["status"]["conditions"].clone();
                let failed = json!({"type": "Failed", "status": "True", "reason": "Refused", "message": message});
                conditions.as_array_mut().expect("it is approved").push(failed);
                json!({"conditions": conditions})
            }
            Answer::None => return,
        };
        let name = object["metadata"]["name"].as_str().expect("a name");
        self.api.write_status(API.0, API.1, ("", name), status).await;
    }
}

/// A signer of a name that only it has. It answers approved requests.
pub(super) struct Signer {
    pub(super) name: String,
    pub(super) root: String,
    requests: Requests,
    signed: Arc<Mutex<Vec<Value>>>,
    signing: JoinHandle<()>,
}

impl Signer {
    pub(super) async fn start(
        api: &Arc<KubeApi>,
        name: &str,
        answer: impl Fn(&Issuer<'_, KeyPair>, &str) -> Answer + Send + 'static,
    ) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "signer");
        let root = params.self_signed(&key).expect("a root").pem();
        let issuer = Issuer::new(params, key);
        let signed = Arc::<Mutex<Vec<Value>>>::default();
        let name = format!("example.com/{}", api.own_name(name));
        let requests = Requests { api: api.clone(), signer: name.clone() };
        let (of, record) = (requests.clone(), signed.clone());
        let signing = tokio::spawn(async move {
            loop {
                for object in of.open().await {
                    let request = STANDARD.decode(object["spec"]["request"].as_str().expect("a request"));
                    let answer = answer(&issuer, &String::from_utf8(request.expect("base64")).expect("text"));
                    if matches!(answer, Answer::Certificate(_)) {
                        record.lock().expect("unpoisoned").push(object.clone());
                    }
                    of.answer(&object, answer).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { name, root, requests, signed, signing }
    }

    async fn client(&self, config: SignerConfig) -> KubernetesSigner {
        KubernetesSigner::new(super::client(&self.requests.api).await, config, LifetimeLimits::default())
    }

    /// This signer alone, with its root.
    fn config(&self) -> SignerConfig {
        SignerConfig { signer: self.name.clone(), roots: Some(self.root.clone()), ..SignerConfig::default() }
    }

    /// The name without the domain.
    fn short_name(&self) -> &str {
        self.name.split_once('/').expect("it has a domain").1
    }

    /// Number of requests that were created for all signers of the test.
    pub(super) fn created(&self) -> usize {
        self.requests.api.count("create", REQUESTS)
    }

    /// The first request that was signed. The API server may no longer have it.
    pub(super) fn first_signed(&self) -> Value {
        self.signed.lock().expect("unpoisoned").first().expect("a signed request").clone()
    }

    /// Waits until all requests are deleted.
    pub(super) async fn is_clean(&self) {
        until_async("the request is deleted", async || self.requests.list().await.is_empty().then_some(())).await;
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        self.signing.abort();
    }
}

/// The key of a request.
pub(super) struct RequestedKey(Vec<u8>);

impl RequestedKey {
    pub(super) fn of(request: &str) -> Self {
        let body: String = request.lines().filter(|line| !line.starts_with('-')).collect();
        let der = STANDARD.decode(body).expect("base64");
        let (_, parsed) = X509CertificationRequest::from_der(&der).expect("a request");
        Self(parsed.certification_request_info.subject_pki.subject_public_key.data.to_vec())
    }
}

impl PublicKeyData for RequestedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// A certificate of a name for the key of a request.
fn certify(issuer: &Issuer<'_, KeyPair>, request: &str, name: &str) -> Answer {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(name.try_into().expect("a name"))];
    Answer::Certificate(params.signed_by(&RequestedKey::of(request), issuer).expect("a certificate").pem())
}

fn sign(issuer: &Issuer<'_, KeyPair>, request: &str) -> Answer {
    certify(issuer, request, CART)
}

async fn issue(signer: &KubernetesSigner, named: &str) -> Result<Issued, IssueError> {
    signer.issue(&request(), &[CART.to_owned()], 3600, named).await
}

with_api_server!(a_signing_request_is_approved_signed_and_deleted, shared);
async fn a_signing_request_is_approved_signed_and_deleted(api: KubeApi) {
    let signer = Signer::start(&Arc::new(api), "mesh", sign).await;
    let issued = issue(&signer.client(signer.config()).await, "").await.expect("issued");
    assert_eq!(issued.chain.len(), 2);
    assert_eq!(issued.chain[1], signer.root);
    assert_eq!(sluice_ca::Certificate::from_pem("it", &issued.chain[0]).expect("a certificate").uris(), [CART]);
    let object = signer.first_signed();
    assert_eq!(object["spec"]["expirationSeconds"], 3600);
    assert_eq!(
        object["spec"]["usages"],
        json!(["digital signature", "key encipherment", "server auth", "client auth"])
    );
    assert!(object["metadata"]["name"].as_str().expect("a name").starts_with("csr-workload-"));
    signer.is_clean().await;
}

with_api_server!(callers_name_signers_of_the_domain_and_mesh_config_has_their_roots, shared);
async fn callers_name_signers_of_the_domain_and_mesh_config_has_their_roots(api: KubeApi) {
    let signer = Signer::start(&Arc::new(api), "mesh", sign).await;
    let config = SignerConfig { domain: "example.com".into(), ..SignerConfig::default() };
    let (signer_client, mesh_name) = (signer.client(config).await, signer.short_name());
    let error_of = |result: Result<Issued, IssueError>| result.expect_err("refused").to_string();
    assert!(error_of(issue(&signer_client, "").await).contains("names no signer"));
    for name in ["a/b", "../x", "a b", "ä"] {
        assert!(error_of(issue(&signer_client, name).await).contains("the name of the signer is invalid"), "{name}");
    }
    assert!(error_of(issue(&signer_client, mesh_name).await).contains("has no root"));
    // A signed request whose certificate is rejected is deleted too.
    signer.is_clean().await;
    let certificate = |signer_name: &str| CaCertificate {
        pem: signer.root.as_str().into(),
        cert_signers: vec![signer_name.into()],
        ..CaCertificate::default()
    };
    let mesh = |name: &str| MeshConfig { ca_certificates: vec![certificate(name)], ..MeshConfig::default() };
    signer_client.follow(&mesh("example.com/other"));
    assert!(error_of(issue(&signer_client, mesh_name).await).contains("has no root"));
    signer_client.follow(&mesh(&signer.name));
    assert_eq!(issue(&signer_client, mesh_name).await.expect("issued").chain[1], signer.root);
    assert_eq!(signer_client.roots(), std::slice::from_ref(&signer.root));
    let without_domain = signer.client(signer.config()).await;
    assert!(error_of(issue(&without_domain, mesh_name).await).contains("CERT_SIGNER_DOMAIN is not set"));
}

with_api_server!(requests_and_certificates_for_other_callers_are_rejected, shared);
async fn requests_and_certificates_for_other_callers_are_rejected(api: KubeApi) {
    // A signer that issues every certificate for the identity `vault`.
    let vault = |issuer: &Issuer<'_, KeyPair>, request: &str| certify(issuer, request, "spiffe://td/ns/bank/sa/vault");
    let signer = Signer::start(&Arc::new(api), "mesh", vault).await;
    let signer_client = signer.client(signer.config()).await;
    let error = issue(&signer_client, "").await.expect_err("refused");
    assert!(matches!(&error, IssueError::Sign(reason) if reason.contains("names")), "{error}");
    signer.is_clean().await;
    let created = signer.created();
    let other_identity = ["spiffe://td/ns/shop/sa/till".to_owned()];
    let error = signer_client.issue(&request(), &other_identity, 0, "").await.expect_err("refused");
    assert!(matches!(error, IssueError::Request(_)), "{error}");
    let long = signer_client.issue(&request(), &[CART.to_owned()], i64::MAX, "").await.expect_err("refused");
    assert!(matches!(long, IssueError::Lifetime { .. }), "{long}");
    assert_eq!(signer.created(), created, "no request was created");
}

with_api_server!(a_signer_that_fails_or_does_not_answer_is_an_error, shared);
async fn a_signer_that_fails_or_does_not_answer_is_an_error(api: KubeApi) {
    let api = Arc::new(api);
    let failing = Signer::start(&api, "failing", |_, _| Answer::Failure("no")).await;
    let error = issue(&failing.client(failing.config()).await, "").await.expect_err("refused").to_string();
    assert!(error.contains("refuses") && error.ends_with(": no"), "{error}");
    failing.is_clean().await;
    let silent = Signer::start(&api, "silent", |_, _| Answer::None).await;
    let config = SignerConfig { timeout: Duration::from_millis(100), ..silent.config() };
    let silent_client = silent.client(config).await;
    let error = issue(&silent_client, "").await.expect_err("refused").to_string();
    assert!(error.contains("is not signed after 0.1 s"), "{error}");
    silent.is_clean().await;
    api.forbid(REQUESTS, true).await;
    let error = issue(&silent_client, "").await.expect_err("refused").to_string();
    let expect = format!("cannot create a CertificateSigningRequest for {}", silent.name);
    assert!(error.contains(&expect), "{error}");
}

with_api_server!(roots_of_a_signer_are_read_again_when_their_file_changes, shared);
async fn roots_of_a_signer_are_read_again_when_their_file_changes(api: KubeApi) {
    let signer = Signer::start(&Arc::new(api), "mesh", sign).await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("root-cert.pem");
    let other = super::authority::root("td", Duration::from_secs(3600), super::authority::now()).certificate;
    let config = SignerConfig { roots_file: Some(file.clone()), roots: Some(other), ..signer.config() };
    let signer_client = Arc::new(signer.client(config).await);
    let _guard = signer_client.follow_file().expect("followed");
    let mut changes = signer_client.changes();
    assert!(issue(&signer_client, "").await.is_err(), "the signer has another root");
    std::fs::write(&file, "not a certificate").expect("written");
    std::fs::write(&file, &signer.root).expect("written");
    changes.changed().await.expect("followed");
    assert_eq!(signer_client.roots(), std::slice::from_ref(&signer.root));
    issue(&signer_client, "").await.expect("issued");
}

with_api_server!(signing_request_is_deleted_when_its_caller_is_gone, shared);
async fn signing_request_is_deleted_when_its_caller_is_gone(api: KubeApi) {
    let silent = Signer::start(&Arc::new(api), "silent", |_, _| Answer::None).await;
    let client = Arc::new(silent.client(silent.config()).await);
    let of = client.clone();
    let call = tokio::spawn(async move { issue(&of, "").await });
    until_async("the request is approved", async || (!silent.requests.open().await.is_empty()).then_some(())).await;
    call.abort();
    silent.is_clean().await;
    // The caller is gone before the API server has created the object.
    let created = silent.created();
    let of = client.clone();
    let call = tokio::spawn(async move { issue(&of, "").await });
    until_async("another request is created", async || (silent.created() > created).then_some(())).await;
    call.abort();
    silent.is_clean().await;
}

with_api_server!(signer_gets_the_request_without_the_callers_text, shared);
async fn signer_gets_the_request_without_the_callers_text(api: KubeApi) {
    let signer = Signer::start(&Arc::new(api), "mesh", sign).await;
    let text = format!("# a text\n{}# another\n", request());
    let issued = signer.client(signer.config()).await.issue(&text, &[CART.to_owned()], 3600, "").await;
    issued.expect("issued");
    let forwarded = STANDARD.decode(signer.first_signed()["spec"]["request"].as_str().expect("a request"));
    let forwarded = String::from_utf8(forwarded.expect("base64")).expect("text");
    assert!(forwarded.starts_with("-----BEGIN CERTIFICATE REQUEST-----\n") && !forwarded.contains('#'), "{forwarded}");
}
