//! The server's own certificate from a signer of the Kubernetes API (P10: `PILOT_CERT_PROVIDER=k8s.io/NAME`).

use std::time::Duration;

use kube::Client;
use sluice_ca::{IssueError, ServerCertificate, ServerRequest};
use sluice_model::MeshConfig;
use sluice_telemetry::unix_seconds;
use tokio::sync::watch;
use tracing::warn;

use super::kubernetes::roots_by_signer;
use super::signing::{CsrClient, SigningRequest};

/// Issues the server certificate through the Kubernetes API.
pub struct ServerSigner {
    signing: CsrClient,
    signer: String,
    /// Roots of its certificates, PEM; empty before mesh config names them.
    roots: watch::Sender<String>,
}

impl ServerSigner {
    /// Uses a signer of this API server and waits `timeout` for it.
    #[must_use]
    pub fn new(client: Client, signer: &str, timeout: Duration) -> Self {
        Self { signing: CsrClient::new(client, timeout), signer: signer.to_owned(), roots: watch::Sender::default() }
    }

    /// Sets the roots of the signer from mesh config (`caCertificates`). Without any, the previous roots stay.
    pub fn follow(&self, mesh: &MeshConfig) {
        let Some(roots) = roots_by_signer(mesh).remove(&self.signer) else {
            warn!(target: "tls", signer = self.signer, "mesh config has no caCertificates for the signer of the server certificate");
            return;
        };
        self.roots.send_if_modified(|current| {
            let is_new = *current != roots;
            *current = roots;
            is_new
        });
    }

    /// Roots of its certificates, PEM.
    #[must_use]
    pub fn roots(&self) -> String {
        self.roots.borrow().clone()
    }

    /// Reports later changes of the roots.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<String> {
        self.roots.subscribe()
    }

    /// Deletes CertificateSigningRequests that are left over, at an interval.
    pub async fn delete_left_over_requests(&self) {
        self.signing.delete_left_over().await;
    }

    /// A certificate for these DNS names.
    ///
    /// # Errors
    /// The signer does not issue a valid one in time, or mesh config has no roots of the signer.
    pub async fn certificate(&self, names: &[String], lifetime: Duration) -> Result<ServerCertificate, IssueError> {
        let Self { signing, signer, .. } = self;
        let roots = self.roots();
        if roots.is_empty() {
            let reason = format!("mesh config has no caCertificates whose certSigners name {signer}");
            return Err(IssueError::Sign(reason));
        }
        let request = ServerRequest::new(names)?;
        let what = SigningRequest {
            request: request.pem(),
            signer,
            usages: &["digital signature", "key encipherment", "server auth"],
            lifetime: lifetime.as_secs(),
            approval: ("IstioControlPlane", "the control plane requests its own names"),
        };
        let signed = signing.sign(what).await.map_err(|error| IssueError::Sign(error.to_string()))?;
        request.accept(&signed, &roots, unix_seconds())
    }
}
