//! Asks clusters whether service accounts may read Secrets (P17).

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use sluice_engine::{Feed, Input, Published};
use sluice_kube::{Clients, RequestError, next_batch_or_due};
use sluice_model::SecretReader;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Age after which a result is renewed.
const REVIEW_INTERVAL: Duration = Duration::from_secs(60);
/// Wait after a failed review.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Sends a SubjectAccessReview for each service account whose proxies request Secrets: may it list those of its namespace?
/// The result is valid for a minute. While a cluster is unreachable, its last result stays valid.
pub struct SecretReviewer {
    clients: Clients,
    feed: Feed,
    wanted: Published<SecretReader, ()>,
    answers: Input<SecretReader, bool>,
    /// What was answered, and when to ask again.
    open: BTreeMap<SecretReader, (Option<bool>, Instant)>,
}

impl SecretReviewer {
    /// Asks the clusters of `clients` what `wanted` holds and writes `answers`.
    #[must_use]
    pub fn new(
        clients: Clients,
        feed: Feed,
        wanted: Published<SecretReader, ()>,
        answers: Input<SecretReader, bool>,
    ) -> Self {
        Self { clients, feed: feed.only(&wanted), wanted, answers, open: BTreeMap::new() }
    }

    /// Until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let due = self.open.values().map(|(_, due)| *due).min();
            let Some(batch) = next_batch_or_due(&mut self.feed, due, &stop).await else { return };
            for event in batch.iter().flat_map(|batch| batch.events(&self.wanted)) {
                if event.new.is_some() {
                    self.open.insert((*event.key).clone(), (None, Instant::now()));
                } else {
                    self.open.remove(&event.key);
                    self.answers.delete((*event.key).clone());
                }
            }
            self.ask_due().await;
        }
    }

    async fn ask_due(&mut self) {
        let now = Instant::now();
        let due = self.open.iter().filter(|(_, (_, due))| *due <= now).map(|(reader, _)| reader.clone());
        let asked = due.map(|reader| {
            let client = self.clients.get(&reader.cluster);
            async move {
                let is_known = client.is_some();
                let answer = match client {
                    Some(client) => ask(client, &reader).await,
                    None => Ok(false),
                };
                (reader, is_known, answer)
            }
        });
        for (reader, is_known, answer) in join_all(asked).await {
            let Some((known, due)) = self.open.get_mut(&reader) else { continue };
            let SecretReader { cluster, namespace, service_account } = &reader;
            *due = Instant::now() + if answer.is_ok() && is_known { REVIEW_INTERVAL } else { RETRY_INTERVAL };
            let answer = match (answer, *known) {
                (Ok(allowed), _) => {
                    if *known != Some(allowed) {
                        info!(%cluster, %namespace, %service_account, allowed, "reviewed access to Secrets");
                    }
                    allowed
                }
                (Err(error), known) => {
                    warn!(%cluster, %namespace, %service_account, %error, "failed to review access to Secrets, retrying");
                    known.unwrap_or(false)
                }
            };
            if *known != Some(answer) {
                *known = Some(answer);
                self.answers.set(reader, answer);
            }
        }
    }
}

/// Whether the cluster lets the service account list the Secrets of its namespace.
async fn ask(client: Client, reader: &SecretReader) -> Result<bool, RequestError> {
    let SecretReader { namespace, service_account, .. } = reader;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{namespace}:{service_account}"),
            "resourceAttributes": {"namespace": namespace, "verb": "list", "resource": "secrets"},
        },
    });
    let request = Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
        .header(header::CONTENT_TYPE, "application/json")
        .body(review.to_string().into_bytes())
        .map_err(|error| RequestError::Malformed(error.to_string()))?;
    let answer: Value = client.request(request).await?;
    Ok(answer.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
}
