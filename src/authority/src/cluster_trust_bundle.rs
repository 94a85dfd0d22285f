//! Writes the roots into a ClusterTrustBundle (P12).

use std::time::Duration;

use http::Method;
use kube::Client;
use serde_json::json;
use sluice_kube::{Backoff, RequestError, Term};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::api_request;
use crate::server::TrustBundle;

const BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
const NAME: &str = "istio.io:istiod-ca:root-cert";
const SIGNER: &str = "istio.io/istiod-ca";
/// Interval of checks for changes by other writers.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Keeps the ClusterTrustBundle of the mesh up to date.
pub struct TrustBundleWriter {
    client: Client,
    bundle: watch::Receiver<TrustBundle>,
}

impl TrustBundleWriter {
    /// Writes the roots of a trust bundle.
    #[must_use]
    pub fn new(client: Client, bundle: watch::Receiver<TrustBundle>) -> Self {
        Self { client, bundle }
    }

    /// Runs until the term ends.
    pub async fn run(mut self, term: impl Into<Term>) {
        let term = term.into();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        loop {
            let roots = self.bundle.borrow_and_update().roots.clone();
            let Ok(written) = term.write(self.write(&roots)).await else { return };
            let wait = match written {
                Ok(wrote) => {
                    backoff.reset();
                    if wrote {
                        info!(target: "ca", bundle = NAME, "wrote the roots into the ClusterTrustBundle");
                    }
                    CHECK_INTERVAL
                }
                Err(error) => {
                    warn!(target: "ca", bundle = NAME, %error, "failed to write the roots into the ClusterTrustBundle, retrying");
                    backoff.failed()
                }
            };
            tokio::select! {
                () = term.ended().cancelled() => return,
                changed = self.bundle.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Writes the roots if they differ. True if it wrote.
    async fn write(&self, roots: &str) -> Result<bool, RequestError> {
        if roots.is_empty() {
            return Ok(false);
        }
        let path = format!("{BUNDLES}/{NAME}");
        let (method, uri, object) = match api_request::send(&self.client, Method::GET, path.clone(), None).await {
            Ok(object) if object["spec"]["trustBundle"] == roots => return Ok(false),
            Ok(mut object) => {
                object["spec"]["trustBundle"] = roots.into();
                (Method::PUT, path, object)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let object = json!({
                    "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
                    "metadata": {"name": NAME},
                    "spec": {"signerName": SIGNER, "trustBundle": roots},
                });
                (Method::POST, BUNDLES.to_owned(), object)
            }
            Err(error) => return Err(error.into()),
        };
        api_request::send(&self.client, method, uri, Some(&object)).await?;
        Ok(true)
    }
}
