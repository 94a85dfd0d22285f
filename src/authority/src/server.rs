//! The server's own certificate (P10), and the trust bundle for clients and workloads.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use sluice_ca::{IssueError, ServerCertificate};
use sluice_telemetry::unix_seconds;
use sluice_tls::{ClientVerifier, ServerIdentity, TlsFileError, TlsFiles};
use sluice_watch::{LastReason, follow_changes};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{KubernetesSigner, ServerSigner, Signer};

/// Default interval of renewal checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// DNS names of the control plane.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DnsNames(Vec<String>);

impl DnsNames {
    /// Names of istiod's Services, the host of the discovery address, and others.
    #[must_use]
    pub fn new(namespace: &str, revision: &str, discovery_host: &str, others: &[String]) -> Self {
        let mut names: BTreeSet<String> = others.iter().cloned().collect();
        if !discovery_host.is_empty() {
            names.insert(discovery_host.to_owned());
        }
        for service in ["istiod", "istiod-remote", "istio-pilot"] {
            names.insert(format!("{service}.{namespace}.svc"));
        }
        if !matches!(revision, "" | "default") {
            names.insert(format!("istiod-{revision}.{namespace}.svc"));
        }
        Self(names.into_iter().collect())
    }
}

/// Roots and revocation lists for verifying the server and workloads.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TrustBundle {
    /// Roots of the server certificate, PEM.
    pub roots: String,
    /// Roots of workload certificates from the authority, PEM; empty without one.
    pub workload_roots: String,
    /// Revocation lists, PEM; empty without any.
    pub revoked: String,
}

/// Renews the server certificate, and updates the roots for client certificates.
pub struct ServerCertificateKeeper {
    /// The presented certificate.
    pub identity: Arc<ServerIdentity>,
    /// Verification of client certificates.
    pub clients: Arc<ClientVerifier>,
    /// The signer of the authority, if there is one.
    pub signer: Option<Arc<Signer>>,
    /// The signer of workload certificates that replaces the authority.
    pub workload_signer: Option<Arc<KubernetesSigner>>,
    /// The signer of the server certificate that replaces the authority.
    pub server_signer: Option<Arc<ServerSigner>>,
    /// Files with the certificate, instead of an issued one.
    pub files: Option<TlsFiles>,
    /// DNS names of the certificate; `None` if none is issued.
    pub names: Option<DnsNames>,
    /// Lifetime of issued certificates.
    pub lifetime: Duration,
    /// Interval of renewal checks.
    pub interval: Duration,
    /// The published trust bundle.
    pub bundle: watch::Sender<TrustBundle>,
    issued: Option<ServerCertificate>,
    /// Roots of the files.
    file_roots: Vec<CertificateDer<'static>>,
    /// Why the files could not be used when they were read last.
    invalid_files: LastReason,
}

impl ServerCertificateKeeper {
    /// Without a certificate.
    #[must_use]
    pub fn new(clients: Arc<ClientVerifier>, signer: Option<Arc<Signer>>, lifetime: Duration) -> Self {
        Self {
            identity: Arc::default(),
            clients,
            signer,
            workload_signer: None,
            server_signer: None,
            files: None,
            names: None,
            lifetime,
            interval: CHECK_INTERVAL,
            bundle: watch::Sender::default(),
            issued: None,
            file_roots: Vec::new(),
            invalid_files: LastReason::default(),
        }
    }

    /// Loads or issues the first certificate. True if there is one.
    ///
    /// # Errors
    /// No certificate can be issued.
    pub async fn begin(&mut self) -> Result<bool, IssueError> {
        let has_certificate = match self.files.is_some() {
            true => Ok(self.read_files()),
            false => self.issue().await,
        };
        self.publish_roots();
        has_certificate
    }

    /// Runs until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let (sender, mut files) = mpsc::channel(1);
        let _guard = self.files.as_ref().and_then(|wanted| {
            let names = wanted.clone();
            let is_wanted =
                move |file: &Path| [&names.certificate, &names.key, &names.roots].contains(&&file.to_owned());
            follow_changes(&wanted.directories(), is_wanted, move || {
                // Fails only if another change is already queued.
                let _ = sender.try_send(());
            })
            .inspect_err(|error| warn!(target: "tls", %error, "failed to follow the certificate files: they are read every minute"))
            .ok()
        });
        let _roots_guard = self.workload_signer.as_ref().and_then(KubernetesSigner::follow_file);
        let mut signer_roots = self.workload_signer.as_ref().map(|signer| signer.changes());
        let mut changes = self.signer.as_ref().map(|signer| signer.changes());
        let mut other_roots = self.server_signer.as_ref().map(|signer| signer.changes());
        loop {
            let mut is_due = tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = files.recv() => {
                    self.read_files();
                    false
                }
                // With another signer, a new authority does not change the server certificate.
                () = next(&mut changes) => self.server_signer.is_none(),
                () = next(&mut other_roots) => true,
                () = next(&mut signer_roots) => false,
                () = tokio::time::sleep(self.interval) => {
                    if self.files.is_some() {
                        self.read_files();
                    }
                    self.issued.as_ref().is_none_or(is_half_over)
                }
            };
            is_due &= self.files.is_none();
            if is_due {
                tokio::select! {
                    () = stop.cancelled() => return,
                    issued = self.issue() => if let Err(error) = issued {
                        error!(target: "tls", %error, "failed to issue the server certificate, retrying");
                    }
                }
            }
            self.publish_roots();
        }
    }

    /// Issues and presents a new certificate. False without an issuer.
    async fn issue(&mut self) -> Result<bool, IssueError> {
        let Some(names) = &self.names else { return Ok(false) };
        let issued = match (&self.server_signer, &self.signer) {
            (Some(server_signer), _) => server_signer.certificate(&names.0, self.lifetime).await?,
            (None, Some(signer)) => signer.current().server_certificate(&names.0, self.lifetime, unix_seconds())?,
            (None, None) => return Ok(false),
        };
        info!(target: "tls", names = ?names.0, not_after = issued.not_after, "issued the server certificate");
        self.identity.set_issued(&issued);
        self.issued = Some(issued);
        Ok(true)
    }

    fn read_files(&mut self) -> bool {
        let Some(files) = &self.files else { return false };
        match files.read() {
            Ok((pair, roots)) => {
                self.invalid_files.clear();
                self.identity.set(pair);
                self.file_roots = roots;
                true
            }
            Err(error) => {
                self.report_invalid_files(&error);
                false
            }
        }
    }

    /// Logs why the files cannot be used, once while that stays the same, because they are read again every few seconds. Returns
    /// whether it did.
    fn report_invalid_files(&mut self, error: &TlsFileError) -> bool {
        let is_new = self.invalid_files.is_new(&error.to_string());
        if is_new {
            error!(target: "tls", %error, "files of the server certificate cannot be used");
        }
        is_new
    }

    /// Applies the current roots, and publishes the trust bundle.
    fn publish_roots(&self) {
        let authority = self.signer.as_ref().map(|signer| signer.current());
        let mut roots = self.file_roots.clone();
        roots.extend(authority.iter().flat_map(|authority| authority.roots().iter().cloned()));
        for text in self.workload_signer.iter().flat_map(|signer| signer.roots()) {
            roots.extend(CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok));
        }
        let revoked = authority.as_ref().map(|authority| authority.crl().to_owned()).unwrap_or_default();
        // The lists were read by the authority.
        let lists = CertificateRevocationListDer::pem_slice_iter(revoked.as_bytes()).filter_map(Result::ok);
        if let Err(error) = self.clients.set_roots(&roots, &lists.collect::<Vec<_>>()) {
            error!(target: "tls", %error, "client certificates cannot be verified with the current roots");
        }
        // Roots of the server certificate.
        let pem = match &self.server_signer {
            _ if !self.file_roots.is_empty() => sluice_ca::to_pem(&self.file_roots),
            Some(signer) => signer.roots(),
            None => authority.as_ref().map(|authority| authority.roots_pem().to_owned()).unwrap_or_default(),
        };
        let workload_roots = authority.as_ref().map(|authority| authority.roots_pem().to_owned()).unwrap_or_default();
        let bundle = TrustBundle { roots: pem, workload_roots, revoked };
        self.bundle.send_if_modified(|current| {
            let is_new = *current != bundle;
            *current = bundle;
            is_new
        });
    }
}

/// Waits for a change; forever without a sender.
pub(super) async fn next<T>(receiver: &mut Option<watch::Receiver<T>>) {
    let is_open = match receiver {
        Some(changes) => changes.changed().await.is_ok(),
        None => std::future::pending().await,
    };
    if !is_open {
        *receiver = None;
        std::future::pending::<()>().await;
    }
}

fn is_half_over(issued: &ServerCertificate) -> bool {
    unix_seconds() - issued.not_before > (issued.not_after - issued.not_before) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_certificate_has_the_names_of_its_services() {
        let names = DnsNames::new("istio-system", "canary", "istiod.example.com", &["localhost".to_owned()]);
        let expect = [
            "istio-pilot.istio-system.svc",
            "istiod-canary.istio-system.svc",
            "istiod-remote.istio-system.svc",
            "istiod.example.com",
            "istiod.istio-system.svc",
            "localhost",
        ];
        assert_eq!(names.0, expect);
        assert_eq!(
            DnsNames::new("ns", "default", "", &[]).0,
            ["istio-pilot.ns.svc", "istiod-remote.ns.svc", "istiod.ns.svc"]
        );
    }

    #[test]
    fn unusable_files_are_logged_once_while_the_reason_stays_the_same() {
        let clients = Arc::new(ClientVerifier::new(sluice_auth::TrustDomain::new("td".into())));
        let mut keeper = ServerCertificateKeeper::new(clients, None, Duration::from_secs(3600));
        let error = |reason: &str| TlsFileError::Invalid { file: "tls.crt".into(), reason: reason.to_owned() };
        let mut report = |reason| keeper.report_invalid_files(&error(reason));
        assert_eq!([report("is empty"), report("is empty"), report("is not PEM")], [true, false, true]);
    }
}
