//! Workload certificates from a signer of the Kubernetes API (P09).

use std::collections::BTreeMap;
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::Client;
use sluice_ca::{ForwardedRequest, IssueError, Issued, LifetimeLimits};
use sluice_model::MeshConfig;
use sluice_telemetry::unix_seconds;

use super::signing::{CsrClient, SigningRequest};

/// Default of [`SignerConfig::timeout`].
const SIGNING_TIMEOUT: Duration = Duration::from_secs(60);

/// The signers of workload certificates.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SignerConfig {
    /// `K8S_SIGNER`: the signer of requests that do not name one; may be empty.
    pub signer: String,
    /// `CERT_SIGNER_DOMAIN`: the domain of signers that requests name; empty forbids naming one.
    pub domain: String,
    /// Roots of all certificates, PEM. `None` uses those of mesh config for the signer, or those that the signer returns.
    pub roots: Option<String>,
    /// Longest wait for the signer.
    pub timeout: Duration,
}

impl Default for SignerConfig {
    fn default() -> Self {
        Self { signer: String::new(), domain: String::new(), roots: None, timeout: SIGNING_TIMEOUT }
    }
}

/// Issues workload certificates through the Kubernetes API.
pub struct KubernetesSigner {
    signing: CsrClient,
    config: SignerConfig,
    lifetimes: LifetimeLimits,
    /// Roots by signer, from mesh config.
    roots: ArcSwap<BTreeMap<String, String>>,
}

impl KubernetesSigner {
    /// Uses this API server.
    #[must_use]
    pub fn new(client: Client, config: SignerConfig, lifetimes: LifetimeLimits) -> Self {
        let signing = CsrClient::new(client, config.timeout);
        Self { signing, config, lifetimes, roots: ArcSwap::default() }
    }

    /// Sets the roots of signers from mesh config (`caCertificates`).
    pub fn follow(&self, mesh: &MeshConfig) {
        self.roots.store(roots_by_signer(mesh).into());
    }

    /// Possible roots of workload certificates, PEM.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        match &self.config.roots {
            Some(roots) => vec![roots.clone()],
            None => self.roots.load().values().cloned().collect(),
        }
    }

    /// Issues a certificate for a caller with these identities, by the signer it names.
    ///
    /// # Errors
    /// The request is not acceptable, or the signer does not sign it in time.
    pub async fn issue(
        &self,
        request: &str,
        identities: &[String],
        seconds: i64,
        named: &str,
    ) -> Result<Issued, IssueError> {
        let forwarded = ForwardedRequest::parse(request, identities)?;
        let lifetime = self.lifetimes.lifetime(seconds)?;
        let signer = self.signer(named)?;
        let what = SigningRequest {
            request,
            signer: &signer,
            usages: &["digital signature", "key encipherment", "server auth", "client auth"],
            lifetime,
            approval: ("IstioWorkload", "the caller is authenticated as the identity of the request"),
        };
        let signed = self.signing.sign(what).await.map_err(|error| IssueError::Sign(error.to_string()))?;
        let own = self.roots.load();
        let roots = self.config.roots.as_deref().or_else(|| own.get(&signer).map(String::as_str));
        forwarded.accept(&signed, roots, unix_seconds())
    }

    /// The full name of the signer.
    fn signer(&self, named: &str) -> Result<String, IssueError> {
        let fail = |reason: &str| Err(IssueError::Request(reason.to_owned()));
        let SignerConfig { signer, domain, .. } = &self.config;
        if named.is_empty() {
            return if signer.is_empty() {
                fail("the request names no signer, and K8S_SIGNER is not set")
            } else {
                Ok(signer.clone())
            };
        }
        let is_name = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'.');
        if domain.is_empty() {
            return fail("the request names a signer, but CERT_SIGNER_DOMAIN is not set");
        }
        if named.len() > 253 || !named.bytes().all(is_name) {
            return fail("the name of the signer is invalid: letters, digits, `-` and `.` are accepted, 253 at most");
        }
        Ok(format!("{domain}/{named}"))
    }
}

/// Roots by signer from mesh config (`caCertificates`), PEM.
pub(super) fn roots_by_signer(mesh: &MeshConfig) -> BTreeMap<String, String> {
    let mut roots = BTreeMap::<String, String>::new();
    for certificate in mesh.ca_certificates.iter().filter(|certificate| !certificate.pem.is_empty()) {
        for signer in &certificate.cert_signers {
            let text = roots.entry(signer.to_string()).or_default();
            *text += certificate.pem.trim();
            text.push('\n');
        }
    }
    roots
}
