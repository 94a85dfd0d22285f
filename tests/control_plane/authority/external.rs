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
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::wait::until;
use tokio::task::JoinHandle;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

const CART: &str = "spiffe://td/ns/shop/sa/cart";
const GROUP: &str = "certificates.k8s.io";
pub(crate) const REQUESTS: &str = "certificatesigningrequests";

/// A signing request of a workload that contains its own identity.
fn request() -> String {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(CART.try_into().expect("a name"))];
    params.serialize_request(&key).expect("a request").pem().expect("the PEM text")
}

/// A signer that signs approved requests as requested.
pub(crate) struct Signer {
    pub(crate) server: Arc<ApiServer>,
    pub(crate) root: String,
    signed: Arc<Mutex<Vec<Value>>>,
    signing: JoinHandle<()>,
}

impl Signer {
    pub(crate) async fn start(answer: impl Fn(&Issuer<'_, KeyPair>, &str) -> Value + Send + 'static) -> Self {
        let server = Arc::new(ApiServer::start().await.expect("a server"));
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "signer");
        let root = params.self_signed(&key).expect("a root").pem();
        let issuer = Issuer::new(params, key);
        let signed = Arc::<Mutex<Vec<Value>>>::default();
        let (of, record) = (server.clone(), signed.clone());
        let signing = tokio::spawn(async move {
            loop {
                for mut object in of.list(GROUP, REQUESTS) {
                    let approved = object["status"]["conditions"][0]["type"] == "Approved";
                    if approved && object["status"]["certificate"].is_null() {
                        let request = STANDARD.decode(object["spec"]["request"].as_str().expect("a request"));
                        let request = String::from_utf8(request.expect("base64")).expect("text");
                        let status = answer(&issuer, &request);
                        if status.is_null() {
                            continue;
                        }
                        record.lock().expect("unpoisoned").push(object.clone());
                        for (name, value) in status.as_object().expect("a status") {
                            object["status"][name] = value.clone();
                        }
                        object["apiVersion"] = format!("{GROUP}/v1").into();
                        of.apply(object);
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { server, root, signed, signing }
    }

    fn client(&self, config: SignerConfig) -> KubernetesSigner {
        KubernetesSigner::new(self.server.client().expect("a client"), config, LifetimeLimits::default())
    }

    /// The first request that was signed. The API server may no longer have it.
    pub(crate) fn first_signed(&self) -> Value {
        self.signed.lock().expect("unpoisoned").first().expect("a signed request").clone()
    }

    /// Whether all requests are deleted.
    pub(crate) fn is_clean(&self) -> bool {
        self.server.list(GROUP, REQUESTS).is_empty()
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        self.signing.abort();
    }
}

/// The key of a request.
pub(crate) struct Requested(pub(crate) Vec<u8>);

impl PublicKeyData for Requested {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// The bits of the key that a request is for.
pub(crate) fn requested_key(request: &str) -> Vec<u8> {
    let body: String = request.lines().filter(|line| !line.starts_with('-')).collect();
    let der = STANDARD.decode(body).expect("base64");
    let (_, parsed) = X509CertificationRequest::from_der(&der).expect("a request");
    parsed.certification_request_info.subject_pki.subject_public_key.data.to_vec()
}

/// A certificate of a name for the key of a request.
fn certify(issuer: &Issuer<'_, KeyPair>, request: &str, name: &str) -> Value {
    let key = Requested(requested_key(request));
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(name.try_into().expect("a name"))];
    json!({"certificate": STANDARD.encode(params.signed_by(&key, issuer).expect("a certificate").pem())})
}

fn sign(issuer: &Issuer<'_, KeyPair>, request: &str) -> Value {
    certify(issuer, request, CART)
}

async fn issue(signer: &KubernetesSigner, named: &str) -> Result<Issued, IssueError> {
    signer.issue(&request(), &[CART.to_owned()], 3600, named).await
}

fn one(root: &str) -> SignerConfig {
    SignerConfig { signer: "example.com/mesh".into(), roots: Some(root.to_owned()), ..SignerConfig::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signing_request_is_approved_signed_and_deleted() {
    let signer = Signer::start(sign).await;
    let issued = issue(&signer.client(one(&signer.root)), "").await.expect("issued");
    assert_eq!(issued.chain.len(), 2);
    assert_eq!(issued.chain[1], signer.root);
    assert_eq!(sluice_ca::Certificate::from_pem("it", &issued.chain[0]).expect("a certificate").uris(), [CART]);
    let object = signer.first_signed();
    assert_eq!(object["spec"]["signerName"], "example.com/mesh");
    assert_eq!(object["spec"]["expirationSeconds"], 3600);
    assert_eq!(
        object["spec"]["usages"],
        json!(["digital signature", "key encipherment", "server auth", "client auth"])
    );
    assert!(object["metadata"]["name"].as_str().expect("a name").starts_with("csr-workload-"));
    assert!(signer.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_name_signers_of_the_domain_and_mesh_config_has_their_roots() {
    let signer = Signer::start(sign).await;
    let config = SignerConfig { domain: "example.com".into(), ..SignerConfig::default() };
    let signer_client = signer.client(config);
    let error_of = |result: Result<Issued, IssueError>| result.expect_err("refused").to_string();
    assert!(error_of(issue(&signer_client, "").await).contains("names no signer"));
    for name in ["a/b", "../x", "a b", "ä"] {
        assert!(error_of(issue(&signer_client, name).await).contains("the name of the signer is invalid"), "{name}");
    }
    assert!(error_of(issue(&signer_client, "mesh").await).contains("has no root"));
    assert!(signer.is_clean(), "a signed request whose certificate is rejected is deleted too");
    let certificate = |pem: &str, signer: &str| CaCertificate {
        pem: pem.into(),
        cert_signers: vec![signer.into()],
        ..CaCertificate::default()
    };
    let other_roots =
        MeshConfig { ca_certificates: vec![certificate(&signer.root, "example.com/other")], ..MeshConfig::default() };
    signer_client.follow(&other_roots);
    assert!(error_of(issue(&signer_client, "mesh").await).contains("has no root"));
    let mesh =
        MeshConfig { ca_certificates: vec![certificate(&signer.root, "example.com/mesh")], ..MeshConfig::default() };
    signer_client.follow(&mesh);
    assert_eq!(issue(&signer_client, "mesh").await.expect("issued").chain[1], signer.root);
    assert_eq!(signer_client.roots(), std::slice::from_ref(&signer.root));
    assert!(error_of(issue(&signer.client(one(&signer.root)), "mesh").await).contains("CERT_SIGNER_DOMAIN is not set"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_certificates_for_other_callers_are_rejected() {
    // A signer that issues every certificate for the identity `vault`.
    let signer = Signer::start(|issuer, request| certify(issuer, request, "spiffe://td/ns/bank/sa/vault")).await;
    let signer_client = signer.client(one(&signer.root));
    let error = issue(&signer_client, "").await.expect_err("refused");
    assert!(matches!(&error, IssueError::Sign(reason) if reason.contains("names")), "{error}");
    assert!(signer.is_clean());
    let created = signer.server.count("create", REQUESTS);
    let other_identity = ["spiffe://td/ns/shop/sa/till".to_owned()];
    let error = signer_client.issue(&request(), &other_identity, 0, "").await.expect_err("refused");
    assert!(matches!(error, IssueError::Request(_)), "{error}");
    let long = signer_client.issue(&request(), &[CART.to_owned()], i64::MAX, "").await.expect_err("refused");
    assert!(matches!(long, IssueError::Lifetime { .. }), "{long}");
    assert_eq!(signer.server.count("create", REQUESTS), created, "no request was created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signer_that_rejects_or_does_not_answer_fails_quickly() {
    let denies = Signer::start(|_, _| json!({"conditions": [{"type": "Denied", "message": "no"}]})).await;
    let error = issue(&denies.client(one(&denies.root)), "").await.expect_err("refused").to_string();
    assert!(error.contains("refuses") && error.ends_with(": no"), "{error}");
    assert!(denies.is_clean());
    let silent = Signer::start(|_, _| Value::Null).await;
    let config = SignerConfig { timeout: Duration::from_millis(100), ..one(&silent.root) };
    let error = issue(&silent.client(config.clone()), "").await.expect_err("refused").to_string();
    assert!(error.contains("is not signed after 0.1 s"), "{error}");
    assert!(silent.is_clean());
    silent.server.forbid(REQUESTS, true);
    let error = issue(&silent.client(config), "").await.expect_err("refused").to_string();
    assert!(error.contains("cannot create a CertificateSigningRequest for example.com/mesh"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_of_a_signer_are_read_again_when_their_file_changes() {
    let signer = Signer::start(sign).await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("root-cert.pem");
    let other = sluice_ca::root::create("td", sluice_ca::NewKey::EcdsaP256, Duration::from_secs(3600), super::now());
    let other = other.expect("a root").certificate.to_string();
    let config = SignerConfig { roots_file: Some(file.clone()), ..one(&other) };
    let signer_client = std::sync::Arc::new(signer.client(config));
    let _guard = signer_client.follow_file().expect("followed");
    let mut changes = signer_client.changes();
    assert!(issue(&signer_client, "").await.is_err(), "the signer has another root");
    std::fs::write(&file, "not a certificate").expect("written");
    std::fs::write(&file, &signer.root).expect("written");
    changes.changed().await.expect("followed");
    assert_eq!(signer_client.roots(), std::slice::from_ref(&signer.root));
    issue(&signer_client, "").await.expect("issued");
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_request_is_deleted_when_its_caller_is_gone() {
    let silent = Signer::start(|_, _| Value::Null).await;
    let client = Arc::new(silent.client(one(&silent.root)));
    let of = client.clone();
    let call = tokio::spawn(async move { issue(&of, "").await });
    let approved = || silent.server.list(GROUP, REQUESTS).iter().any(|it| it["status"]["conditions"].is_array());
    until("the request is approved", || approved().then_some(())).await;
    call.abort();
    until("the request is deleted", || silent.is_clean().then_some(())).await;
    // The caller is gone before the API server has created the object.
    let created = silent.server.count("create", REQUESTS);
    let of = client.clone();
    let call = tokio::spawn(async move { issue(&of, "").await });
    until("another request is created", || (silent.server.count("create", REQUESTS) > created).then_some(())).await;
    call.abort();
    until("the request is deleted", || silent.is_clean().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signer_gets_the_request_without_the_callers_text() {
    let signer = Signer::start(sign).await;
    let text = format!("# a text\n{}# another\n", request());
    let issued = signer.client(one(&signer.root)).issue(&text, &[CART.to_owned()], 3600, "").await;
    issued.expect("issued");
    let forwarded = STANDARD.decode(signer.first_signed()["spec"]["request"].as_str().expect("a request"));
    let forwarded = String::from_utf8(forwarded.expect("base64")).expect("text");
    assert!(forwarded.starts_with("-----BEGIN CERTIFICATE REQUEST-----\n") && !forwarded.contains('#'), "{forwarded}");
}
