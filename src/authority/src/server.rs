//! The server's own certificate (P10), and the roots that others verify it and each other with.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sluice_ca::{IssueError, ServerCertificate};
use sluice_telemetry::unix_seconds;
use sluice_tls::{ClientVerifier, ServerIdentity, TlsFiles};
use sluice_watch::follow_changes;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{KubernetesSigner, ServerSigner, Signer};

/// How often it is looked whether the certificate is to be renewed.
const INTERVAL: Duration = Duration::from_secs(60);

/// Names that clients reach the control plane by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DnsNames(Vec<String>);

impl DnsNames {
    /// Those of istiod's Services, the host of the discovery address, and others.
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

/// What others verify with.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TrustBundle {
    /// Roots, PEM: what the server shows verifies with them.
    pub roots: String,
    /// Those of the authority, PEM, if there is one.
    pub workload_roots: String,
    /// Revocation lists, PEM; empty without any.
    pub revoked: String,
}

/// Keeps the server's certificate and the roots that clients are verified with as they should be.
pub struct ServerKeeper {
    /// What the server shows.
    pub identity: Arc<ServerIdentity>,
    /// Who its clients may be.
    pub clients: Arc<ClientVerifier>,
    /// Who signs, if there is an authority.
    pub signer: Option<Arc<Signer>>,
    /// Who signs for workloads instead, if that is somebody else.
    pub external: Option<Arc<KubernetesSigner>>,
    /// Who certifies the server instead, if that is somebody else.
    pub certifier: Option<Arc<ServerSigner>>,
    /// What is shown instead of a certificate of the authority.
    pub files: Option<TlsFiles>,
    /// The names it is issued for; nothing if nobody certifies the server.
    pub names: Option<DnsNames>,
    /// How long it lives.
    pub lifetime: Duration,
    /// How often it is looked whether it is to be renewed.
    pub interval: Duration,
    /// What others verify with.
    pub bundle: watch::Sender<TrustBundle>,
    issued: Option<ServerCertificate>,
    /// Roots of the files.
    file_roots: Vec<CertificateDer<'static>>,
}

impl ServerKeeper {
    /// With nothing shown yet.
    #[must_use]
    pub fn new(clients: Arc<ClientVerifier>, signer: Option<Arc<Signer>>, lifetime: Duration) -> Self {
        Self {
            identity: Arc::default(),
            clients,
            signer,
            external: None,
            certifier: None,
            files: None,
            names: None,
            lifetime,
            interval: INTERVAL,
            bundle: watch::Sender::default(),
            issued: None,
            file_roots: Vec::new(),
        }
    }

    /// Puts everything in its place for the first time; says whether there is a certificate to show.
    ///
    /// # Errors
    /// Nothing can be shown for want of a certificate: why.
    pub async fn begin(&mut self) -> Result<bool, IssueError> {
        let shown = match self.files.is_some() {
            true => Ok(self.read_files()),
            false => self.issue().await,
        };
        self.trust();
        shown
    }

    /// Keeps it so until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let (told, mut files) = mpsc::channel(1);
        let _guard = self.files.as_ref().and_then(|wanted| {
            let names = wanted.clone();
            let is_wanted =
                move |file: &Path| [&names.certificate, &names.key, &names.roots].contains(&&file.to_owned());
            follow_changes(&wanted.directories(), is_wanted, move || {
                // One that has not been looked at yet is enough.
                let _ = told.try_send(());
            })
            .inspect_err(|error| warn!(target: "tls", %error, "cannot watch the certificate: it is read every minute"))
            .ok()
        });
        let mut changes = self.signer.as_ref().map(|signer| signer.changes());
        let mut other_roots = self.certifier.as_ref().map(|certifier| certifier.changes());
        loop {
            let mut is_due = tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = files.recv() => {
                    self.read_files();
                    false
                }
                // Whoever else certifies the server has nothing to do with the authority.
                () = next(&mut changes) => self.certifier.is_none(),
                () = next(&mut other_roots) => true,
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
                        error!(target: "tls", %error, "cannot have the server's certificate issued, trying again");
                    }
                }
            }
            self.trust();
        }
    }

    /// Has another certificate issued and shows it; false if nobody certifies the server.
    async fn issue(&mut self) -> Result<bool, IssueError> {
        let Some(names) = &self.names else { return Ok(false) };
        let issued = match (&self.certifier, &self.signer) {
            (Some(certifier), _) => certifier.certificate(&names.0, self.lifetime).await?,
            (None, Some(signer)) => signer.current().server_certificate(&names.0, self.lifetime, unix_seconds())?,
            (None, None) => return Ok(false),
        };
        info!(target: "tls", names = ?names.0, not_after = issued.not_after, "issued the server's certificate");
        self.identity.set_issued(&issued);
        self.issued = Some(issued);
        Ok(true)
    }

    fn read_files(&mut self) -> bool {
        let Some(files) = &self.files else { return false };
        match files.read() {
            Ok((pair, roots)) => {
                self.identity.set(pair);
                self.file_roots = roots;
                true
            }
            Err(error) => {
                error!(target: "tls", error, "cannot use the files of the server's certificate");
                false
            }
        }
    }

    /// Trusts the roots of the moment, and tells others of them.
    fn trust(&self) {
        let authority = self.signer.as_ref().map(|signer| signer.current());
        let mut roots = self.file_roots.clone();
        roots.extend(authority.iter().flat_map(|authority| authority.roots().iter().cloned()));
        for text in self.external.iter().flat_map(|external| external.roots()) {
            roots.extend(CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok));
        }
        if let Err(error) = self.clients.set_roots(&roots) {
            error!(target: "tls", error, "certificates of clients cannot be verified");
        }
        // What the server shows is to be verified with these.
        let pem = match &self.certifier {
            _ if !self.file_roots.is_empty() => sluice_ca::to_pem(&self.file_roots),
            Some(certifier) => certifier.roots(),
            None => authority.as_ref().map(|authority| authority.roots_pem().to_owned()).unwrap_or_default(),
        };
        let workload_roots = authority.as_ref().map(|authority| authority.roots_pem().to_owned()).unwrap_or_default();
        let revoked = authority.map(|authority| authority.crl().to_owned()).unwrap_or_default();
        let bundle = TrustBundle { roots: pem, workload_roots, revoked };
        self.bundle.send_if_modified(|current| {
            let is_new = *current != bundle;
            *current = bundle;
            is_new
        });
    }
}

/// Waits until something is told; forever where nobody tells.
async fn next<T>(told: &mut Option<watch::Receiver<T>>) {
    let is_there = match told {
        Some(changes) => changes.changed().await.is_ok(),
        None => std::future::pending().await,
    };
    if !is_there {
        *told = None;
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
    fn the_server_has_the_names_of_its_services() {
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
}
