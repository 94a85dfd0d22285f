//! The objects of files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;
use sluice_model::{Kind, Object, ObjectKey, ParsedObject, Text};
use sluice_parse::{ObjectError, parse_object, yaml};

use crate::files;

/// The id of the cluster that the objects are of.
pub(super) const CLUSTER: &str = "Kubernetes";

/// The DNS domain of Services.
pub(super) const DOMAIN: &str = "cluster.local";

/// Kinds that make pods, which only a cluster runs.
const WORKLOAD_KINDS: [&str; 6] = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"];

/// PreviewObjects of files, and what is known of the objects that are not read.
#[derive(Default)]
pub(super) struct PreviewObjects {
    pub(super) parsed: Vec<ParsedObject>,
    /// `Kind namespace/name` of objects that make pods.
    workloads: BTreeSet<String>,
}

impl PreviewObjects {
    /// Reads files and directories; what cannot be read is in `failures`. If an object is declared twice, the last one is
    /// used.
    pub(super) fn read(paths: &[PathBuf], failures: &mut Vec<String>) -> Self {
        let mut objects = Self::default();
        let mut by_key: BTreeMap<(Kind, ObjectKey), ParsedObject> = BTreeMap::new();
        for source in paths.iter().flat_map(|path| files::read(path, failures)).collect::<Vec<_>>() {
            for document in yaml::parse_documents(&source.text, &yaml::Limits::default()) {
                let document = match document {
                    Ok(document) => document,
                    Err(error) => {
                        failures.push(format!("{}:{}: {}", source.name, error.line, error.reason));
                        continue;
                    }
                };
                for object in items(&document.value) {
                    match parse_object(&CLUSTER.into(), DOMAIN, object) {
                        Ok(parsed) => {
                            by_key.insert((parsed.kind, parsed.key.clone()), parsed);
                        }
                        Err(ObjectError::UnknownKind { kind, .. }) => {
                            if WORKLOAD_KINDS.contains(&kind.as_str()) {
                                objects.workloads.insert(format!("{kind} {}", name(object)));
                            }
                        }
                        Err(error) => failures.push(format!("{}:{}: {error}", source.name, document.line)),
                    }
                }
            }
        }
        objects.parsed = by_key.into_values().collect();
        objects
    }

    /// What makes the preview differ from what the author of the files may expect.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for reject in self.parsed.iter().flat_map(|parsed| &parsed.rejects) {
            notes.push(format!("invalid: {reject}"));
        }
        let with_slices: BTreeSet<(Text, Text)> = self.parsed.iter().filter_map(service_of_slice).collect();
        let services = self.parsed.iter().filter(|parsed| match &parsed.object {
            Some(Object::Service(service)) => service.external_name.is_empty(),
            _ => false,
        });
        let without: Vec<String> = services
            .map(|parsed| (parsed.key.namespace.clone(), parsed.key.name.clone()))
            .filter(|service| !with_slices.contains(service))
            .map(|(namespace, name)| format!("{namespace}/{name}"))
            .collect();
        if !without.is_empty() {
            let mut note =
                format!("Services without endpoints, because no EndpointSlice is of them: {}", without.join(", "));
            if !self.workloads.is_empty() {
                let workloads: Vec<_> = self.workloads.iter().map(String::as_str).collect();
                note += &format!(
                    ". Pods and EndpointSlices are created by a cluster and not from these objects: {}",
                    workloads.join(", ")
                );
            }
            notes.push(note);
        }
        notes
    }

    /// The Pod of that name.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&sluice_model::Pod> {
        self.parsed.iter().find_map(|parsed| match &parsed.object {
            Some(Object::Pod(pod)) if parsed.key.namespace == namespace && parsed.key.name == name => Some(pod),
            _ => None,
        })
    }

    /// `NAME.NAMESPACE` of all Pods.
    pub(super) fn pod_names(&self) -> Vec<String> {
        let pods = self.parsed.iter().filter(|parsed| parsed.kind == Kind::Pod);
        pods.map(|parsed| format!("{}.{}", parsed.key.name, parsed.key.namespace)).collect()
    }
}

/// The objects of a document, which may be a list.
fn items(document: &Value) -> Vec<&Value> {
    match document["items"].as_array() {
        Some(items) if document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => items.iter().collect(),
        _ => vec![document],
    }
}

fn name(object: &Value) -> String {
    let text = |field: &str, default| object["metadata"][field].as_str().unwrap_or(default).to_owned();
    format!("{}/{}", text("namespace", "default"), text("name", ""))
}

/// Namespace and name of the Service of an EndpointSlice.
fn service_of_slice(parsed: &ParsedObject) -> Option<(Text, Text)> {
    match &parsed.object {
        Some(Object::EndpointSlice(slice)) => Some((parsed.key.namespace.clone(), slice.service.clone())),
        _ => None,
    }
}
