//! Certificates of workloads from a signer behind the Kubernetes API (P09).

use std::collections::BTreeMap;
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::Client;
use sluice_ca::{ForwardedRequest, IssueError, Issued, LifetimeLimits};
use sluice_model::MeshConfig;
use sluice_telemetry::unix_seconds;

use super::signing::{Signing, ToSign};

/// Longest wait for a signer.
const PATIENCE: Duration = Duration::from_secs(60);

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
    signing: Signing,
    config: SignerConfig,
    terms: LifetimeLimits,
    /// Roots by signer, of mesh config.
    roots: ArcSwap<BTreeMap<String, String>>,
}

impl KubernetesSigner {
    /// Through this API server.
    #[must_use]
    pub fn new(client: Client, config: SignerConfig, terms: LifetimeLimits) -> Self {
        let signing = Signing::new(client, config.patience);
        Self { signing, config, terms, roots: ArcSwap::default() }
    }

    /// Takes over the roots of signers that mesh config names (`caCertificates`).
    pub fn follow(&self, mesh: &MeshConfig) {
        self.roots.store(roots_by_signer(mesh).into());
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
        let what = ToSign {
            request,
            signer: &signer,
            usages: &["digital signature", "key encipherment", "server auth", "client auth"],
            lifetime,
            approval: ("IstioWorkload", "the caller is proven to be whom the request names"),
        };
        let signed = self.signing.sign(what).await.map_err(IssueError::Sign)?;
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
}

/// Roots of signers that mesh config names (`caCertificates`), each a PEM text.
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
