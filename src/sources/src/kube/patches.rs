//! Writes parts of objects: addresses of ServiceEntries (S10) and of Ingresses (C11), conditions (S11), taints of nodes (S24).
//!
//! A part is written by a JSON patch that tests the present value. Server-side apply would replace a value that was not read,
//! such as the addresses that another control plane has just allocated, and the lists of conditions are not maps: it would
//! replace the conditions of all other writers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, header};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use sluice_engine::{Batch, Feed, Published, Value as Record};
use sluice_graph::{AddressUpdate, ConditionUpdate, IngressStatusUpdate, TaintRemoval};
use sluice_kube::{Backoff, ObjectPath, Term, TermEnded, chain, next_batch_or_due};
use sluice_model::{Host, ObjectKey, Text};
use tokio::time::Instant;
use tracing::{debug, warn};

/// A part of an object that differs from what it should be.
pub trait PartUpdate: Record {
    /// The collection of the objects.
    const OBJECTS: ObjectPath;
    /// The subresource that contains the part, such as `status`; empty for the object itself.
    const SUBRESOURCE: &'static str;

    /// JSON patches: the next one is tried if the object is not as the previous one tests.
    fn patches(&self) -> Vec<Value>;
}

impl PartUpdate for AddressUpdate {
    const OBJECTS: ObjectPath = ObjectPath::new("/apis/networking.istio.io/v1", "serviceentries");
    const SUBRESOURCE: &'static str = "status";

    fn patches(&self) -> Vec<Value> {
        replace_list("/status", "addresses", &addresses(&self.is), &addresses(&self.wanted))
    }
}

impl PartUpdate for IngressStatusUpdate {
    const OBJECTS: ObjectPath = ObjectPath::new("/apis/networking.k8s.io/v1", "ingresses");
    const SUBRESOURCE: &'static str = "status";

    fn patches(&self) -> Vec<Value> {
        let address = |(host, ip): &(Text, Text)| match host.as_str() {
            "" => json!({"ip": ip.as_str()}),
            host => json!({"hostname": host}),
        };
        let wanted: Value = self.wanted.iter().map(address).collect();
        replace_list("/status/loadBalancer", "ingress", &list(&self.is), &wanted)
    }
}

impl PartUpdate for ConditionUpdate {
    const OBJECTS: ObjectPath = ObjectPath::new("/apis/networking.istio.io/v1", "serviceentries");
    const SUBRESOURCE: &'static str = "status";

    fn patches(&self) -> Vec<Value> {
        let present = list(&self.is);
        let others = present.as_array().into_iter().flatten();
        let mut wanted: Vec<Value> = others.filter(|it| it["type"] != self.condition.as_str()).cloned().collect();
        wanted.extend(self.wanted.as_ref().map(|(reason, message)| {
            json!({
                "type": self.condition.as_str(), "status": "True", "reason": reason.as_str(),
                "message": message.as_str(), "lastTransitionTime": Timestamp::now().to_string(),
            })
        }));
        replace_list("/status", "conditions", &present, &Value::Array(wanted))
    }
}

impl PartUpdate for TaintRemoval {
    const OBJECTS: ObjectPath = ObjectPath::new("/api/v1", "nodes");
    const SUBRESOURCE: &'static str = "";

    fn patches(&self) -> Vec<Value> {
        // The last one first: removals move those that follow.
        let remove = |position: &usize| {
            let path = format!("/spec/taints/{position}");
            [
                json!({"op": "test", "path": format!("{path}/key"), "value": self.taint.as_str()}),
                json!({"op": "remove", "path": path}),
            ]
        };
        vec![self.positions.iter().rev().flat_map(remove).collect()]
    }
}

/// The list of a JSON text; an empty one if the text is empty.
fn list(text: &str) -> Value {
    let parsed: Value = serde_json::from_str(text).unwrap_or_default();
    if parsed.is_array() { parsed } else { json!([]) }
}

/// Replaces the list `name` of the object `parent`. A list without items may be absent, and so may its parent.
fn replace_list(parent: &str, name: &str, present: &Value, wanted: &Value) -> Vec<Value> {
    let path = format!("{parent}/{name}");
    let replace = |present: &Value| {
        json!([
            {"op": "test", "path": path, "value": present},
            {"op": "add", "path": path, "value": wanted},
        ])
    };
    if *present != json!([]) {
        return vec![replace(present)];
    }
    let with_parent = json!([
        {"op": "test", "path": parent, "value": null},
        {"op": "add", "path": parent, "value": {name: wanted}},
    ]);
    vec![replace(&Value::Null), with_parent, replace(present)]
}

/// Writes a part of objects until they contain it.
///
/// One of several control planes writes, see [`Election`](sluice_kube::Election). If two write at the same time, neither
/// overwrites a part that it has not read.
pub struct PartWriter<U> {
    client: Client,
    feed: Feed,
    updates: Published<ObjectKey, U>,
    backoff: Backoff,
    /// Pending writes, with the time of the next attempt.
    pending: BTreeMap<ObjectKey, (Arc<U>, Instant)>,
    /// All inputs of the graph are synced.
    synced: bool,
}

/// Time in which the watch has to report a written part. The part is written again after that.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(60);

impl<U: PartUpdate> PartWriter<U> {
    /// Writes the `updates` of the engine through `client`.
    #[must_use]
    pub fn new(client: Client, feed: Feed, updates: Published<ObjectKey, U>) -> Self {
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
            // Before all inputs are synced, a used address may look free, and a Service may look absent.
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
                    debug!(kind = U::OBJECTS.plural(), object = %key, "wrote a part of an object");
                    OBSERVE_TIMEOUT
                }
                Err(error) => {
                    let kind = U::OBJECTS.plural();
                    warn!(kind, object = %key, error = chain(&error), "failed to write a part of an object, retrying");
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

    async fn write(&self, key: &ObjectKey, update: &U) -> Result<(), kube::Error> {
        let mut result = Ok(());
        for patch in update.patches() {
            result = self.patch(key, &patch).await;
            if !matches!(&result, Err(kube::Error::Api(status)) if is_failed_test(status.code)) {
                break;
            }
        }
        result
    }

    async fn patch(&self, key: &ObjectKey, operations: &Value) -> Result<(), kube::Error> {
        let uri = U::OBJECTS.of(&key.namespace, &key.name, U::SUBRESOURCE);
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!("{uri}?fieldManager=sluice"))
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
