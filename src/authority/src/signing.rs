//! Certificates from a signer of the Kubernetes API. Sluice creates and approves a CertificateSigningRequest, the
//! signer signs it, and Sluice deletes it, also if the caller no longer waits for the certificate. Objects that are left over when
//! the process ends are deleted later.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use sluice_kube::RequestError;
use sluice_telemetry::unix_seconds;
use sluice_watch::LastReason;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument as _, debug, info, info_span, warn};

use super::api_request;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The names of objects begin with it.
const NAME_PREFIX: &str = "csr-workload-";
/// Label of all objects, by which those are found that are left over.
const LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "sluice");
/// Age above the time limit of the signer from which an object is left over. The clock of the API server may differ.
const LEFT_OVER_AFTER: Duration = Duration::from_secs(60);
/// Interval of searches for objects that are left over.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Maximum number of objects that a search finds.
const MAX_FOUND: usize = 500;
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

    /// Deletes objects that are left over, now and at an interval: those of a process that has ended before it deleted them, and
    /// those whose creation was not answered.
    pub(super) async fn delete_left_over(&self) {
        let mut failed = LastReason::default();
        loop {
            match self.delete_older_than(self.timeout + LEFT_OVER_AFTER).await {
                Ok(0) => failed.clear(),
                Ok(number) => {
                    failed.clear();
                    info!(target: "pkira", number, "deleted CertificateSigningRequests that were left over");
                }
                Err(error) => {
                    if failed.is_new(&error.to_string()) {
                        warn!(target: "pkira", %error, "cannot list CertificateSigningRequests: those that are left over stay");
                    }
                }
            }
            tokio::time::sleep(CLEANUP_INTERVAL).await;
        }
    }

    /// Deletes the objects of that age. Returns their number.
    async fn delete_older_than(&self, age: Duration) -> Result<usize, RequestError> {
        let (label, value) = LABEL;
        let query = format!("?labelSelector={}%3D{value}&limit={MAX_FOUND}", label.replace('/', "%2F"));
        let found = self.send(Method::GET, &query, None).await?;
        let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        let before = unix_seconds().saturating_sub(seconds);
        let left_over = found["items"].as_array().into_iter().flatten().filter_map(|object| {
            let metadata = &object["metadata"];
            let created: jiff::Timestamp = metadata["creationTimestamp"].as_str()?.parse().ok()?;
            let name = metadata["name"].as_str().filter(|name| name.starts_with(NAME_PREFIX))?;
            (metadata["labels"][label] == value && created.as_second() <= before).then_some(name)
        });
        let names: Vec<&str> = left_over.collect();
        for name in &names {
            self.delete(name).await;
        }
        Ok(names.len())
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
        "metadata": {"generateName": NAME_PREFIX, "labels": {LABEL.0: LABEL.1}},
        "spec": {
            "request": STANDARD.encode(what.request),
            "signerName": what.signer,
            "usages": what.usages,
            "expirationSeconds": lifetime,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// An object as it is created, with a name and an age in seconds.
    fn object(name: &str, age: i64) -> Value {
        let what = SigningRequest { request: "", signer: "s", usages: &[], lifetime: 60, approval: ("", "") };
        let mut object = request_object(&what);
        let created = jiff::Timestamp::from_second(unix_seconds() - age).expect("a time");
        object["metadata"]["name"] = name.into();
        object["metadata"]["creationTimestamp"] = created.to_string().into();
        object
    }

    #[tokio::test]
    async fn objects_that_are_left_over_are_deleted_and_no_others() {
        let mut of_another = object("csr-workload-4", 3600);
        of_another["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "another"});
        let objects = [
            object("csr-workload-1", 121),
            object("csr-workload-2", 100),
            object("other", 3600),
            of_another,
            object("csr-workload-5", 7200),
        ];
        let list = json!({"items": objects}).to_string();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let record = requests.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
            let path = path.strip_prefix(REQUESTS).unwrap_or(&path).to_owned();
            record.lock().expect("unpoisoned").push(format!("{} {path}", request.method()));
            let body = if request.method() == Method::GET { list.clone() } else { "{}".to_owned() };
            let body = kube::client::Body::from(body.into_bytes());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        });
        let client = CsrClient::new(Client::new(service, "default"), Duration::from_secs(60));
        assert_eq!(client.delete_older_than(client.timeout + LEFT_OVER_AFTER).await.expect("listed"), 2);
        let expect = [
            "GET ?labelSelector=app.kubernetes.io%2Fmanaged-by%3Dsluice&limit=500",
            "DELETE /csr-workload-1",
            "DELETE /csr-workload-5",
        ];
        assert_eq!(*requests.lock().expect("unpoisoned"), expect);
    }
}
