//! Writes the addresses of ServiceEntries into their statuses (S10).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use sluice_engine::{Batch, Feed, Published};
use sluice_graph::AddressUpdate;
use sluice_kube::{Backoff, Term, TermEnded, chain, next_batch_or_due};
use sluice_model::{Host, ObjectKey, Text};
use tokio::time::Instant;
use tracing::{debug, warn};

/// Writes allocated addresses until the statuses contain them.
///
/// One of several replicas writes, see [`Election`](sluice_kube::Election). If two replicas write at the same time, they
/// allocate the same addresses, and neither overwrites a status that it has not read.
pub struct AddressWriter {
    client: Client,
    feed: Feed,
    updates: Published<ObjectKey, AddressUpdate>,
    backoff: Backoff,
    /// Pending writes, with the time of the next attempt.
    pending: BTreeMap<ObjectKey, (Arc<AddressUpdate>, Instant)>,
    /// All inputs of the graph are synced.
    synced: bool,
}

/// Time in which the watch has to report a written status. The status is written again after that.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(60);

impl AddressWriter {
    /// Writes the `updates` of the engine through `client`.
    #[must_use]
    pub fn new(client: Client, feed: Feed, updates: Published<ObjectKey, AddressUpdate>) -> Self {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        Self { client, feed: feed.only(&updates), updates, backoff, pending: BTreeMap::new(), synced: false }
    }

    /// Runs until the term or the engine ends.
    pub async fn run(mut self, term: impl Into<Term>) {
        let term = term.into();
        loop {
            let due = self.pending.values().map(|(_, due)| *due).min();
            let Some(batch) = next_batch_or_due(&mut self.feed, due, term.ended()).await else { return };
            self.synced |= batch.as_ref().is_some_and(Batch::all_synced);
            for event in batch.iter().flat_map(|batch| batch.events(&self.updates)) {
                match event.new {
                    Some(update) => self.pending.insert((*event.key).clone(), (update, Instant::now())),
                    None => self.pending.remove(&event.key),
                };
            }
            // Before all inputs are synced, a used address may look free.
            if self.synced && self.write_due(&term).await.is_err() {
                return;
            }
        }
    }

    async fn write_due(&mut self, term: &Term) -> Result<(), TermEnded> {
        let now = Instant::now();
        let due: Vec<_> = self.pending.iter().filter(|(_, (_, due))| *due <= now).collect();
        let due: Vec<_> = due.into_iter().map(|(key, (update, _))| (key.clone(), update.clone())).collect();
        for (key, update) in due {
            let wait = match term.write(self.write(&key, &update)).await? {
                Ok(()) => {
                    self.backoff.reset();
                    debug!(service_entry = %key, "wrote allocated addresses");
                    OBSERVE_TIMEOUT
                }
                Err(error) => {
                    warn!(service_entry = %key, error = chain(&error), "failed to write allocated addresses, retrying");
                    self.backoff.failed()
                }
            };
            let again = Instant::now() + wait;
            if let Some((_, due)) = self.pending.get_mut(&key) {
                *due = again;
            }
        }
        Ok(())
    }

    async fn write(&self, key: &ObjectKey, update: &AddressUpdate) -> Result<(), kube::Error> {
        let wanted = addresses(&update.wanted);
        let current = if update.is.is_empty() { Value::Null } else { addresses(&update.is) };
        let change = json!([
            {"op": "test", "path": "/status/addresses", "value": current},
            {"op": "add", "path": "/status/addresses", "value": wanted},
        ]);
        match self.patch(key, &change).await {
            Err(kube::Error::Api(status)) if update.is.is_empty() && is_failed_test(status.code) => {
                // The object has no status, or an empty list of addresses.
                let add_status = json!([
                    {"op": "test", "path": "/status", "value": null},
                    {"op": "add", "path": "/status", "value": {"addresses": wanted}},
                ]);
                let replace_empty = json!([
                    {"op": "test", "path": "/status/addresses", "value": []},
                    {"op": "replace", "path": "/status/addresses", "value": wanted},
                ]);
                match self.patch(key, &add_status).await {
                    Err(kube::Error::Api(status)) if is_failed_test(status.code) => {
                        self.patch(key, &replace_empty).await
                    }
                    result => result,
                }
            }
            result => result,
        }
    }

    async fn patch(&self, key: &ObjectKey, operations: &Value) -> Result<(), kube::Error> {
        let uri = format!(
            "/apis/networking.istio.io/v1/namespaces/{}/serviceentries/{}/status?fieldManager=sluice",
            key.namespace, key.name
        );
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(uri)
            .header(header::CONTENT_TYPE, "application/json-patch+json")
            .body(operations.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        sluice_kube::request::<Value>(&self.client, request).await.map(|_| ())
    }
}

/// Whether a status code means that the object differs from what the patch tests.
fn is_failed_test(code: u16) -> bool {
    code == 422 || code == 400
}

fn addresses(list: &[(Host, Text)]) -> Value {
    list.iter().map(|(host, value)| json!({"value": value.as_str(), "host": host.as_str()})).collect()
}
