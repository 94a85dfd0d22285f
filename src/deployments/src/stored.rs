//! The deployed objects that the API server has.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sluice_model::gateway_api::{DeployedKind, GROUP};
use sluice_model::{Text, label};
use tokio::sync::Notify;

/// Label of older versions by which a Deployment selects its pods. The selector of a Deployment cannot be changed.
const OLD_NAME_LABEL: &str = "istio.io/gateway-name";

/// A deployed object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) struct DeployedId {
    pub(crate) kind: DeployedKind,
    pub(crate) namespace: Text,
    pub(crate) name: Text,
}

/// Namespace and name of a Gateway.
pub(crate) type GatewayName = (Text, Text);

/// What is known of a stored object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StoredObject {
    pub(crate) resource_version: String,
    /// It has the label of objects that a deployment controller manages.
    pub(crate) is_managed: bool,
    /// Names and unique ids of the Gateways that own it.
    owners: Vec<(Text, Text)>,
    /// Hash of what is applied to it, without its status.
    pub(crate) content: u64,
    /// Selector and label of the pods of a Deployment, if an older version created it.
    old_selector: Option<(Value, Value)>,
}

impl StoredObject {
    /// Reads an object of the API server.
    pub(crate) fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten().filter(|owner| {
            let group =
                owner["apiVersion"].as_str().and_then(|version| version.split_once('/')).map(|(group, _)| group);
            owner["kind"] == "Gateway" && group == Some(GROUP)
        });
        let selector = &object["spec"]["selector"];
        let is_old = selector["matchLabels"][OLD_NAME_LABEL].as_str().is_some_and(|name| !name.is_empty());
        let old_label = &object["spec"]["template"]["metadata"]["labels"][OLD_NAME_LABEL];
        Self {
            resource_version: metadata["resourceVersion"].as_str().unwrap_or_default().to_owned(),
            is_managed: !metadata["labels"][label::GATEWAY_MANAGED].is_null(),
            owners: owners.map(|owner| (text(&owner["name"]), text(&owner["uid"]))).collect(),
            content: content_hash(object),
            old_selector: is_old.then(|| (selector.clone(), old_label.clone())),
        }
    }

    /// Whether it may be written for a Gateway: it is managed, and not the object of another Gateway.
    pub(crate) fn is_of(&self, uid: &str) -> bool {
        let is_owned = self.owners.iter().any(|(_, owner)| **owner == *uid);
        self.is_managed && (self.owners.is_empty() || is_owned)
    }

    /// Keeps what cannot be changed in the object that replaces it.
    pub(crate) fn keep_selector(&self, body: &mut Value) {
        let Some((selector, label)) = &self.old_selector else { return };
        body["spec"]["selector"] = selector.clone();
        body["spec"]["template"]["metadata"]["labels"][OLD_NAME_LABEL] = label.clone();
    }
}

fn text(value: &Value) -> Text {
    value.as_str().unwrap_or_default().into()
}

fn content_hash(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (field, value) in object.as_object().into_iter().flatten() {
        match field.as_str() {
            // Items of lists have no apiVersion and kind.
            "apiVersion" | "kind" | "status" => {}
            "metadata" => {
                for field in ["labels", "annotations", "ownerReferences"] {
                    value[field].to_string().hash(&mut hasher);
                }
            }
            _ => (field, value.to_string()).hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// The stored objects of all kinds. A clone is another handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredObjects(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<DeployedId, StoredObject>,
    /// Kinds that have been listed.
    listed: BTreeSet<DeployedKind>,
    /// Gateways of which an object has been changed or deleted by another client.
    changed: BTreeSet<GatewayName>,
}

impl StoredObjects {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object, if it is known.
    pub(crate) fn get(&self, id: &DeployedId) -> Option<StoredObject> {
        self.state().objects.get(id).cloned()
    }

    /// Sets an object that this replica has written or read.
    pub(crate) fn set(&self, id: DeployedId, object: StoredObject) {
        self.state().objects.insert(id, object);
    }

    /// Forgets an object, so that it is read before it is written again.
    pub(crate) fn forget(&self, id: &DeployedId) {
        self.state().objects.remove(id);
    }

    /// Another client may have written the object.
    pub(crate) fn observe(&self, id: DeployedId, object: StoredObject) {
        let mut state = self.state();
        let before = state.objects.insert(id.clone(), object.clone());
        if before.as_ref().is_none_or(|before| before.content != object.content) {
            state.mark_changed(&id, &object);
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// The object has been deleted.
    pub(crate) fn remove(&self, id: &DeployedId) {
        let mut state = self.state();
        if let Some(object) = state.objects.remove(id) {
            state.mark_changed(id, &object);
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// The objects of a kind have been listed.
    pub(crate) fn listed(&self, kind: DeployedKind) {
        self.state().listed.insert(kind);
        self.0.changed.notify_one();
    }

    /// Whether all kinds have been listed.
    pub(crate) fn all_listed(&self) -> bool {
        self.state().listed.len() == DeployedKind::ALL.len()
    }

    /// Waits until something has changed.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// The Gateways of which objects have been changed by others since the last call.
    pub(crate) fn take_changed(&self) -> BTreeSet<GatewayName> {
        std::mem::take(&mut self.state().changed)
    }
}

impl State {
    fn mark_changed(&mut self, id: &DeployedId, object: &StoredObject) {
        self.changed.extend(object.owners.iter().map(|(name, _)| (id.namespace.clone(), name.clone())));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(replicas: u32, owner: &str) -> Value {
        json!({
            "metadata": {
                "name": "web", "namespace": "app", "resourceVersion": replicas.to_string(),
                "labels": {(label::GATEWAY_MANAGED): "istio.io-gateway-controller"},
                "ownerReferences": [
                    {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web", "uid": owner},
                ],
            },
            "spec": {"replicas": replicas},
        })
    }

    fn id() -> DeployedId {
        DeployedId { kind: DeployedKind::Deployment, namespace: "app".into(), name: "web".into() }
    }

    #[test]
    fn own_writes_and_statuses_are_no_changes_by_others() {
        let stored = StoredObjects::default();
        stored.set(id(), StoredObject::of(&object(1, "u")));
        stored.observe(id(), StoredObject::of(&object(1, "u")));
        let mut with_status = object(1, "u");
        with_status["status"] = json!({"readyReplicas": 1});
        with_status["metadata"]["resourceVersion"] = json!("9");
        stored.observe(id(), StoredObject::of(&with_status));
        assert!(stored.take_changed().is_empty());
        assert_eq!(stored.get(&id()).expect("an object").resource_version, "9");
        stored.observe(id(), StoredObject::of(&object(2, "u")));
        let web: GatewayName = ("app".into(), "web".into());
        assert_eq!(stored.take_changed(), BTreeSet::from([web.clone()]));
        stored.remove(&id());
        assert_eq!(stored.take_changed(), BTreeSet::from([web]));
    }

    #[test]
    fn object_without_label_or_of_another_gateway_is_not_written() {
        assert!(StoredObject::of(&object(1, "u")).is_of("u"));
        assert!(!StoredObject::of(&object(1, "u")).is_of("v"));
        let mut unmanaged = object(1, "u");
        unmanaged["metadata"]["labels"] = json!({"owner": "me"});
        assert!(!StoredObject::of(&unmanaged).is_of("u"));
        let mut without_owner = object(1, "u");
        without_owner["metadata"]["ownerReferences"] = Value::Null;
        assert!(StoredObject::of(&without_owner).is_of("u"), "accounts before Kubernetes 1.28");
    }

    #[test]
    fn selector_of_an_older_version_stays() {
        let mut old = object(1, "u");
        old["spec"]["selector"] = json!({"matchLabels": {(OLD_NAME_LABEL): "web"}});
        old["spec"]["template"] = json!({"metadata": {"labels": {(OLD_NAME_LABEL): "web"}}});
        let mut body = json!({"spec": {
            "selector": {"matchLabels": {(label::GATEWAY_NAME): "web"}},
            "template": {"metadata": {"labels": {(label::GATEWAY_NAME): "web"}}},
        }});
        StoredObject::of(&old).keep_selector(&mut body);
        assert_eq!(body["spec"]["selector"], json!({"matchLabels": {(OLD_NAME_LABEL): "web"}}));
        let labels = json!({(OLD_NAME_LABEL): "web", (label::GATEWAY_NAME): "web"});
        assert_eq!(body["spec"]["template"]["metadata"]["labels"], labels);
    }
}
