//! Writes the roots into a ClusterTrustBundle (P12).

use std::time::Duration;

use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use sluice_kube::{Backoff, chain};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::server::TrustBundle;

const BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
const NAME: &str = "istio.io:istiod-ca:root-cert";
const SIGNER: &str = "istio.io/istiod-ca";
/// When to look again whether somebody has changed it.
const LOOK: Duration = Duration::from_secs(60);

/// Keeps the ClusterTrustBundle of the mesh as it should be.
pub struct TrustBundleWriter {
    client: Client,
    bundle: watch::Receiver<TrustBundle>,
}

impl TrustBundleWriter {
    /// With what a bundle holds.
    #[must_use]
    pub fn new(client: Client, bundle: watch::Receiver<TrustBundle>) -> Self {
        Self { client, bundle }
    }

    /// Until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        loop {
            let roots = self.bundle.borrow_and_update().roots.clone();
            let wait = match self.write(&roots).await {
                Ok(wrote) => {
                    backoff.worked();
                    if wrote {
                        info!(target: "ca", bundle = NAME, "wrote the roots into the ClusterTrustBundle");
                    }
                    LOOK
                }
                Err(error) => {
                    warn!(target: "ca", bundle = NAME, error, "cannot write the roots into the ClusterTrustBundle");
                    backoff.failed()
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.bundle.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Writes the roots if there are others; whether it has.
    async fn write(&self, roots: &str) -> Result<bool, String> {
        if roots.is_empty() {
            return Ok(false);
        }
        let path = format!("{BUNDLES}/{NAME}");
        let (method, uri, object) = match self.send(Method::GET, path.clone(), None).await {
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
            Err(error) => return Err(chain(&error)),
        };
        self.send(method, uri, Some(&object)).await.map(|_| true).map_err(|error| chain(&error))
    }

    async fn send(&self, method: Method, uri: String, body: Option<&Value>) -> Result<Value, kube::Error> {
        let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default());
        self.client.request(request.map_err(kube::Error::HttpError)?).await
    }
}
