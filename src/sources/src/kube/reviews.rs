//! SubjectAccessReviews of service accounts whose proxies request Secrets (P17).

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use sluice_engine::{Feed, Input, Published};
use sluice_kube::{Clients, RequestError, next_batch_or_due, request};
use sluice_model::SecretReader;
use sluice_tasks::{FailedAttempts, catch_panic};
use tokio::task::JoinSet;
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
    reviews: BTreeMap<SecretReader, Review>,
    running: JoinSet<(SecretReader, Outcome)>,
    failures: FailedAttempts,
}

/// A wanted review.
struct Review {
    /// The last result.
    last: Option<bool>,
    /// The time of the next request; `None` while one is running.
    due: Option<Instant>,
}

/// The outcome of a request.
enum Outcome {
    /// Whether access is allowed.
    Reviewed(bool),
    NoClient,
    Failed(String),
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
        Self {
            clients,
            feed: feed.only(&wanted),
            wanted,
            results,
            reviews: BTreeMap::new(),
            running: JoinSet::new(),
            failures: FailedAttempts::of("Secret reviewer"),
        }
    }

    /// Runs until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let due = self.reviews.values().filter_map(|review| review.due).min();
            tokio::select! {
                batch = next_batch_or_due(&mut self.feed, due, &stop) => {
                    let Some(batch) = batch else { return };
                    let wanted = self.wanted.clone();
                    for event in batch.iter().flat_map(|batch| batch.events(&wanted)) {
                        self.change(&event.key, event.new.is_some());
                    }
                }
                // A cluster that does not respond delays only its own reviews.
                Some(done) = self.running.join_next() => if let Ok((reader, outcome)) = done {
                    self.finish(reader, outcome);
                },
            }
            self.start_due();
        }
    }

    fn change(&mut self, reader: &SecretReader, is_wanted: bool) {
        if is_wanted {
            self.reviews.insert(reader.clone(), Review { last: None, due: Some(Instant::now()) });
        } else {
            self.reviews.remove(reader);
            self.results.delete(reader.clone());
        }
    }

    /// Starts the reviews that are due.
    fn start_due(&mut self) {
        let now = Instant::now();
        for (reader, state) in self.reviews.iter_mut().filter(|(_, review)| review.due.is_some_and(|due| due <= now)) {
            state.due = None;
            let (reader, client) = (reader.clone(), self.clients.get(&reader.cluster));
            self.running.spawn(async move {
                let outcome = match client {
                    // Without an outcome, the review would never be repeated.
                    Some(client) => match catch_panic(review(client, &reader)).await {
                        Ok(Ok(allowed)) => Outcome::Reviewed(allowed),
                        Ok(Err(error)) => Outcome::Failed(error.to_string()),
                        Err(panic) => Outcome::Failed(format!("the review {panic}")),
                    },
                    None => Outcome::NoClient,
                };
                (reader, outcome)
            });
        }
    }

    fn finish(&mut self, reader: SecretReader, outcome: Outcome) {
        // It may not be wanted any more, or another review may have been started meanwhile.
        let Some(review) = self.reviews.get_mut(&reader).filter(|review| review.due.is_none()) else { return };
        let SecretReader { cluster, namespace, service_account } = &reader;
        let (is_allowed, interval) = match outcome {
            Outcome::Reviewed(allowed) => {
                if review.last != Some(allowed) {
                    info!(%cluster, %namespace, %service_account, allowed, "reviewed access to Secrets");
                }
                (allowed, REVIEW_INTERVAL)
            }
            Outcome::NoClient => {
                if review.last != Some(false) {
                    info!(%cluster, %namespace, %service_account, "cluster has no client to review access to Secrets");
                }
                (false, RETRY_INTERVAL)
            }
            Outcome::Failed(error) => {
                if let Some(failures) = self.failures.count() {
                    warn!(
                        %cluster, %namespace, %service_account, %error, failures,
                        "failed to review access to Secrets, retrying; reported once a minute"
                    );
                }
                (review.last.unwrap_or(false), RETRY_INTERVAL)
            }
        };
        review.due = Some(Instant::now() + interval);
        if review.last != Some(is_allowed) {
            review.last = Some(is_allowed);
            self.results.set(reader, is_allowed);
        }
    }
}

/// Whether the service account may list the Secrets of its namespace.
async fn review(client: Client, reader: &SecretReader) -> Result<bool, RequestError> {
    let SecretReader { namespace, service_account, .. } = reader;
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{namespace}:{service_account}"),
            "resourceAttributes": {"namespace": namespace, "verb": "list", "resource": "secrets"},
        },
    });
    let review = Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes())
        .map_err(|error| RequestError::Malformed(error.to_string()))?;
    let response: Value = request(&client, review).await?;
    Ok(response.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
}
