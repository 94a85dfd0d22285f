//! The roots that workloads trust, from several sources (P19): the authority, external signers, mesh config, and the
//! trust bundles that other trust domains publish.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use sluice_ca::Certificate;
use sluice_engine::{Engine, Input};
use sluice_graph::Handles;
use sluice_jwks::JwksClient;
use sluice_model::{JwksKey, MeshConfig, Text};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{KubernetesSigner, TrustBundle};
use crate::server::next;

/// Interval between two fetches of published trust bundles.
const FETCH_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// Interval after a failed fetch.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps the roots that workloads trust up to date in the graph.
pub struct TrustAnchors {
    client: JwksClient,
    /// The trust bundle of the authority.
    bundle: watch::Receiver<TrustBundle>,
    workload_signer: Option<Arc<KubernetesSigner>>,
    input: Input<(), Vec<Text>>,
    /// Roots by address. If a later fetch fails, the previous roots stay.
    fetched: BTreeMap<Text, Vec<CertificateDer<'static>>>,
    /// The roots that were last written to the input.
    written: Vec<Text>,
}

impl TrustAnchors {
    /// Fetches bundles with `client`, and writes to `input`.
    #[must_use]
    pub fn new(
        client: JwksClient,
        bundle: watch::Receiver<TrustBundle>,
        workload_signer: Option<Arc<KubernetesSigner>>,
        input: Input<(), Vec<Text>>,
    ) -> Self {
        Self { client, bundle, workload_signer, input, fetched: BTreeMap::new(), written: Vec::new() }
    }

    /// Runs until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, engine: Engine, handles: Handles, stop: CancellationToken) {
        let mut feed = engine.feed().only(&handles.mesh);
        let mut mesh = MeshConfig::default();
        let mut due = Instant::now();
        let mut signer_roots = self.workload_signer.as_ref().map(|signer| signer.changes());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                batch = feed.next() => {
                    let Some(batch) = batch else { return };
                    for event in batch.events(&handles.mesh) {
                        mesh = event.new.map(|mesh| (*mesh).clone()).unwrap_or_default();
                    }
                    let wanted = addresses(&mesh);
                    self.fetched.retain(|address, _| wanted.contains(address));
                    if wanted.iter().any(|address| !self.fetched.contains_key(address)) {
                        due = Instant::now();
                    }
                }
                changed = self.bundle.changed() => if changed.is_err() { return },
                () = next(&mut signer_roots) => {}
                () = tokio::time::sleep_until(due) => {
                    due = Instant::now() + self.fetch(&mesh).await;
                }
            }
            self.write(&mesh);
        }
    }

    /// Fetches the published bundles. Returns the time until the next fetch.
    async fn fetch(&mut self, mesh: &MeshConfig) -> Duration {
        let wanted = addresses(mesh);
        let client = &self.client;
        let fetch_one = async |address: Text| {
            let uri = match address.split_once("://") {
                Some(("https", _)) => address.clone(),
                Some(_) => return (address, Err("the URL scheme is not https".to_owned())),
                None => format!("https://{address}").into(),
            };
            let text = client.fetch(&JwksKey { uri, ..JwksKey::default() }, FETCH_TIMEOUT).await;
            (address, text.map_err(|error| error.to_string()).and_then(|text| parse_bundle(&text)))
        };
        let mut wait = FETCH_INTERVAL;
        for (address, result) in join_all(wanted.into_iter().map(fetch_one)).await {
            match result {
                Ok(roots) => drop(self.fetched.insert(address, roots)),
                Err(error) => {
                    warn!(target: "trustBundle", %address, error, "failed to fetch a trust bundle, its previous roots stay");
                    wait = wait.min(RETRY_INTERVAL);
                }
            }
        }
        wait
    }

    fn write(&mut self, mesh: &MeshConfig) {
        let mut all = BTreeMap::new();
        let mut add = |source: &str, der: &CertificateDer<'static>| match Certificate::parse("root", der) {
            Ok(root) if root.is_authority => drop(all.insert(root.pem(), ())),
            Ok(_) => warn!(target: "trustBundle", source, "a certificate is ignored: it is not a CA certificate"),
            Err(error) => warn!(target: "trustBundle", source, %error, "a certificate is ignored"),
        };
        let bundle = self.bundle.borrow_and_update().clone();
        // The server certificate may have another signer, whose roots are not for workloads.
        let own = if bundle.workload_roots.is_empty() { bundle.roots } else { bundle.workload_roots };
        let signers = self.workload_signer.iter().flat_map(|signer| signer.roots()).map(|text| ("signer", text));
        let of_mesh = mesh.ca_certificates.iter().filter(|certificate| !certificate.pem.is_empty());
        let of_mesh = of_mesh.map(|certificate| ("mesh config", certificate.pem.to_string()));
        for (source, text) in [("authority", own)].into_iter().chain(signers).chain(of_mesh) {
            for der in CertificateDer::pem_slice_iter(text.as_bytes()) {
                match der {
                    Ok(der) => add(source, &der),
                    Err(_) => warn!(target: "trustBundle", source, "text that is not PEM certificates is ignored"),
                }
            }
        }
        for (address, roots) in &self.fetched {
            roots.iter().for_each(|root| add(address, root));
        }
        let roots: Vec<Text> = all.into_keys().map(Text::from).collect();
        if roots != self.written {
            info!(target: "trustBundle", roots = roots.len(), "the roots that workloads trust have changed");
            self.written.clone_from(&roots);
            self.input.set((), roots);
        }
    }
}

/// The URLs of published bundles.
fn addresses(mesh: &MeshConfig) -> Vec<Text> {
    let published = mesh.ca_certificates.iter().filter(|certificate| certificate.pem.is_empty());
    published.map(|certificate| certificate.spiffe_bundle_url.clone()).filter(|address| !address.is_empty()).collect()
}

#[derive(Deserialize)]
struct Bundle {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(rename = "use", default)]
    usage: String,
    #[serde(default)]
    x5c: Vec<String>,
}

/// The roots of a SPIFFE bundle: a JWK set, in which each key with the use `x509-svid` has one certificate.
fn parse_bundle(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    use base64::Engine as _;
    let bundle: Bundle = serde_json::from_str(text).map_err(|_| "it is not a SPIFFE trust bundle".to_owned())?;
    let mut roots = Vec::new();
    for key in bundle.keys.iter().filter(|key| key.usage == "x509-svid") {
        let [certificate] = key.x5c.as_slice() else {
            return Err(format!("a key has {} certificates, not one", key.x5c.len()));
        };
        let der = base64::engine::general_purpose::STANDARD.decode(certificate);
        let der = der.map_err(|_| "a certificate is not base64".to_owned())?;
        Certificate::parse("root", &der).map_err(|error| error.to_string())?;
        roots.push(CertificateDer::from(der));
    }
    if roots.is_empty() { Err("it has no root".to_owned()) } else { Ok(roots) }
}

#[cfg(test)]
mod tests;
