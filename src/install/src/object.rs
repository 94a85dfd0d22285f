//! Kubernetes objects as JSON.

use std::fmt;

use serde_json::{Map, Value as Json};
use sluice_template::functions::to_yaml;

/// OperatorFields of an object that the API server writes.
const SERVER_FIELDS: [&str; 6] =
    ["creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"];

/// What identifies an object in a cluster.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectKey {
    /// Group and version, such as `apps/v1`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace. Empty for kinds without one.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The API group. Empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Whether both are the same object, in whichever version of the API.
    #[must_use]
    pub fn is_same_object(&self, other: &Self) -> bool {
        (self.group(), &self.kind, &self.namespace, &self.name)
            == (other.group(), &other.kind, &other.namespace, &other.name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeObject {
    key: ObjectKey,
    json: Json,
}

impl KubeObject {
    /// An object from JSON. `None` if it has no version, kind or name.
    #[must_use]
    pub fn new(json: Json) -> Option<Self> {
        let text = |value: &Json| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let key = ObjectKey {
            api_version: text(&json["apiVersion"])?,
            kind: text(&json["kind"])?,
            namespace: text(&json["metadata"]["namespace"]).unwrap_or_default(),
            name: text(&json["metadata"]["name"])?,
        };
        Some(Self { key, json })
    }

    /// What identifies it.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Its JSON.
    #[must_use]
    pub fn json(&self) -> &Json {
        &self.json
    }

    /// Changes fields other than those of its key.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Json)) {
        change(&mut self.json);
    }

    pub(crate) fn set_namespace(&mut self, namespace: &str) {
        self.key.namespace = namespace.to_owned();
        self.json["metadata"]["namespace"] = namespace.into();
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.json["metadata"]["labels"][name].as_str()
    }

    pub(crate) fn set_label(&mut self, name: &str, value: &str) {
        if !self.json["metadata"]["labels"].is_object() {
            self.json["metadata"]["labels"] = Json::Object(Map::new());
        }
        self.json["metadata"]["labels"][name] = value.into();
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.json["metadata"]["annotations"][name].as_str()
    }

    /// The object without its status and without the fields that the API server writes.
    pub(crate) fn desired(&self) -> Json {
        let mut json = self.json.clone();
        if let Some(fields) = json.as_object_mut() {
            fields.remove("status");
        }
        if let Some(metadata) = json.get_mut("metadata").and_then(Json::as_object_mut) {
            metadata.retain(|name, _| !SERVER_FIELDS.contains(&name.as_str()));
        }
        json
    }

    /// Its YAML text. The content of a Secret is replaced by a mark that differs for different content.
    ///
    /// # Errors
    /// It has too many levels.
    pub fn to_yaml(&self) -> Result<String, String> {
        let mut json = self.desired();
        if self.key.kind == "Secret" {
            redact(&mut json);
        }
        to_yaml(&json)
    }
}

fn redact(secret: &mut Json) {
    for field in ["data", "stringData"] {
        for value in secret.get_mut(field).and_then(Json::as_object_mut).into_iter().flat_map(Map::values_mut) {
            let length = value.as_str().map_or(0, str::len);
            *value = format!("(hidden, {length} characters)").into();
        }
    }
}

/// The step of an installation in which objects of a kind are applied. Objects that others need come first. Webhooks come last,
/// because the API server calls them.
pub(crate) fn step(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        "ServiceAccount" | "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => 2,
        "Deployment" | "DaemonSet" | "HorizontalPodAutoscaler" => 4,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => 5,
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => 5,
        _ => 3,
    }
}

/// The step of webhooks.
pub(crate) const WEBHOOK_STEP: u8 = 5;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_hidden_and_fields_of_the_server_left_out() {
        let json = json!({
            "apiVersion": "v1", "kind": "Secret", "data": {"key": "c2VjcmV0"}, "status": {"x": 1},
            "metadata": {"name": "s", "namespace": "n", "uid": "1", "resourceVersion": "2", "managedFields": []},
        });
        let object = KubeObject::new(json).expect("an object");
        assert_eq!(object.key().to_string(), "Secret n/s");
        let yaml = object.to_yaml().expect("YAML");
        let expected = "apiVersion: v1\ndata:\n  key: (hidden, 8 characters)\nkind: Secret\nmetadata:\n  name: s\n  namespace: \"n\"\n";
        assert_eq!(yaml, expected);
    }
}
