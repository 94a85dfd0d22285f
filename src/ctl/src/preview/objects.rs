//! The objects in files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;
use sluice_model::{Kind, Object, ObjectKey, ParsedObject, Text};
use sluice_parse::{ObjectError, WORKLOAD_KINDS, list_items, parse_object, yaml};

use crate::files;

/// The cluster id of the objects.
pub(super) const CLUSTER: &str = "Kubernetes";

/// The DNS domain of Services.
pub(super) const DOMAIN: &str = "cluster.local";

/// The objects in files, and the workloads among the objects that are not read.
#[derive(Default)]
pub(super) struct PreviewObjects {
    pub(super) parsed: Vec<ParsedObject>,
    /// `Kind namespace/name` of objects for which a cluster creates pods.
    workloads: BTreeSet<String>,
}

impl PreviewObjects {
    /// Reads files and directories. Each one that cannot be read adds a line to `failures`. If an object is declared
    /// twice, the last declaration is used.
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
                for object in list_items(document.value) {
                    match parse_object(&CLUSTER.into(), DOMAIN, &object) {
                        Ok(parsed) => {
                            by_key.insert((parsed.kind, parsed.key.clone()), parsed);
                        }
                        Err(ObjectError::UnknownKind { kind, .. }) => {
                            if WORKLOAD_KINDS.contains(&kind.as_str()) {
                                objects.workloads.insert(format!("{kind} {}", name(&object)));
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

    /// Notes about the objects, for the user: why the preview may differ from what the files seem to say.
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
                format!("Services without endpoints, because they have no EndpointSlice: {}", without.join(", "));
            if !self.workloads.is_empty() {
                let workloads: Vec<_> = self.workloads.iter().map(String::as_str).collect();
                note += &format!(
                    ". A cluster creates Pods and EndpointSlices for these objects, the preview does not: {}",
                    workloads.join(", ")
                );
            }
            notes.push(note);
        }
        notes
    }

    /// The Pod with that name.
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
