//! Objects in answers: from records and writes of inputs to `VirtualService/shop/cart` with its source.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;
use sluice_engine::{InputRecord, Origin, Write};
use sluice_graph::Inputs;
use sluice_model::{Kind, ObjectKey, ProxyKey, Text};

use super::names::object_text;

/// An object, and the version of it that applies.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectVersion {
    /// `KIND/NAMESPACE/NAME`.
    pub(crate) object: String,
    /// Its cluster.
    pub(crate) cluster: Text,
    /// Its resourceVersion, or `FILE:LINE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    /// Its generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<i64>,
    /// When its source received it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) received: Option<String>,
}

/// A write that changed an input.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WrittenObject {
    #[serde(flatten)]
    pub(crate) version: ObjectVersion,
    /// Whether it was deleted.
    pub(crate) deleted: bool,
}

impl ObjectVersion {
    /// The object of a kind with its origin.
    pub(crate) fn new(kind: Kind, key: &ObjectKey, origin: Option<&Origin>) -> Self {
        let source = origin.map(|origin| origin.version.to_string()).filter(|source| !source.is_empty());
        Self {
            object: object_text(&kind.name(), &key.namespace, &key.name),
            cluster: key.cluster.clone(),
            source,
            generation: origin.and_then(|origin| origin.generation),
            received: origin.and_then(|origin| origin.received).map(time),
        }
    }

    /// Whether it is this object.
    pub(crate) fn is(&self, kind: Kind, key: &ObjectKey) -> bool {
        self.cluster == key.cluster && self.object == object_text(&kind.name(), &key.namespace, &key.name)
    }

    /// The object of a record; `None` if the input is not one of objects.
    pub(crate) fn of_record(record: &InputRecord) -> Option<Self> {
        let kind = kind_of(record.collection())?;
        Some(Self::new(kind, record.key::<ObjectKey>()?, record.origin()))
    }

    /// The object of a write; `None` if the input is not one of objects.
    pub(crate) fn of_write(write: &Write) -> Option<Self> {
        let kind = kind_of(&write.collection)?;
        let text = |field: &str| write.key.get(field).and_then(Value::as_str).unwrap_or_default();
        let key = ObjectKey::new(text("cluster"), text("namespace"), text("name"));
        Some(Self::new(kind, &key, write.origin.as_ref()))
    }
}

/// The objects that were written.
pub(crate) fn written(writes: &[Write]) -> Vec<WrittenObject> {
    let object =
        |write: &Write| ObjectVersion::of_write(write).map(|version| WrittenObject { version, deleted: write.deleted });
    writes.iter().filter_map(object).collect()
}

/// The kind of the objects of an input.
pub(crate) fn kind_of(collection: &str) -> Option<Kind> {
    Inputs::kinds().into_iter().find(|kind| Inputs::collection(*kind) == Some(collection))
}

/// A record of an input that is not one of objects, as text: `connected_proxies sidecar~…`.
pub(crate) fn other_input(record: &InputRecord) -> String {
    let key = record.key::<ProxyKey>().map(|key| &key.0).or_else(|| record.key::<Text>());
    match key {
        Some(key) => format!("{} {key}", record.collection()),
        None => record.collection().to_owned(),
    }
}

/// Text of a time since the Unix epoch.
pub(crate) fn time(since: Duration) -> String {
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    let nanos = i32::try_from(since.subsec_millis() * 1_000_000).unwrap_or_default();
    jiff::Timestamp::new(seconds, nanos).map(|at| at.to_string()).unwrap_or_default()
}

/// Text of the time that is this long ago.
pub(crate) fn time_ago(age: Duration) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    time(now.saturating_sub(age))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_has_its_own_collection() {
        let mut names: Vec<&str> = Inputs::kinds().into_iter().filter_map(Inputs::collection).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), count), (Inputs::kinds().len(), Inputs::kinds().len()), "{names:?}");
    }

    #[test]
    fn writes_of_objects_have_their_name_and_source() {
        let origin = Origin { received: Some(Duration::from_millis(1_500)), ..Origin::version("shop.yaml:7") };
        let write = |collection: &str, key: Value| Write {
            collection: collection.to_owned(),
            key,
            origin: Some(origin.clone()),
            deleted: false,
        };
        let key = json!({"cluster": "Kubernetes", "namespace": "shop", "name": "cart"});
        let objects = written(&[
            write("raw_virtual_services", key),
            write("namespaces", json!({"cluster": "east", "namespace": "", "name": "shop"})),
            write("connected_proxies", json!("sidecar~a")),
        ]);
        let texts: Vec<_> =
            objects.iter().map(|it| (it.version.object.as_str(), it.version.cluster.as_str())).collect();
        assert_eq!(texts, [("VirtualService/shop/cart", "Kubernetes"), ("Namespace/shop", "east")]);
        assert_eq!(objects[0].version.source.as_deref(), Some("shop.yaml:7"));
        assert_eq!(objects[0].version.received.as_deref(), Some("1970-01-01T00:00:01.5Z"));
    }
}
