//! Certificates from a signer of the Kubernetes API. Sluice creates and approves a CertificateSigningRequest, the
//! signer signs it, and Sluice deletes it, also if the caller no longer waits for the certificate.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use sluice_kube::RequestError;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument as _, debug, info_span, warn};

use super::api_request;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// Interval between the first two checks for the certificate. It doubles with each further one.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest interval between two checks.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of attempts to delete an object.
const DELETE_ATTEMPTS: u32 = 4;
/// Wait before the second attempt. It doubles with each further one.
const FIRST_DELETE_DELAY: Duration = Duration::from_millis(250);

/// A CertificateSigningRequest without a certificate. All but [`SigningError::Refused`] are retryable.
#[derive(Debug, thiserror::Error)]
pub(super) enum SigningError {
    /// The object cannot be created.
    #[error("cannot create a CertificateSigningRequest for {signer}: {error}")]
    Create { signer: String, error: RequestError },
    /// The object cannot be approved.
    #[error("cannot approve {name}: {error}")]
    Approve { name: String, error: RequestError },
    /// The object cannot be read.
    #[error(transparent)]
    Read(#[from] RequestError),
    /// The signer or an administrator denied the request.
    #[error("the signer refuses {name}: {reason}")]
    Refused { name: String, reason: String },
    /// The signer did not sign in time.
    #[error("{name} is not signed after {} s", .timeout.as_secs_f64())]
    Timeout { name: String, timeout: Duration },
    /// The certificate in the object is malformed.
    #[error("the certificate of {name} is not {what}")]
    Malformed { name: String, what: &'static str },
    /// The server shuts down.
    #[error("signing is cancelled")]
    Cancelled,
}

/// Creates CertificateSigningRequests.
#[derive(Clone)]
pub(super) struct CsrClient {
    client: Client,
    /// Longest wait for the signer.
    timeout: Duration,
}

/// A request for a certificate.
pub(super) struct SigningRequest<'a> {
    /// The PKCS #10 request, PEM.
    pub(super) request: &'a str,
    /// The full name of the signer.
    pub(super) signer: &'a str,
    /// Key usages.
    pub(super) usages: &'static [&'static str],
    /// Lifetime in seconds.
    pub(super) lifetime: u64,
    /// Reason and message of the approval.
    pub(super) approval: (&'static str, &'static str),
}

impl CsrClient {
    /// Uses this API server.
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    /// The certificate chain from the signer, PEM.
    ///
    /// # Errors
    /// The signer refuses or does not sign in time, or a request to the API server fails.
    pub(super) async fn sign(&self, what: SigningRequest<'_>) -> Result<String, SigningError> {
        let span = info_span!("sign", signer = what.signer);
        let object = request_object(&what);
        let (client, signer, approval) = (self.clone(), what.signer.to_owned(), what.approval);
        let (sender, receiver) = oneshot::channel();
        // A task of its own, because the object exists even if the caller stops waiting.
        let task = async move { client.create_and_wait(&signer, &object, approval, sender).await };
        tokio::spawn(task.instrument(span));
        receiver.await.unwrap_or(Err(SigningError::Cancelled))
    }

    /// Sends the certificate to the caller and deletes the object. Does not wait for the signer if the caller is gone.
    async fn create_and_wait(
        &self,
        signer: &str,
        object: &Value,
        approval: (&str, &str),
        mut caller: oneshot::Sender<Result<String, SigningError>>,
    ) {
        let created = match self.create(signer, object).await {
            Ok(created) => created,
            Err(error) => return drop(caller.send(Err(error))),
        };
        let name = created["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let signed = async {
            self.approve(&name, created, approval).await?;
            self.wait(&name).await
        };
        let signed = tokio::select! {
            signed = signed => Some(signed),
            () = caller.closed() => None,
        };
        self.delete(&name).await;
        match signed {
            Some(signed) => drop(caller.send(signed)),
            None => debug!(target: "pkira", request = name, "deleted a CertificateSigningRequest: its caller is gone"),
        }
    }

    async fn delete(&self, name: &str) {
        let mut delay = FIRST_DELETE_DELAY;
        for attempt in 1..=DELETE_ATTEMPTS {
            let Err(error) = self.send(Method::DELETE, &format!("/{name}"), None).await else { return };
            if matches!(error, RequestError::Status { code: 404, .. }) {
                return;
            }
            if attempt == DELETE_ATTEMPTS {
                warn!(target: "pkira", request = name, %error, "failed to delete a CertificateSigningRequest");
                return;
            }
            tokio::time::sleep(delay).await;
            delay *= 2;
        }
    }

    async fn create(&self, signer: &str, object: &Value) -> Result<Value, SigningError> {
        let created = self.send(Method::POST, "", Some(object)).await;
        created.map_err(|error| SigningError::Create { signer: signer.to_owned(), error })
    }

    async fn approve(&self, name: &str, mut object: Value, (reason, text): (&str, &str)) -> Result<(), SigningError> {
        object["status"]["conditions"] = json!([
            {"type": "Approved", "status": "True", "reason": reason, "message": text},
        ]);
        let approved = self.send(Method::PUT, &format!("/{name}/approval"), Some(&object)).await;
        approved.map(drop).map_err(|error| SigningError::Approve { name: name.to_owned(), error })
    }

    /// Waits for the certificate.
    async fn wait(&self, name: &str) -> Result<String, SigningError> {
        let deadline = Instant::now() + self.timeout;
        let timeout = || SigningError::Timeout { name: name.to_owned(), timeout: self.timeout };
        timeout_at(deadline, self.poll(name)).await.unwrap_or_else(|_| Err(timeout()))
    }

    async fn poll(&self, name: &str) -> Result<String, SigningError> {
        let malformed = |what: &'static str| SigningError::Malformed { name: name.to_owned(), what };
        let mut interval = FIRST_POLL_INTERVAL;
        loop {
            let object = self.send(Method::GET, &format!("/{name}"), None).await?;
            if let Some(text) = object["status"]["certificate"].as_str().filter(|text| !text.is_empty()) {
                let bytes = STANDARD.decode(text).map_err(|_| malformed("base64"))?;
                return String::from_utf8(bytes).map_err(|_| malformed("UTF-8 text"));
            }
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            for condition in conditions {
                if matches!(condition["type"].as_str(), Some("Denied" | "Failed")) {
                    let text = |field: &str| condition[field].as_str().filter(|text| !text.is_empty());
                    let reason = text("message").or_else(|| text("reason")).unwrap_or("no reason is given").to_owned();
                    return Err(SigningError::Refused { name: name.to_owned(), reason });
                }
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(MAX_POLL_INTERVAL);
        }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, RequestError> {
        Ok(api_request::send(&self.client, method, format!("{REQUESTS}{path}"), body).await?)
    }
}

/// The CertificateSigningRequest.
fn request_object(what: &SigningRequest<'_>) -> Value {
    // The API field is an int32.
    let lifetime = what.lifetime.min(u64::from(i32::MAX.unsigned_abs()));
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "csr-workload-"},
        "spec": {
            "request": STANDARD.encode(what.request),
            "signerName": what.signer,
            "usages": what.usages,
            "expirationSeconds": lifetime,
        },
    })
}
