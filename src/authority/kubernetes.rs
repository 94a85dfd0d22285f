//! Certificates of workloads from a signer behind the Kubernetes API (P09): each request becomes a
//! CertificateSigningRequest, which is approved here, signed by whoever is its signer, and deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use sluice_ca::{ForwardedRequest, IssueError, Issued, Terms};
use sluice_model::MeshConfig;
use tokio::time::Instant;
use tracing::warn;

use super::now;
use crate::sources::kube::chain;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// Longest wait for a signer.
const PATIENCE: Duration = Duration::from_secs(60);
/// First and longest wait between two looks at whether it has signed.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Which signers are asked, and how.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SignerConfig {
    /// `K8S_SIGNER`: the signer of callers that name none; may be empty.
    pub signer: String,
    /// `CERT_SIGNER_DOMAIN`: what comes before the names that callers give; without it they may give none.
    pub domain: String,
    /// What all certificates have to verify with, as PEM; without it, what mesh config has for the signer, or what it sends.
    pub roots: Option<String>,
    /// How long to wait for the signer.
    pub patience: Duration,
}

impl Default for SignerConfig {
    fn default() -> Self {
        Self { signer: String::new(), domain: String::new(), roots: None, patience: PATIENCE }
    }
}

/// Has requests signed.
pub struct KubernetesSigner {
    client: Client,
    config: SignerConfig,
    terms: Terms,
    /// Roots by signer, of mesh config.
    roots: ArcSwap<BTreeMap<String, String>>,
}

impl KubernetesSigner {
    /// Through this API server.
    #[must_use]
    pub fn new(client: Client, config: SignerConfig, terms: Terms) -> Self {
        Self { client, config, terms, roots: ArcSwap::default() }
    }

    /// Takes over the roots of signers that mesh config names (`caCertificates`).
    pub fn follow(&self, mesh: &MeshConfig) {
        let mut roots = BTreeMap::<String, String>::new();
        for certificate in mesh.ca_certificates.iter().filter(|certificate| !certificate.pem.is_empty()) {
            for signer in &certificate.cert_signers {
                let text = roots.entry(signer.to_string()).or_default();
                *text += certificate.pem.trim();
                text.push('\n');
            }
        }
        self.roots.store(roots.into());
    }

    /// Roots that certificates of workloads may have: PEM texts.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        match &self.config.roots {
            Some(roots) => vec![roots.clone()],
            None => self.roots.load().values().cloned().collect(),
        }
    }

    /// Has a request signed for somebody who is proven to be these, by the signer he names.
    ///
    /// # Errors
    /// The request is not acceptable, or there is no good answer in time.
    pub async fn issue(
        &self,
        request: &str,
        identities: &[String],
        seconds: i64,
        named: &str,
    ) -> Result<Issued, IssueError> {
        let forwarded = ForwardedRequest::parse(request, identities)?;
        let lifetime = self.terms.lifetime(seconds)?;
        let signer = self.signer(named)?;
        let created = self.create(request, &signer, lifetime).await.map_err(IssueError::Sign)?;
        let name = created["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let signed = match self.approve(&name, created).await {
            Ok(()) => self.wait(&name).await,
            Err(error) => Err(format!("cannot approve {name}: {error}")),
        };
        if let Err(error) = self.send(Method::DELETE, &format!("/{name}"), None).await {
            warn!(target: "pkira", request = name, error, "cannot delete a request for a certificate");
        }
        let signed = signed.map_err(IssueError::Sign)?;
        let own = self.roots.load();
        let roots = self.config.roots.as_deref().or_else(|| own.get(&signer).map(String::as_str));
        forwarded.accept(&signed, roots, now())
    }

    /// The full name of the signer.
    fn signer(&self, named: &str) -> Result<String, IssueError> {
        let fail = |reason: &str| Err(IssueError::Request(reason.to_owned()));
        let SignerConfig { signer, domain, .. } = &self.config;
        if named.is_empty() {
            return if signer.is_empty() {
                fail("no signer is named, and K8S_SIGNER is not set")
            } else {
                Ok(signer.clone())
            };
        }
        let is_name = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'.');
        if domain.is_empty() {
            return fail("a signer is named, but CERT_SIGNER_DOMAIN is not set");
        }
        if named.len() > 253 || !named.bytes().all(is_name) {
            return fail("the signer has no name that one may have");
        }
        Ok(format!("{domain}/{named}"))
    }

    async fn create(&self, request: &str, signer: &str, lifetime: u64) -> Result<Value, String> {
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "csr-workload-"},
            "spec": {
                "request": STANDARD.encode(request),
                "signerName": signer,
                "usages": ["digital signature", "key encipherment", "server auth", "client auth"],
                "expirationSeconds": lifetime,
            },
        });
        let created = self.send(Method::POST, "", Some(&object)).await;
        created.map_err(|error| format!("cannot create a CertificateSigningRequest for {signer}: {error}"))
    }

    async fn approve(&self, name: &str, mut object: Value) -> Result<(), String> {
        let text = "the caller is proven to be whom the request names";
        object["status"]["conditions"] = json!([
            {"type": "Approved", "status": "True", "reason": "IstioWorkload", "message": text},
        ]);
        self.send(Method::PUT, &format!("/{name}/approval"), Some(&object)).await.map(drop)
    }

    /// The certificate, once it is signed.
    async fn wait(&self, name: &str) -> Result<String, String> {
        let deadline = Instant::now() + self.config.patience;
        let mut look = LOOK.0;
        loop {
            let object = self.send(Method::GET, &format!("/{name}"), None).await?;
            if let Some(text) = object["status"]["certificate"].as_str().filter(|text| !text.is_empty()) {
                let bytes = STANDARD.decode(text).map_err(|_| format!("the certificate of {name} is no base64"))?;
                return String::from_utf8(bytes).map_err(|_| format!("the certificate of {name} is no text"));
            }
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            for condition in conditions {
                if matches!(condition["type"].as_str(), Some("Denied" | "Failed")) {
                    let reason = condition["message"].as_str().unwrap_or_default();
                    return Err(format!("the signer refuses {name}: {reason}"));
                }
            }
            if Instant::now() + look > deadline {
                return Err(format!("{name} is not signed after {} s", self.config.patience.as_secs_f64()));
            }
            tokio::time::sleep(look).await;
            look = (look * 2).min(LOOK.1);
        }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{REQUESTS}{path}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
            .map_err(|error| error.to_string())?;
        self.client.request(request).await.map_err(|error| chain(&error))
    }
}
