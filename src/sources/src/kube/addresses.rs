//! Writes the addresses of ServiceEntries into their statuses (S10).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use sluice_engine::{Batch, Feed, Published};
use sluice_graph::AddressUpdate;
use sluice_kube::{Backoff, chain, next_batch_or_due};
use sluice_model::{Host, ObjectKey, Text};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Writes allocated addresses until the statuses contain them.
///
/// One of several replicas should write, see [`Election`](sluice_kube::Election). If two write for a moment, they allocate
/// the same addresses, and neither overwrites a status it has not read.
pub struct AddressWriter {
    client: Client,
    feed: Feed,
    updates: Published<ObjectKey, AddressUpdate>,
    backoff: Backoff,
    /// Pending writes, with the time of the next attempt.
    open: BTreeMap<ObjectKey, (Arc<AddressUpdate>, Instant)>,
    /// All inputs are synced.
    synced: bool,
}

/// Wait for the watch to report a written status.
const UNSEEN: Duration = Duration::from_secs(60);

impl AddressWriter {
    /// Writes the `updates` of the engine through `client`.
    #[must_use]
    pub fn new(client: Client, feed: Feed, updates: Published<ObjectKey, AddressUpdate>) -> Self {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        Self { client, feed: feed.only(&updates), updates, backoff, open: BTreeMap::new(), synced: false }
    }

    /// Runs until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let due = self.open.values().map(|(_, due)| *due).min();
            let Some(batch) = next_batch_or_due(&mut self.feed, due, &stop).await else { return };
            self.synced |= batch.as_ref().is_some_and(Batch::all_synced);
            for event in batch.iter().flat_map(|batch| batch.events(&self.updates)) {
                match event.new {
                    Some(update) => self.open.insert((*event.key).clone(), (update, Instant::now())),
                    None => self.open.remove(&event.key),
                };
            }
            // Before all inputs are synced, a used address may look free.
            if self.synced {
                self.write_due().await;
            }
        }
    }

    async fn write_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.open.iter().filter(|(_, (_, due))| *due <= now).collect();
        let due: Vec<_> = due.into_iter().map(|(key, (update, _))| (key.clone(), update.clone())).collect();
        for (key, update) in due {
            let wait = match self.write(&key, &update).await {
                Ok(()) => {
                    self.backoff.worked();
                    debug!(service_entry = %key, "wrote allocated addresses");
                    UNSEEN
                }
                Err(error) => {
                    warn!(service_entry = %key, error = chain(&error), "failed to write allocated addresses, retrying");
                    self.backoff.failed()
                }
            };
            let again = Instant::now() + wait;
            if let Some((_, due)) = self.open.get_mut(&key) {
                *due = again;
            }
        }
    }

    async fn write(&self, key: &ObjectKey, update: &AddressUpdate) -> Result<(), kube::Error> {
        let (is, wanted) = (addresses(&update.is), addresses(&update.wanted));
        let known = if update.is.is_empty() { Value::Null } else { is };
        let change = json!([
            {"op": "test", "path": "/status/addresses", "value": known},
            {"op": "add", "path": "/status/addresses", "value": wanted},
        ]);
        match self.patch(key, &change).await {
            Err(kube::Error::Api(status)) if update.is.is_empty() && is_misfit(status.code) => {
                // The object has no status, or an empty list.
                let begin = json!([
                    {"op": "test", "path": "/status", "value": null},
                    {"op": "add", "path": "/status", "value": {"addresses": wanted}},
                ]);
                let refill = json!([
                    {"op": "test", "path": "/status/addresses", "value": []},
                    {"op": "replace", "path": "/status/addresses", "value": wanted},
                ]);
                match self.patch(key, &begin).await {
                    Err(kube::Error::Api(status)) if is_misfit(status.code) => self.patch(key, &refill).await,
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
        self.client.request::<Value>(request).await.map(|_| ())
    }
}

/// The object differs from what the patch tests.
fn is_misfit(code: u16) -> bool {
    code == 422 || code == 400
}

fn addresses(list: &[(Host, Text)]) -> Value {
    list.iter().map(|(host, value)| json!({"value": value.as_str(), "host": host.as_str()})).collect()
}
