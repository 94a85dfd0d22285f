//! The server's own certificate from a signer behind the Kubernetes API (P10: `PILOT_CERT_PROVIDER=k8s.io/NAME`).

use std::time::Duration;

use kube::Client;
use sluice_ca::{IssueError, ServerCertificate, ServerRequest};
use sluice_model::MeshConfig;
use sluice_telemetry::unix_seconds;
use tokio::sync::watch;
use tracing::warn;

use super::kubernetes::roots_by_signer;
use super::signing::{Signing, ToSign};

/// Has the server certified.
pub struct ServerSigner {
    signing: Signing,
    signer: String,
    /// What its certificates verify with, PEM; empty before mesh config has said so.
    roots: watch::Sender<String>,
}

impl ServerSigner {
    /// By a signer, through this API server; it is waited for no longer than `patience`.
    #[must_use]
    pub fn new(client: Client, signer: &str, patience: Duration) -> Self {
        Self { signing: Signing::new(client, patience), signer: signer.to_owned(), roots: watch::Sender::default() }
    }

    /// Takes over the roots of the signer that mesh config names (`caCertificates`). Without any, those before stay.
    pub fn follow(&self, mesh: &MeshConfig) {
        let Some(roots) = roots_by_signer(mesh).remove(&self.signer) else {
            warn!(target: "tls", signer = self.signer, "mesh config has no caCertificates of the server's signer");
            return;
        };
        self.roots.send_if_modified(|current| {
            let is_new = *current != roots;
            *current = roots;
            is_new
        });
    }

    /// What its certificates verify with, PEM.
    #[must_use]
    pub fn roots(&self) -> String {
        self.roots.borrow().clone()
    }

    /// Tells of other roots from now on.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<String> {
        self.roots.subscribe()
    }

    /// A certificate of these names.
    ///
    /// # Errors
    /// There is no good one in time, or mesh config does not say what it has to verify with.
    pub async fn certificate(&self, names: &[String], lifetime: Duration) -> Result<ServerCertificate, IssueError> {
        let Self { signing, signer, .. } = self;
        let roots = self.roots();
        if roots.is_empty() {
            let reason = format!("mesh config has no caCertificates whose certSigners name {signer}");
            return Err(IssueError::Sign(reason));
        }
        let request = ServerRequest::new(names)?;
        let what = ToSign {
            request: request.pem(),
            signer,
            usages: &["digital signature", "key encipherment", "server auth"],
            lifetime: lifetime.as_secs(),
            approval: ("IstioControlPlane", "the control plane asks for its own names"),
        };
        let signed = signing.sign(what).await.map_err(IssueError::Sign)?;
        request.accept(&signed, &roots, unix_seconds())
    }
}
