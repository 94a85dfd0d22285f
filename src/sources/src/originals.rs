//! The objects of configuration as they were written, for the debug pages (O08).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use sluice_model::{Kind, ObjectKey};
use sluice_parse::KindInfo;
use tokio::sync::watch;

use crate::{Change, Cluster};

/// The annotation of `kubectl apply`: a second copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object of a custom kind as compact JSON.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Original(Arc<str>);

impl Original {
    /// The object without `managedFields` and the annotation of `kubectl apply`. `None` if objects of the kind in the cluster are
    /// no configuration, such as kinds of Kubernetes itself, of which some hold secrets.
    #[must_use]
    pub fn of(cluster: &Cluster, info: &KindInfo, object: &Value) -> Option<Self> {
        // A value of JSON is always written.
        let text = cluster.configures(info).then(|| serde_json::to_string(&Compact(object)))?;
        text.ok().map(|text| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &Arc<str> {
        &self.0
    }
}

/// An object without what is left out. Nothing is copied.
struct Compact<'a>(&'a Value);

impl Serialize for Compact<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Value::Object(fields) = self.0 else { return serializer.serialize_none() };
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("metadata", Value::Object(metadata)) => map.serialize_entry(name, &CompactMetadata(metadata))?,
                _ => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

struct CompactMetadata<'a>(&'a Map<String, Value>);

impl Serialize for CompactMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.0.iter().filter(|(name, _)| *name != "managedFields") {
            if name != "annotations" {
                map.serialize_entry(name, value)?;
                continue;
            }
            let annotations = value.as_object().into_iter().flatten().filter(|(name, _)| *name != LAST_APPLIED);
            let annotations: BTreeMap<&String, &Value> = annotations.collect();
            if !annotations.is_empty() {
                map.serialize_entry(name, &annotations)?;
            }
        }
        map.end()
    }
}

/// The current objects of configuration. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Originals(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    objects: Mutex<ByKind>,
    /// Number of changes, by kind.
    changes: watch::Sender<ChangesByKind>,
}

type ByKind = BTreeMap<Kind, BTreeMap<ObjectKey, Original>>;

/// Number of changes of the objects of each kind since the start.
pub type ChangesByKind = BTreeMap<Kind, u64>;

impl Originals {
    fn lock(&self) -> MutexGuard<'_, ByKind> {
        self.0.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows which kinds change. A kind that is not in the map has not changed.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<ChangesByKind> {
        self.0.changes.subscribe()
    }

    /// Keeps what a change sets, and frees what it deletes.
    pub(crate) fn set(&self, change: &Change) {
        let has_changed = match (&change.object, &change.origin.original) {
            (Some(_), Some(original)) => {
                self.lock().entry(change.kind).or_default().insert(change.key.clone(), original.clone());
                true
            }
            (Some(_), None) => false,
            (None, _) => match self.lock().entry(change.kind) {
                Entry::Occupied(mut objects) => objects.get_mut().remove(&change.key).is_some(),
                Entry::Vacant(_) => false,
            },
        };
        if has_changed {
            self.0.changes.send_modify(|changes| *changes.entry(change.kind).or_default() += 1);
        }
    }

    /// The texts of the objects of a kind, in the order of their keys. The texts are shared, not copied.
    #[must_use]
    pub fn of_kind(&self, kind: Kind) -> Vec<(ObjectKey, Arc<str>)> {
        let objects = self.lock();
        let texts = objects.get(&kind).into_iter().flatten();
        texts.map(|(key, original)| (key.clone(), original.0.clone())).collect()
    }

    /// The text of an object.
    #[must_use]
    pub fn get(&self, kind: Kind, key: &ObjectKey) -> Option<Arc<str>> {
        self.lock().get(&kind)?.get(key).map(|original| original.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;
    use sluice_model::ParsedObject;
    use sluice_parse::kind_info;

    use super::*;
    use crate::ChangeOrigin;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("Kubernetes", "shop", name)
    }

    fn cluster(is_remote: bool) -> Cluster {
        Cluster {
            id: "Kubernetes".into(),
            domain: "cluster.local".into(),
            is_remote,
            reads_remote_gateways: true,
            ignored: BTreeSet::new(),
            revision: "".into(),
            multi_cluster_api: sluice_model::MultiClusterApi::default(),
        }
    }

    fn change(kind: Kind, name: &str, object: Option<&Value>) -> Change {
        change_in(&cluster(false), kind, name, object)
    }

    fn change_in(cluster: &Cluster, kind: Kind, name: &str, object: Option<&Value>) -> Change {
        let original = object.and_then(|object| Original::of(cluster, kind_info(kind).expect("a kind"), object));
        let parsed = object.map(|_| Box::new(ParsedObject { kind, key: key(name), object: None, rejects: Vec::new() }));
        Change { kind, key: key(name), object: parsed, origin: ChangeOrigin { original, ..ChangeOrigin::default() } }
    }

    #[test]
    fn object_is_kept_as_it_was_written_until_it_is_deleted() {
        let originals = Originals::default();
        let written = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "a", "namespace": "shop", "managedFields": [{"manager": "kubectl"}],
                "annotations": {LAST_APPLIED: "{}", "team": "fruit"}},
            "spec": {"hosts": ["a"], "http": [{"timeout": "1500ms", "unknownField": 7}]},
        });
        originals.set(&change(Kind::VirtualService, "a", Some(&written)));
        let expected = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "a", "namespace": "shop", "annotations": {"team": "fruit"}},
            "spec": {"hosts": ["a"], "http": [{"timeout": "1500ms", "unknownField": 7}]},
        });
        let text = originals.get(Kind::VirtualService, &key("a")).expect("it is kept");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), expected);
        originals.set(&change(Kind::VirtualService, "a", None));
        assert_eq!(originals.of_kind(Kind::VirtualService), []);
        // An object that is not kept is no change.
        originals.set(&change(Kind::VirtualService, "a", None));
        assert_eq!(*originals.changes().borrow(), [(Kind::VirtualService, 2)].into());
    }

    #[test]
    fn objects_of_kubernetes_itself_are_not_kept() {
        let originals = Originals::default();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "shop"}, "data": {"key": "QQ=="},
        });
        originals.set(&change(Kind::Secret, "a", Some(&secret)));
        assert_eq!(originals.get(Kind::Secret, &key("a")), None);
    }

    #[test]
    fn gateways_of_a_remote_cluster_are_not_kept() {
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "a", "namespace": "shop"},
            "spec": {"gatewayClassName": "istio-east-west", "listeners": []},
        });
        for is_remote in [false, true] {
            let originals = Originals::default();
            originals.set(&change_in(&cluster(is_remote), Kind::KubernetesGateway, "a", Some(&gateway)));
            assert_eq!(originals.get(Kind::KubernetesGateway, &key("a")).is_none(), is_remote);
        }
    }

    #[test]
    fn an_object_takes_little_more_than_its_text() {
        const OBJECTS: usize = 10_000;
        let originals = Originals::default();
        for n in 0..OBJECTS {
            let name = format!("route-{n:05}");
            let object = json!({
                "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
                "metadata": {"name": name, "namespace": "shop", "generation": 1, "resourceVersion": "1234567",
                    "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "6a1e0e0c-6b0a-4e0e-8b39-6f6f8c6f7d10",
                    "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:hosts": {}, "f:http": {}}}}]},
                "spec": {"hosts": [format!("{name}.shop.svc.cluster.local")], "http": [
                    {"match": [{"uri": {"prefix": "/v2"}}], "timeout": "2s",
                        "route": [{"destination": {"host": format!("{name}.shop.svc.cluster.local"), "subset": "v2"}}]},
                    {"route": [{"destination": {"host": format!("{name}.shop.svc.cluster.local"), "subset": "v1"}}]}]},
            });
            originals.set(&change(Kind::VirtualService, &name, Some(&object)));
        }
        let kept = originals.of_kind(Kind::VirtualService);
        let bytes: usize = kept.iter().map(|(_, text)| text.len()).sum();
        assert_eq!(kept.len(), OBJECTS);
        // The figure of docs/operate.md.
        assert_eq!(bytes / OBJECTS, 538, "bytes an object");
    }
}
