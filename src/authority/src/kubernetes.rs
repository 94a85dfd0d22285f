//! Workload certificates from a signer of the Kubernetes API (P09).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sluice_ca::{ForwardedRequest, IssueError, Issued, LifetimeLimits};
use sluice_model::MeshConfig;
use sluice_telemetry::unix_seconds;
use sluice_watch::{FollowGuard, LastReason, follow_changes};
use tokio::sync::watch;
use tracing::{info, warn};

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
    /// The file of `roots`, which is followed.
    pub roots_file: Option<PathBuf>,
    /// Longest wait for the signer.
    pub timeout: Duration,
}

impl Default for SignerConfig {
    fn default() -> Self {
        Self { signer: String::new(), domain: String::new(), roots: None, roots_file: None, timeout: SIGNING_TIMEOUT }
    }
}

/// Issues workload certificates through the Kubernetes API.
pub struct KubernetesSigner {
    signing: CsrClient,
    config: SignerConfig,
    lifetimes: LifetimeLimits,
    /// Roots by signer, from mesh config.
    roots: ArcSwap<BTreeMap<String, String>>,
    /// Roots of all signers, from the file.
    file_roots: watch::Sender<Option<String>>,
}

impl KubernetesSigner {
    /// Uses this API server.
    #[must_use]
    pub fn new(client: Client, config: SignerConfig, lifetimes: LifetimeLimits) -> Self {
        let signing = CsrClient::new(client, config.timeout);
        let file_roots = watch::Sender::new(config.roots.clone());
        Self { signing, config, lifetimes, roots: ArcSwap::default(), file_roots }
    }

    /// Follows the file of roots until the guard is dropped. Without roots in the file, the previous ones stay.
    #[must_use]
    pub fn follow_file(self: &Arc<Self>) -> Option<FollowGuard> {
        let file = self.config.roots_file.clone()?;
        let directory = file.parent().map(Path::to_owned).unwrap_or_default();
        let (wanted, signer, invalid) = (file.clone(), self.clone(), RefCell::<LastReason>::default());
        let guard = follow_changes(
            &[directory],
            move |path| path.file_name() == wanted.file_name(),
            move || {
                signer.read_roots(&file, &mut invalid.borrow_mut());
            },
        );
        guard
            .inspect_err(|error| warn!(target: "pkira", %error, "failed to follow the file of the signer's roots"))
            .ok()
    }

    /// Uses the roots in the file. Returns whether a new reason why they cannot be used was logged.
    fn read_roots(&self, file: &Path, invalid: &mut LastReason) -> bool {
        let text = match roots_in(file) {
            Ok(text) => text,
            Err(reason) => {
                let is_new = invalid.is_new(&reason);
                if is_new {
                    warn!(target: "pkira", file = %file.display(), reason, "the roots of the signer cannot be read, the previous ones stay in use");
                }
                return is_new;
            }
        };
        invalid.clear();
        self.file_roots.send_if_modified(|roots| {
            let is_new = roots.as_ref() != Some(&text);
            if is_new {
                info!(target: "pkira", file = %file.display(), "the roots of the signer have changed");
                *roots = Some(text);
            }
            is_new
        });
        false
    }

    /// Reports later changes of the roots in the file.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Option<String>> {
        self.file_roots.subscribe()
    }

    /// Sets the roots of signers from mesh config (`caCertificates`).
    pub fn follow(&self, mesh: &MeshConfig) {
        self.roots.store(roots_by_signer(mesh).into());
    }

    /// Possible roots of workload certificates, PEM.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        match &*self.file_roots.borrow() {
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
            request: forwarded.pem(),
            signer: &signer,
            usages: &["digital signature", "key encipherment", "server auth", "client auth"],
            lifetime,
            approval: ("IstioWorkload", "the caller is authenticated as the identity of the request"),
        };
        let signed = self.signing.sign(what).await.map_err(|error| IssueError::Sign(error.to_string()))?;
        let (own, of_file) = (self.roots.load(), self.file_roots.borrow().clone());
        let roots = of_file.as_deref().or_else(|| own.get(&signer).map(String::as_str));
        forwarded.accept(&signed, roots, unix_seconds())
    }

    /// Deletes CertificateSigningRequests that are left over, at an interval.
    pub async fn delete_left_over_requests(&self) {
        self.signing.delete_left_over().await;
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

/// The text of a file with at least one certificate.
fn roots_in(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let has_root = CertificateDer::pem_slice_iter(text.as_bytes()).any(|root| root.is_ok());
    has_root.then_some(text).ok_or_else(|| "it contains no certificate".to_owned())
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A signer of an API server that answers nothing.
    fn signer(config: SignerConfig) -> Arc<KubernetesSigner> {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        Arc::new(KubernetesSigner::new(Client::new(service, "default"), config, LifetimeLimits::default()))
    }

    #[tokio::test]
    async fn roots_file_that_changes_without_a_notification_is_read_at_an_interval() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let [one, other] = ["one", "other"].map(|name| {
            let root = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate").cert.pem();
            std::fs::create_dir(path(name)).expect("a directory");
            std::fs::write(path(name).join("root-cert.pem"), &root).expect("written");
            root
        });
        // What is watched is the directory behind the link, in which nothing changes.
        symlink(path("one"), path("signer")).expect("a link");
        let roots_file = Some(path("signer").join("root-cert.pem"));
        let signer = signer(SignerConfig { roots: Some(one.clone()), roots_file, ..SignerConfig::default() });
        let mut changes = signer.changes();
        let guard = signer.follow_file().expect("a thread");
        assert_eq!(signer.roots(), [one]);
        symlink(path("other"), path("next")).expect("a link");
        std::fs::rename(path("next"), path("signer")).expect("the link is replaced");
        let changed = tokio::time::timeout(Duration::from_secs(30), changes.changed()).await;
        changed.expect("the file is read again").expect("the signer exists");
        assert_eq!(signer.roots(), [other]);
        drop(guard);
    }

    #[tokio::test]
    async fn roots_file_that_cannot_be_used_is_logged_once_and_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("root-cert.pem");
        let signer = signer(SignerConfig::default());
        let mut invalid = LastReason::default();
        let mut read = || signer.read_roots(&file, &mut invalid);
        assert_eq!([read(), read()], [true, false], "there is no file");
        std::fs::write(&file, "no certificate").expect("written");
        assert_eq!([read(), read()], [true, false], "another reason");
        assert_eq!(signer.roots(), [""; 0]);
        let root = rcgen::generate_simple_self_signed(["root".to_owned()]).expect("a certificate").cert.pem();
        std::fs::write(&file, &root).expect("written");
        assert!(!read());
        assert_eq!(signer.roots(), std::slice::from_ref(&root));
        std::fs::write(&file, "").expect("written");
        assert!(read());
        assert_eq!(signer.roots(), [root], "the previous roots stay");
    }
}
