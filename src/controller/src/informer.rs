//! A type of the Kubernetes API as a source (K08).

use std::any::type_name;
use std::collections::BTreeMap;
use std::convert::Infallible;

use futures::FutureExt as _;
use kube::Resource as Typed;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use sluice_engine::{Input, NamespacedName, Origin, Value};
use sluice_kube::{Api, ListWatch, Receiver, Resource, WatchEvent};
use sluice_tasks::restart_with;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::guard;

type ReadObject<K, V> = Box<dyn Fn(K) -> Option<V> + Send + Sync>;

/// Lists and watches the objects of a type, and keeps an input equal to them.
///
/// The records of a list replace all records in one epoch, after which the input is synced. A type that the API server does
/// not serve has no objects, and is looked for again every 30 seconds. An object that cannot be decoded is not a record, but
/// a problem.
pub struct Informer<K, V> {
    resource: Resource,
    records: Input<NamespacedName, V>,
    problems: Option<Input<NamespacedName, String>>,
    read: ReadObject<K, V>,
}

impl<K, V> Informer<K, V>
where
    K: Typed<DynamicType = ()> + DeserializeOwned + 'static,
    V: Value,
{
    /// All objects of type `K`. `read` makes the record of an object: it keeps the fields that the graph reads, and returns
    /// `None` for an object to leave out.
    #[must_use]
    pub fn new(records: Input<NamespacedName, V>, read: impl Fn(K) -> Option<V> + Send + Sync + 'static) -> Self {
        Self { resource: Resource::of::<K>(), records, problems: None, read: Box::new(read) }
    }

    /// Writes the problems, by the name of the object.
    #[must_use]
    pub fn with_problems(self, problems: Input<NamespacedName, String>) -> Self {
        Self { problems: Some(problems), ..self }
    }

    /// Only objects of a namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        Self { resource: self.resource.in_namespace(namespace), ..self }
    }

    /// Only objects that a label selector selects, such as `app=web,tier!=test`. The API server filters.
    #[must_use]
    pub fn with_labels(self, selector: &str) -> Self {
        Self { resource: self.resource.with_labels(selector), ..self }
    }

    /// Only objects that a field selector selects, such as `status.phase!=Failed`. The API server filters.
    #[must_use]
    pub fn with_fields(self, selector: &str) -> Self {
        Self { resource: self.resource.with_fields(selector), ..self }
    }

    /// Runs until `stop` is cancelled, on a runtime with several threads. Failed requests are retried without limit, and the
    /// records of an unreachable server stay.
    pub async fn run(self, api: Api, options: sluice_kube::KubeOptions, stop: CancellationToken) {
        let name = format!("informer of {}", K::kind(&()));
        let receiver = RecordReceiver {
            records: self.records,
            problems: self.problems,
            read: self.read,
            listed: Vec::new(),
            listed_problems: BTreeMap::new(),
        };
        let mut watch = ListWatch::new(api, self.resource, options.backoff(), receiver);
        tokio::select! {
            () = stop.cancelled() => {}
            () = restart_with(&name, &mut watch, |watch| watch.run().boxed()) => {}
        }
    }
}

/// Writes the objects of lists and watches.
struct RecordReceiver<K, V> {
    records: Input<NamespacedName, V>,
    problems: Option<Input<NamespacedName, String>>,
    read: ReadObject<K, V>,
    /// Records of the list in progress.
    listed: Vec<(NamespacedName, V, Origin)>,
    listed_problems: BTreeMap<NamespacedName, String>,
}

impl<K: Typed<DynamicType = ()> + DeserializeOwned, V: Value> RecordReceiver<K, V> {
    /// The record of an object; `None` if it is to be left out.
    fn record(&self, name: &NamespacedName, mut object: Json) -> Result<Option<V>, String> {
        // Items of lists have no apiVersion and kind.
        if let Some(fields) = object.as_object_mut() {
            fields.entry("apiVersion").or_insert_with(|| K::api_version(&()).into());
            fields.entry("kind").or_insert_with(|| K::kind(&()).into());
        }
        let record = match serde_json::from_value::<K>(object) {
            Ok(object) => guard::call(|| Ok::<_, Infallible>((self.read)(object))),
            Err(error) => Err(format!("it cannot be decoded: {error}")),
        };
        if let Err(reason) = &record {
            warn!(object = %name, r#type = type_name::<K>(), reason, "object of the API server is not read");
        }
        record
    }

    fn apply(&self, object: Json) {
        let Some((name, origin)) = identify(&object) else { return };
        let (record, problem) = match self.record(&name, object) {
            Ok(record) => (record, None),
            Err(reason) => (None, Some(reason)),
        };
        if let Some(problems) = &self.problems {
            match problem {
                Some(reason) => problems.set(name.clone(), reason),
                None => problems.delete(name.clone()),
            }
        }
        match record {
            Some(record) => self.records.set_from(name, record, origin),
            None => self.records.delete_from(name, origin),
        }
    }
}

impl<K: Typed<DynamicType = ()> + DeserializeOwned, V: Value> Receiver for RecordReceiver<K, V> {
    fn begin_list(&mut self) {
        self.listed.clear();
        self.listed_problems.clear();
    }

    fn listed(&mut self, objects: Vec<Json>) {
        for object in objects {
            let Some((name, origin)) = identify(&object) else { continue };
            match self.record(&name, object) {
                Ok(record) => self.listed.extend(record.map(|record| (name, record, origin))),
                Err(reason) => drop(self.listed_problems.insert(name, reason)),
            }
        }
    }

    fn end_list(&mut self) {
        self.records.replace_all_from(std::mem::take(&mut self.listed));
        self.records.mark_synced();
        if let Some(problems) = &self.problems {
            problems.replace_all(std::mem::take(&mut self.listed_problems));
            problems.mark_synced();
        }
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Apply(object) => self.apply(object),
                WatchEvent::Delete(object) => {
                    let Some((name, origin)) = identify(&object) else { continue };
                    self.problems.iter().for_each(|problems| problems.delete(name.clone()));
                    self.records.delete_from(name, origin);
                }
            }
        }
    }

    fn absent(&mut self) {
        self.begin_list();
        self.end_list();
    }
}

/// The name of an object, and its version. The API server has no object without a name.
fn identify(object: &Json) -> Option<(NamespacedName, Origin)> {
    let metadata = &object["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let name = metadata["name"].as_str()?;
    Some((NamespacedName::new(text("namespace"), name), Origin::version(text("resourceVersion"))))
}
