//! A signer of the Kubernetes API, which issues the server certificate.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
    SignatureAlgorithm,
};
use serde_json::Value;
use sluice_testkit::api_server::ApiServer;
use tokio::task::JoinHandle;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// Its name.
pub(super) const SIGNER: &str = "example.com/server";
/// The names of the control plane.
const NAMES: [&str; 3] = ["istio-pilot.istio-system.svc", "istiod-remote.istio-system.svc", "istiod.istio-system.svc"];
/// Interval of searches for requests.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Signs approved requests for the names of the control plane, until it is dropped.
pub(super) struct ClusterSigner {
    /// The root of its certificates, PEM.
    pub(super) root: String,
    signing: JoinHandle<()>,
}

impl ClusterSigner {
    pub(super) fn start(api: Arc<ApiServer>) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "signer");
        let root = params.self_signed(&key).expect("a root").pem();
        let issuer = Issuer::new(params, key);
        let signing = tokio::spawn(async move {
            loop {
                let mut requests = api.list("certificates.k8s.io", "certificatesigningrequests");
                requests.retain(is_open);
                for mut request in requests {
                    request["status"]["certificate"] = BASE64_STANDARD.encode(certificate(&issuer, &request)).into();
                    api.apply(request);
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        Self { root, signing }
    }
}

impl Drop for ClusterSigner {
    fn drop(&mut self) {
        self.signing.abort();
    }
}

/// Whether a request for this signer is approved and not signed.
fn is_open(request: &Value) -> bool {
    let status = &request["status"];
    request["spec"]["signerName"] == SIGNER
        && status["conditions"][0]["type"] == "Approved"
        && status["certificate"].is_null()
}

/// The certificate for the key of a request, PEM.
fn certificate(issuer: &Issuer<'_, KeyPair>, request: &Value) -> String {
    let pem = BASE64_STANDARD.decode(request["spec"]["request"].as_str().expect("a request")).expect("base64");
    let mut params = CertificateParams::default();
    let name = |name: &&str| SanType::DnsName((*name).try_into().expect("a name"));
    params.subject_alt_names = NAMES.iter().map(name).collect();
    let key = RequestedKey::of(&String::from_utf8(pem).expect("text"));
    params.signed_by(&key, issuer).expect("a certificate").pem()
}

/// The key of a request.
struct RequestedKey(Vec<u8>);

impl RequestedKey {
    fn of(request: &str) -> Self {
        let body: String = request.lines().filter(|line| !line.starts_with('-')).collect();
        let der = BASE64_STANDARD.decode(body).expect("base64");
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
