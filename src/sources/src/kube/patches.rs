//! Writes parts of objects: addresses of ServiceEntries (S10) and of Ingresses (C11), conditions (S11, A07), taints of nodes (S24),
//! statuses of the Gateway API (G05). Creates GatewayClasses (G01) and ServiceExports (S22), and writes the Services of InferencePools (G09).
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
use sluice_engine::{Batch, Feed, Key, Published, Value as Record};
use sluice_graph::{
    AddressUpdate, ConditionUpdate, IngressStatusUpdate, MissingGatewayClass, MissingServiceExport, ShadowPort,
    ShadowService, StatusKey, StatusUpdate, TaintRemoval,
};
use sluice_kube::{Backoff, ObjectPath, Term, TermEnded, chain, next_batch_or_due};
use sluice_model::gateway_api::INFERENCE_GROUP;
use sluice_model::{Host, Labels, ObjectKey, Text};
use sluice_tasks::FailedAttempts;
use tokio::time::Instant;
use tracing::{debug, warn};

const SERVICE_ENTRIES: ObjectPath = ObjectPath::new("/apis/networking.istio.io/v1", "serviceentries");
/// The owner of the fields of the Services of InferencePools, as in the reference.
const POOL_FIELD_MANAGER: &str = "istio.io/inference-pool-controller";
/// The owner of all other fields.
const FIELD_MANAGER: &str = "sluice";
/// All versions of the Gateway API that are still supported have it.
const GATEWAY_CLASS_VERSION: &str = "gateway.networking.k8s.io/v1";

/// A part of an object that differs from what it should be.
pub trait PartUpdate: Record {
    /// Name of the task that writes the part.
    const TASK: &'static str;
    /// Key of the updates.
    type Key: Key;
    /// The subresource that contains the part, such as `status`; empty for the object itself.
    const SUBRESOURCE: &'static str;

    /// The object, and its collection. `None` if the API server cannot have it.
    fn object<'a>(&self, key: &'a Self::Key) -> Option<(ObjectPath, &'a ObjectKey)>;

    /// What is written: the next write is tried if the object is not as the previous one tests.
    fn writes(&self, key: &Self::Key) -> Vec<PartWrite>;
}

/// A write of a part of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum PartWrite {
    /// A JSON patch.
    Patch(Value),
    /// The object is created, unless it exists.
    Create(Value),
    /// Server-side apply of the whole object: its fields are taken from other owners.
    Apply {
        /// The owner of the fields.
        field_manager: &'static str,
        /// The object.
        object: Value,
    },
}

impl PartUpdate for AddressUpdate {
    const TASK: &'static str = "address writer";
    type Key = ObjectKey;
    const SUBRESOURCE: &'static str = "status";

    fn object<'a>(&self, key: &'a ObjectKey) -> Option<(ObjectPath, &'a ObjectKey)> {
        Some((SERVICE_ENTRIES, key))
    }

    fn writes(&self, _: &ObjectKey) -> Vec<PartWrite> {
        replace_list("/status", "addresses", &addresses(&self.is), &addresses(&self.wanted))
    }
}

impl PartUpdate for IngressStatusUpdate {
    const TASK: &'static str = "ingress status writer";
    type Key = ObjectKey;
    const SUBRESOURCE: &'static str = "status";

    fn object<'a>(&self, key: &'a ObjectKey) -> Option<(ObjectPath, &'a ObjectKey)> {
        Some((ObjectPath::new("/apis/networking.k8s.io/v1", "ingresses"), key))
    }

    fn writes(&self, _: &ObjectKey) -> Vec<PartWrite> {
        let address = |(host, ip): &(Text, Text)| match host.as_str() {
            "" => json!({"ip": ip.as_str()}),
            host => json!({"hostname": host}),
        };
        let wanted: Value = self.wanted.iter().map(address).collect();
        replace_list("/status/loadBalancer", "ingress", &list(&self.is), &wanted)
    }
}

impl PartUpdate for ConditionUpdate {
    const TASK: &'static str = "condition writer";
    type Key = StatusKey;
    const SUBRESOURCE: &'static str = "status";

    fn object<'a>(&self, key: &'a StatusKey) -> Option<(ObjectPath, &'a ObjectKey)> {
        let info = sluice_parse::kind_info(key.kind)?;
        // The first version is the preferred one, which every supported API server serves.
        let version = info.versions.first()?;
        let version = if info.group.is_empty() { (*version).to_owned() } else { format!("{}/{version}", info.group) };
        Some((ObjectPath::of_version(&version, info.plural), &key.object))
    }

    fn writes(&self, _: &StatusKey) -> Vec<PartWrite> {
        let mut wanted = json!({"conditions": list(&self.wanted)});
        set_transition_times(&mut wanted, &Timestamp::now().to_string());
        replace_list("/status", "conditions", &list(&self.is), &wanted["conditions"])
    }
}

impl PartUpdate for TaintRemoval {
    const TASK: &'static str = "taint writer";
    type Key = ObjectKey;
    const SUBRESOURCE: &'static str = "";

    fn object<'a>(&self, key: &'a ObjectKey) -> Option<(ObjectPath, &'a ObjectKey)> {
        Some((ObjectPath::new("/api/v1", "nodes"), key))
    }

    fn writes(&self, _: &ObjectKey) -> Vec<PartWrite> {
        // The last one first: removals move those that follow.
        let remove = |position: &usize| {
            let path = format!("/spec/taints/{position}");
            [
                json!({"op": "test", "path": format!("{path}/key"), "value": self.taint.as_str()}),
                json!({"op": "remove", "path": path}),
            ]
        };
        vec![PartWrite::Patch(self.positions.iter().rev().flat_map(remove).collect())]
    }
}

impl PartUpdate for StatusUpdate {
    const TASK: &'static str = "Gateway API writer";
    type Key = StatusKey;
    const SUBRESOURCE: &'static str = "status";

    fn object<'a>(&self, key: &'a StatusKey) -> Option<(ObjectPath, &'a ObjectKey)> {
        let info = sluice_parse::kind_info(key.kind)?;
        Some((ObjectPath::of_version(&self.api_version, info.plural), &key.object))
    }

    fn writes(&self, _: &StatusKey) -> Vec<PartWrite> {
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        let (present, mut wanted) = (json(&self.is), json(&self.wanted));
        set_transition_times(&mut wanted, &Timestamp::now().to_string());
        vec![replace("/status", &present, &wanted)]
    }
}

/// Sets the time of transition of all conditions that have none.
fn set_transition_times(status: &mut Value, now: &str) {
    match status {
        Value::Object(fields) => {
            for condition in fields.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
                if condition["lastTransitionTime"].is_null() {
                    condition["lastTransitionTime"] = now.into();
                }
            }
            let others = fields.iter_mut().filter(|(name, _)| *name != "conditions");
            others.for_each(|(_, value)| set_transition_times(value, now));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| set_transition_times(item, now)),
        _ => {}
    }
}

impl PartUpdate for MissingGatewayClass {
    const TASK: &'static str = "Gateway API writer";
    type Key = ObjectKey;
    const SUBRESOURCE: &'static str = "";

    fn object<'a>(&self, key: &'a ObjectKey) -> Option<(ObjectPath, &'a ObjectKey)> {
        Some((ObjectPath::of_version(GATEWAY_CLASS_VERSION, "gatewayclasses"), key))
    }

    fn writes(&self, key: &ObjectKey) -> Vec<PartWrite> {
        vec![PartWrite::Create(json!({
            "apiVersion": GATEWAY_CLASS_VERSION, "kind": "GatewayClass", "metadata": {"name": key.name.as_str()},
            "spec": {"controllerName": self.controller.as_str(), "description": self.description.as_str()},
        }))]
    }
}

impl PartUpdate for MissingServiceExport {
    const TASK: &'static str = "ServiceExports of a cluster";
    type Key = ObjectKey;
    const SUBRESOURCE: &'static str = "";

    fn object<'a>(&self, key: &'a ObjectKey) -> Option<(ObjectPath, &'a ObjectKey)> {
        Some((ObjectPath::of_version(&self.api_version, "serviceexports"), key))
    }

    fn writes(&self, key: &ObjectKey) -> Vec<PartWrite> {
        let owner = json!({
            "apiVersion": "v1", "kind": "Service", "name": key.name.as_str(), "uid": self.service_uid.as_str(),
        });
        vec![PartWrite::Create(json!({
            "apiVersion": self.api_version.as_str(), "kind": "ServiceExport",
            "metadata": {
                "name": key.name.as_str(), "namespace": key.namespace.as_str(), "ownerReferences": [owner],
            },
        }))]
    }
}

impl PartUpdate for ShadowService {
    const TASK: &'static str = "InferencePool Service writer";
    type Key = ObjectKey;
    const SUBRESOURCE: &'static str = "";

    fn object<'a>(&self, key: &'a ObjectKey) -> Option<(ObjectPath, &'a ObjectKey)> {
        Some((ObjectPath::new("/api/v1", "services"), key))
    }

    fn writes(&self, key: &ObjectKey) -> Vec<PartWrite> {
        let text = |map: &Labels| map.iter().map(|(name, value)| (name.to_string(), json!(value.as_str()))).collect();
        let (labels, selector): (Value, Value) = (text(&self.labels), text(&self.selector));
        let port = |port: &ShadowPort| {
            json!({
                "name": port.name.as_str(), "protocol": "TCP", "port": port.port, "targetPort": port.target_port,
                "appProtocol": self.app_protocol.as_str(),
            })
        };
        let ports: Vec<Value> = self.ports.iter().map(port).collect();
        let owner = json!({
            "apiVersion": format!("{INFERENCE_GROUP}/v1"), "kind": "InferencePool", "name": self.pool.as_str(),
            "uid": self.pool_uid.as_str(),
        });
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": key.name.as_str(), "namespace": key.namespace.as_str(), "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": {"type": "ClusterIP", "clusterIP": "None", "selector": selector, "ports": ports},
        });
        vec![PartWrite::Apply { field_manager: POOL_FIELD_MANAGER, object }]
    }
}

/// The list of a JSON text; an empty one if the text is empty.
fn list(text: &str) -> Value {
    let parsed: Value = serde_json::from_str(text).unwrap_or_default();
    if parsed.is_array() { parsed } else { json!([]) }
}

/// Replaces the list `name` of the object `parent`. A list without items may be absent, and so may its parent.
fn replace_list(parent: &str, name: &str, present: &Value, wanted: &Value) -> Vec<PartWrite> {
    let path = format!("{parent}/{name}");
    if *present != json!([]) {
        return vec![replace(&path, present, wanted)];
    }
    let with_parent = replace(parent, &Value::Null, &json!({name: wanted}));
    vec![replace(&path, &Value::Null, wanted), with_parent, replace(&path, present, wanted)]
}

/// Replaces the value at a path, which must be as it was read; `null` is an absent one.
fn replace(path: &str, present: &Value, wanted: &Value) -> PartWrite {
    PartWrite::Patch(json!([
        {"op": "test", "path": path, "value": present},
        {"op": "add", "path": path, "value": wanted},
    ]))
}

type Condition<K> = Box<dyn Fn(&K) -> bool + Send + Sync>;

/// Writes a part of objects until they contain it.
///
/// One of several control planes writes, see [`Election`](sluice_kube::Election). If two write at the same time, neither
/// overwrites a part that it has not read.
pub struct PartWriter<U: PartUpdate> {
    client: Client,
    feed: Feed,
    updates: Published<U::Key, U>,
    is_written: Condition<U::Key>,
    backoff: Backoff,
    failures: FailedAttempts,
    /// Pending writes, with the time of the next attempt.
    pending: BTreeMap<U::Key, (Arc<U>, Instant)>,
    /// All inputs of the graph are synced.
    synced: bool,
}

/// Time in which the watch has to report a written part. The part is written again after that.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(60);

impl<U: PartUpdate> PartWriter<U> {
    /// Writes the `updates` of the engine through `client`.
    #[must_use]
    pub fn new(client: Client, feed: Feed, updates: Published<U::Key, U>) -> Self {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        // An update that is gone and is there again was written and undone: it is written at once.
        let (feed, is_written) = (feed.only(&updates).with_reverted(), Box::new(|_: &U::Key| true));
        let failures = FailedAttempts::of(U::TASK);
        Self { client, feed, updates, is_written, backoff, failures, pending: BTreeMap::new(), synced: false }
    }

    /// Writes only those updates of which `is_written` is true.
    #[must_use]
    pub fn only(self, is_written: impl Fn(&U::Key) -> bool + Send + Sync + 'static) -> Self {
        Self { is_written: Box::new(is_written), ..self }
    }

    /// Runs until the term or the engine ends.
    pub async fn run(mut self, term: impl Into<Term>) {
        let term = term.into();
        loop {
            let due = self.next_due();
            let Some(batch) = next_batch_or_due(&mut self.feed, due, term.ended()).await else { return };
            self.synced |= batch.as_ref().is_some_and(Batch::all_synced);
            let events = batch.iter().flat_map(|batch| batch.events(&self.updates));
            for event in events.filter(|event| (self.is_written)(&event.key)) {
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

    /// The time of the next attempt. Nothing is due before all inputs are synced.
    fn next_due(&self) -> Option<Instant> {
        self.pending.values().map(|(_, due)| *due).min().filter(|_| self.synced)
    }

    async fn write_due(&mut self, term: &Term) -> Result<(), TermEnded> {
        let now = Instant::now();
        let due: Vec<_> = self.pending.iter().filter(|(_, (_, due))| *due <= now).collect();
        let due: Vec<_> = due.into_iter().map(|(key, (update, _))| (key.clone(), update.clone())).collect();
        for (key, update) in due {
            let Some((objects, object)) = update.object(&key) else {
                self.pending.remove(&key);
                continue;
            };
            let wait = match term.write(self.write((&objects, object), &update.writes(&key))).await? {
                Ok(()) => {
                    self.backoff.reset();
                    debug!(kind = objects.plural(), %object, "wrote a part of an object");
                    OBSERVE_TIMEOUT
                }
                Err(error) => {
                    if let Some(failures) = self.failures.count() {
                        warn!(
                            kind = objects.plural(), %object, error = chain(&error), failures,
                            "failed to write a part of an object, retrying; reported once a minute"
                        );
                    }
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

    async fn write(&self, object: (&ObjectPath, &ObjectKey), writes: &[PartWrite]) -> Result<(), kube::Error> {
        let mut result = Ok(());
        for write in writes {
            result = self.send(object, write).await;
            if !matches!(&result, Err(kube::Error::Api(status)) if is_failed_test(status.code)) {
                break;
            }
        }
        result
    }

    async fn send(&self, (objects, key): (&ObjectPath, &ObjectKey), write: &PartWrite) -> Result<(), kube::Error> {
        let path = objects.of(&key.namespace, &key.name, U::SUBRESOURCE);
        let (method, uri, content_type, body) = match write {
            PartWrite::Patch(operations) => {
                let uri = format!("{path}?fieldManager={FIELD_MANAGER}");
                (Method::PATCH, uri, "application/json-patch+json", operations)
            }
            PartWrite::Create(object) => {
                let uri = format!("{}?fieldManager={FIELD_MANAGER}", objects.all(&key.namespace));
                (Method::POST, uri, "application/json", object)
            }
            PartWrite::Apply { field_manager, object } => {
                let uri = format!("{path}?fieldManager={field_manager}&force=true");
                (Method::PATCH, uri, "application/apply-patch+yaml", object)
            }
        };
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::CONTENT_TYPE, content_type)
            .body(body.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        match (sluice_kube::request::<Value>(&self.client, request).await, write) {
            // The object exists; it may be one that this revision does not read.
            (Err(kube::Error::Api(status)), PartWrite::Create(_)) if status.code == 409 => Ok(()),
            (result, _) => result.map(|_| ()),
        }
    }
}

/// Whether a status code means that the object differs from what the patch tests.
fn is_failed_test(code: u16) -> bool {
    code == 422 || code == 400
}

fn addresses(list: &[(Host, Text)]) -> Value {
    list.iter().map(|(host, value)| json!({"value": value.as_str(), "host": host.as_str()})).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use serde::Serialize;
    use sluice_engine::{Engine, EngineOptions, Input};
    use tokio_util::sync::CancellationToken;
    use tracing::{Event, Level, Metadata, Subscriber, span};

    use super::*;

    /// An update of an object that the API server cannot have.
    #[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
    struct UnknownKind;

    impl PartUpdate for UnknownKind {
        const TASK: &'static str = "writer of the test";
        type Key = ObjectKey;
        const SUBRESOURCE: &'static str = "status";

        fn object<'a>(&self, _: &'a ObjectKey) -> Option<(ObjectPath, &'a ObjectKey)> {
            None
        }

        fn writes(&self, _: &ObjectKey) -> Vec<PartWrite> {
            Vec::new()
        }
    }

    /// A client of an API server that creates what it is sent, and calls `created` with the name before it answers.
    fn creating_client(created: impl Fn(String) + Clone + Send + Sync + 'static) -> Client {
        let answer = move |request: Request<Body>| {
            let created = created.clone();
            async move {
                let body = request.into_body().collect_bytes().await.expect("a body");
                let object: Value = serde_json::from_slice(&body).expect("an object");
                created(object["metadata"]["name"].as_str().expect("a name").to_owned());
                Ok::<_, Infallible>(http::Response::builder().status(201).body(Body::from(body)).expect("a response"))
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// Counts warnings.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    type MissingClasses = (Input<ObjectKey, MissingGatewayClass>, Published<ObjectKey, MissingGatewayClass>);

    fn class(name: &str) -> ObjectKey {
        ObjectKey::new("c", "", name)
    }

    fn update() -> MissingGatewayClass {
        MissingGatewayClass { controller: "istio.io".into(), description: "a class".into() }
    }

    /// An engine whose graph derives that these classes are missing.
    fn start(names: &[&str]) -> (Engine, MissingClasses) {
        let (engine, (missing, updates)) = Engine::start(EngineOptions::default(), |builder| {
            builder.dataflow("test", |graph| {
                let (input, rows) = graph.input::<ObjectKey, MissingGatewayClass>("missing");
                (input, rows.publish())
            })
        });
        engine.transaction(|tx| names.iter().for_each(|name| tx.set(&missing, class(name), update())));
        missing.mark_synced();
        engine.flush();
        (engine, (missing, updates))
    }

    #[tokio::test]
    async fn failed_writes_of_many_objects_are_logged_once_a_minute() {
        let names: Vec<String> = (0..50).map(|number| format!("class-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (engine, (_, updates)) = start(&names);
        let (attempts, warnings) = (tokio::sync::watch::Sender::new(0), Warnings::default());
        let mut attempted = attempts.subscribe();
        let answer = move |_: Request<Body>| {
            attempts.send_modify(|attempts| *attempts += 1);
            let response = http::Response::builder().status(500).body(Body::empty());
            std::future::ready(Ok::<_, Infallible>(response.expect("a response")))
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let stop = CancellationToken::new();
        // The runtime of the test has one thread.
        let _subscriber = tracing::subscriber::set_default(warnings.clone());
        let writing = tokio::spawn(PartWriter::new(client, engine.feed(), updates).run(stop.clone()));
        attempted.wait_for(|attempts| *attempts > names.len()).await.expect("it writes each, and one again");
        stop.cancel();
        writing.await.expect("the writer ends");
        assert_eq!(warnings.0.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn part_that_is_undone_during_another_write_is_written_again_at_once() {
        let (engine, (missing, updates)) = start(&["first", "second"]);
        let (names, mut created) = tokio::sync::mpsc::unbounded_channel();
        let undone = Mutex::new(false);
        let client = creating_client({
            let (engine, missing) = (engine.clone(), missing.clone());
            let undone = Arc::new(undone);
            move |name| {
                let is_second = name == "second";
                names.send(name).expect("the test runs");
                if is_second && !std::mem::replace(&mut *undone.lock().expect("no panic"), true) {
                    // The watch reports the first class, which is then deleted.
                    missing.delete(class("first"));
                    engine.flush();
                    missing.set(class("first"), update());
                    engine.flush();
                }
            }
        });
        let stop = CancellationToken::new();
        let writing = tokio::spawn(PartWriter::new(client, engine.feed(), updates).run(stop.clone()));
        for expected in ["first", "second", "first"] {
            let name = tokio::time::timeout(OBSERVE_TIMEOUT / 2, created.recv()).await.expect("it is written at once");
            assert_eq!(name.as_deref(), Some(expected));
        }
        stop.cancel();
        writing.await.expect("the writer ends");
    }

    #[tokio::test]
    async fn no_further_object_is_written_once_the_term_has_ended() {
        let (engine, (_, updates)) = start(&["first", "second"]);
        let (names, mut created) = tokio::sync::mpsc::unbounded_channel();
        let ended = CancellationToken::new();
        let client = creating_client({
            let ended = ended.clone();
            move |name| {
                names.send(name).expect("the test runs");
                ended.cancel();
            }
        });
        let writing = PartWriter::new(client, engine.feed(), updates).run(ended);
        tokio::time::timeout(OBSERVE_TIMEOUT / 2, writing).await.expect("the writer ends");
        assert_eq!(created.recv().await.as_deref(), Some("first"));
        assert!(created.try_recv().is_err(), "the second object is not written");
    }

    #[tokio::test]
    async fn nothing_is_due_before_the_inputs_are_synced_or_without_an_object() {
        let (engine, updates) = Engine::start(EngineOptions::default(), |builder| {
            builder.dataflow("test", |graph| graph.input::<ObjectKey, UnknownKind>("updates").1.publish())
        });
        let config = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
        let client = sluice_kube::client(config).expect("a client");
        let mut writer = PartWriter::new(client, engine.feed(), updates);
        writer.pending.insert(ObjectKey::new("c", "ns", "name"), (Arc::new(UnknownKind), Instant::now()));
        assert_eq!(writer.next_due(), None, "not synced");
        writer.synced = true;
        assert!(writer.next_due().is_some());
        let term = Term::from(CancellationToken::new());
        writer.write_due(&term).await.expect("the term lasts");
        assert_eq!(writer.next_due(), None, "it cannot be written");
    }
}
