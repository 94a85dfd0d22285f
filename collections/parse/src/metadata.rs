//! `metadata` of an object.

use serde::Deserialize;
use serde_json::Value;
use sluice_model::{Labels, ObjectKey, ObjectMeta, Text, Timestamp};

use crate::Findings;

/// Large annotations that nothing reads.
const DROPPED_ANNOTATIONS: [&str; 2] = ["kubectl.kubernetes.io/last-applied-configuration", "sidecar.istio.io/status"];

/// The fields of `metadata` that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) labels: Option<Labels>,
    pub(crate) annotations: Option<Labels>,
    pub(crate) creation_timestamp: Option<String>,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) generate_name: Text,
    pub(crate) uid: Text,
    pub(crate) owner_references: Option<Vec<OwnerReference>>,
}

/// The owner of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OwnerReference {
    pub(crate) kind: Text,
    pub(crate) name: Text,
    pub(crate) uid: Text,
    pub(crate) controller: Option<bool>,
}

impl Metadata {
    /// Labels, moved out.
    pub(crate) fn take_labels(&mut self) -> Labels {
        self.labels.take().unwrap_or_default()
    }

    /// Annotations, moved out, without [`DROPPED_ANNOTATIONS`].
    pub(crate) fn take_annotations(&mut self) -> Labels {
        let mut annotations = self.annotations.take().unwrap_or_default();
        annotations.retain(|name, _| !DROPPED_ANNOTATIONS.contains(&name.as_str()));
        annotations
    }

    /// Creation time in seconds since 1970; 0 for an object without one, such as an object from a file.
    pub(crate) fn created(&self, findings: &Findings) -> Timestamp {
        match self.creation_timestamp.as_deref().map(str::parse::<jiff::Timestamp>) {
            Some(Ok(time)) => time.as_second(),
            Some(Err(error)) => {
                findings.warning("metadata.creationTimestamp", error.to_string());
                0
            }
            None => 0,
        }
    }
}

/// Metadata of an Istio object. Invalid metadata is a warning and counts as absent.
pub(crate) fn parse(key: &ObjectKey, object: &Value, findings: &Findings) -> ObjectMeta {
    let empty = Value::Object(serde_json::Map::new());
    let mut metadata = match Metadata::deserialize(object.get("metadata").unwrap_or(&empty)) {
        Ok(metadata) => metadata,
        Err(error) => {
            findings.warning("metadata", error.to_string());
            Metadata::default()
        }
    };
    meta(key, &mut metadata, findings)
}

/// Metadata of an object whose `metadata` is already deserialized.
pub(crate) fn meta(key: &ObjectKey, metadata: &mut Metadata, findings: &Findings) -> ObjectMeta {
    ObjectMeta {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        labels: metadata.take_labels(),
        annotations: metadata.take_annotations(),
        created: metadata.created(findings),
    }
}
