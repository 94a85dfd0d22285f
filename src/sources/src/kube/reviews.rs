//! SubjectAccessReviews of service accounts whose proxies request Secrets (P17).

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

/// Age after which a result is reviewed again.
const REVIEW_INTERVAL: Duration = Duration::from_secs(60);
/// Wait after a failed review.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Sends a SubjectAccessReview for each service account whose proxies request Secrets. The account must be permitted to
/// list the Secrets of its namespace. The result is valid for a minute. While a cluster is unreachable, the last result
/// stays valid.
pub struct SecretReviewer {
    clients: Clients,
    feed: Feed,
    wanted: Published<SecretReader, ()>,
    results: Input<SecretReader, bool>,
    /// The wanted reviews with the last result and the time of the next request.
    reviews: BTreeMap<SecretReader, (Option<bool>, Instant)>,
}

impl SecretReviewer {
    /// Sends the `wanted` reviews to the clusters of `clients`, and writes the `results`.
    #[must_use]
    pub fn new(
        clients: Clients,
        feed: Feed,
        wanted: Published<SecretReader, ()>,
        results: Input<SecretReader, bool>,
    ) -> Self {
        Self { clients, feed: feed.only(&wanted), wanted, results, reviews: BTreeMap::new() }
    }

    /// Runs until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let due = self.reviews.values().map(|(_, due)| *due).min();
            let Some(batch) = next_batch_or_due(&mut self.feed, due, &stop).await else { return };
            for event in batch.iter().flat_map(|batch| batch.events(&self.wanted)) {
                if event.new.is_some() {
                    self.reviews.insert((*event.key).clone(), (None, Instant::now()));
                } else {
                    self.reviews.remove(&event.key);
                    self.results.delete((*event.key).clone());
                }
            }
            self.review_due().await;
        }
    }

    async fn review_due(&mut self) {
        let now = Instant::now();
        let due = self.reviews.iter().filter(|(_, (_, due))| *due <= now).map(|(reader, _)| reader.clone());
        let requests = due.map(|reader| {
            let client = self.clients.get(&reader.cluster);
            async move {
                let has_client = client.is_some();
                let result = match client {
                    Some(client) => review(client, &reader).await,
                    None => Ok(false),
                };
                (reader, has_client, result)
            }
        });
        for (reader, has_client, result) in join_all(requests).await {
            let Some((last, due)) = self.reviews.get_mut(&reader) else { continue };
            let SecretReader { cluster, namespace, service_account } = &reader;
            *due = Instant::now() + if result.is_ok() && has_client { REVIEW_INTERVAL } else { RETRY_INTERVAL };
            let is_allowed = match result {
                Ok(allowed) => {
                    if *last != Some(allowed) {
                        let event = if has_client {
                            "reviewed access to Secrets"
                        } else {
                            "cluster has no client to review access to Secrets"
                        };
                        info!(%cluster, %namespace, %service_account, allowed, "{event}");
                    }
                    allowed
                }
                Err(error) => {
                    warn!(%cluster, %namespace, %service_account, %error, "failed to review access to Secrets, retrying");
                    last.unwrap_or(false)
                }
            };
            if *last != Some(is_allowed) {
                *last = Some(is_allowed);
                self.results.set(reader, is_allowed);
            }
        }
    }
}

/// Whether the service account may list the Secrets of its namespace.
async fn review(client: Client, reader: &SecretReader) -> Result<bool, RequestError> {
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
    let response: Value = client.request(request).await?;
    Ok(response.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
}
