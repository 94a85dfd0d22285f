//! Writes the roots into a ClusterTrustBundle (P12).

use std::time::Duration;

use http::Method;
use kube::Client;
use serde_json::json;
use sluice_kube::{Api, Backoff, Discovery, KubeOptions, RequestError, Term, WatchStates};
use sluice_model::Text;
use sluice_tasks::FailedAttempts;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::api_request;
use crate::server::TrustBundle;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "clustertrustbundles";
/// Versions of the kind, the preferred one first. Kubernetes 1.37 serves `v1`, and `v1beta1` only on request.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const NAME: &str = "istio.io:istiod-ca:root-cert";
const SIGNER: &str = "istio.io/istiod-ca";
/// Interval of checks for changes by other writers.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Keeps the ClusterTrustBundle of the mesh up to date.
pub struct TrustBundleWriter {
    client: Client,
    discovery: Api,
    bundle: watch::Receiver<TrustBundle>,
}

impl TrustBundleWriter {
    /// Writes the roots of a trust bundle.
    #[must_use]
    pub fn new(client: Client, bundle: watch::Receiver<TrustBundle>) -> Self {
        let discovery = Api::new(client.clone(), Text::default(), KubeOptions::default(), WatchStates::default());
        Self { client, discovery, bundle }
    }

    /// Runs until the term ends.
    pub async fn run(mut self, term: impl Into<Term>) {
        let term = term.into();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        let failures = FailedAttempts::of("ClusterTrustBundle writer");
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
                    if let Some(failures) = failures.count() {
                        warn!(
                            target: "ca", bundle = NAME, %error, failures,
                            "failed to write the roots into the ClusterTrustBundle, retrying; reported once a minute"
                        );
                    }
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
        let version = self.version().await?;
        let bundles = format!("/apis/{GROUP}/{version}/{PLURAL}");
        let path = format!("{bundles}/{NAME}");
        let (method, uri, object) = match api_request::send(&self.client, Method::GET, path.clone(), None).await {
            Ok(object) if object["spec"]["trustBundle"] == roots => return Ok(false),
            Ok(mut object) => {
                object["spec"]["trustBundle"] = roots.into();
                (Method::PUT, path, object)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let object = json!({
                    "apiVersion": format!("{GROUP}/{version}"), "kind": "ClusterTrustBundle",
                    "metadata": {"name": NAME},
                    "spec": {"signerName": SIGNER, "trustBundle": roots},
                });
                (Method::POST, bundles, object)
            }
            Err(error) => return Err(error.into()),
        };
        api_request::send(&self.client, method, uri, Some(&object)).await?;
        Ok(true)
    }

    /// The version of the kind that the API server serves.
    async fn version(&self) -> Result<&'static str, RequestError> {
        match self.discovery.discover(GROUP, PLURAL, &VERSIONS).await {
            Discovery::Served(version) => Ok(version),
            Discovery::NotServed => {
                let message = format!("the API server serves {PLURAL}.{GROUP} in none of the versions {VERSIONS:?}");
                Err(RequestError::Status { code: 404, message })
            }
            Discovery::Unknown(reason) => Err(RequestError::Unreachable(format!("discovery fails: {reason}"))),
        }
    }
}
