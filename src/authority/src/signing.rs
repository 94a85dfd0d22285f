//! Requests that somebody behind the Kubernetes API signs: each becomes a CertificateSigningRequest, which is approved here,
//! signed by whoever is its signer, and deleted.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use sluice_kube::chain;
use tokio::time::Instant;
use tracing::warn;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// First and longest wait between two looks at whether it has signed.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Has requests signed.
pub(super) struct Signing {
    client: Client,
    /// How long to wait for a signer.
    patience: Duration,
}

/// What is to be signed, and why.
pub(super) struct ToSign<'a> {
    /// The request, PEM.
    pub(super) request: &'a str,
    /// The full name of the signer.
    pub(super) signer: &'a str,
    /// What the certificate is for.
    pub(super) usages: &'a [&'a str],
    /// How long it is to live, in seconds.
    pub(super) lifetime: u64,
    /// Why it is approved.
    pub(super) approval: (&'a str, &'a str),
}

impl Signing {
    /// Through this API server.
    pub(super) fn new(client: Client, patience: Duration) -> Self {
        Self { client, patience }
    }

    /// What the signer makes of it, a PEM text.
    ///
    /// # Errors
    /// There is no good answer in time.
    pub(super) async fn sign(&self, what: ToSign<'_>) -> Result<String, String> {
        let created = self.create(&what).await?;
        let name = created["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let signed = match self.approve(&name, created, what.approval).await {
            Ok(()) => self.wait(&name).await,
            Err(error) => Err(format!("cannot approve {name}: {error}")),
        };
        if let Err(error) = self.send(Method::DELETE, &format!("/{name}"), None).await {
            warn!(target: "pkira", request = name, error, "cannot delete a request for a certificate");
        }
        signed
    }

    async fn create(&self, what: &ToSign<'_>) -> Result<Value, String> {
        let ToSign { request, signer, usages, lifetime, .. } = what;
        // More seconds than the API can say are no wish.
        let lifetime = (*lifetime).min(u64::from(i32::MAX.unsigned_abs()));
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "csr-workload-"},
            "spec": {
                "request": STANDARD.encode(request),
                "signerName": signer,
                "usages": usages,
                "expirationSeconds": lifetime,
            },
        });
        let created = self.send(Method::POST, "", Some(&object)).await;
        created.map_err(|error| format!("cannot create a CertificateSigningRequest for {signer}: {error}"))
    }

    async fn approve(&self, name: &str, mut object: Value, (reason, text): (&str, &str)) -> Result<(), String> {
        object["status"]["conditions"] = json!([
            {"type": "Approved", "status": "True", "reason": reason, "message": text},
        ]);
        self.send(Method::PUT, &format!("/{name}/approval"), Some(&object)).await.map(drop)
    }

    /// The certificate, once it is signed.
    async fn wait(&self, name: &str) -> Result<String, String> {
        let deadline = Instant::now() + self.patience;
        let mut look = LOOK.0;
        loop {
            let object = self.send(Method::GET, &format!("/{name}"), None).await?;
            if let Some(text) = object["status"]["certificate"].as_str().filter(|text| !text.is_empty()) {
                let bytes = STANDARD.decode(text).map_err(|_| format!("the certificate of {name} is no base64"))?;
                return String::from_utf8(bytes).map_err(|_| format!("the certificate of {name} is no text"));
            }
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            for condition in conditions {
                if matches!(condition["type"].as_str(), Some("Denied" | "Failed")) {
                    let reason = condition["message"].as_str().unwrap_or_default();
                    return Err(format!("the signer refuses {name}: {reason}"));
                }
            }
            if Instant::now() + look > deadline {
                return Err(format!("{name} is not signed after {} s", self.patience.as_secs_f64()));
            }
            tokio::time::sleep(look).await;
            look = (look * 2).min(LOOK.1);
        }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{REQUESTS}{path}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
            .map_err(|error| error.to_string())?;
        self.client.request(request).await.map_err(|error| chain(&error))
    }
}
