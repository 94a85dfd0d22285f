//! A WorkloadGroup: printed for flags, and read from a file or from a cluster.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sluice_proto::istio::networking::v1alpha3::{WorkloadEntry, WorkloadGroup as Spec};
use sluice_proto::json::{decode, encode};

use super::args::GroupArgs;

const API_VERSION: &str = "networking.istio.io/v1";
const DEFAULT_ACCOUNT: &str = "default";

/// The WorkloadGroup of these flags. Fields without a value are left out.
pub(super) fn object(args: &GroupArgs) -> Value {
    let mut metadata = Map::new();
    for (field, pairs) in [("annotations", &args.annotations), ("labels", &args.labels)] {
        if !pairs.is_empty() {
            let pairs: BTreeMap<_, _> = pairs.iter().cloned().collect();
            metadata.insert(field.to_owned(), json!(pairs));
        }
    }
    let mut template = Map::new();
    if !args.ports.is_empty() {
        let ports: BTreeMap<_, _> = args.ports.iter().cloned().collect();
        template.insert("ports".to_owned(), json!(ports));
    }
    for (field, text) in
        [("locality", &args.locality), ("network", &args.network), ("serviceAccount", &args.service_account)]
    {
        if !text.is_empty() {
            template.insert(field.to_owned(), text.as_str().into());
        }
    }
    if args.weight != 0 {
        template.insert("weight".to_owned(), args.weight.into());
    }
    json!({
        "apiVersion": API_VERSION, "kind": "WorkloadGroup",
        "metadata": {"name": args.name, "namespace": args.namespace},
        "spec": {"metadata": metadata, "template": template},
    })
}

/// The parts of a WorkloadGroup that configure its workloads.
#[derive(Debug)]
pub(super) struct WorkloadGroup {
    pub(super) name: String,
    pub(super) namespace: String,
    /// Annotations of the object, then those of its workloads.
    pub(super) annotations: [BTreeMap<String, String>; 2],
    /// Labels of its workloads.
    pub(super) labels: BTreeMap<String, String>,
    /// Labels in the template, which override the others.
    pub(super) template_labels: BTreeMap<String, String>,
    pub(super) template: WorkloadEntry,
    /// `spec.probe` as JSON.
    pub(super) probe: Option<Value>,
    /// Paths of unknown fields, which are ignored.
    pub(super) unknown: Vec<String>,
}

impl WorkloadGroup {
    /// Reads an object. An object in a file needs no `apiVersion`.
    ///
    /// # Errors
    /// It is no WorkloadGroup, has no name or namespace, or a field is invalid. The message names the field.
    pub(super) fn of(object: &Value) -> Result<Self, String> {
        let kind = object["kind"].as_str().unwrap_or_default();
        if kind != "WorkloadGroup" {
            return Err(format!("kind: {kind:?} is not WorkloadGroup"));
        }
        let metadata = &object["metadata"];
        let text = |field: &str| match metadata[field].as_str() {
            Some(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(format!("metadata.{field} is missing")),
        };
        let (name, namespace) = (text("name")?, text("namespace")?);
        let own = metadata["annotations"].as_object().into_iter().flatten();
        let own = own.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
        let empty = json!({});
        let spec = if object["spec"].is_null() { &empty } else { &object["spec"] };
        let decoded = decode::<Spec>(spec).map_err(|error| format!("spec.{error}"))?;
        let unknown = decoded.unknown.iter().map(|path| format!("spec.{path}")).collect();
        let Spec { metadata, template, probe, .. } = decoded.message;
        let metadata = metadata.unwrap_or_default();
        let mut template = template.unwrap_or_default();
        if template.service_account.is_empty() {
            DEFAULT_ACCOUNT.clone_into(&mut template.service_account);
        }
        let probe = probe.map(|probe| encode(&probe)).transpose().map_err(|error| format!("spec.probe.{error}"))?;
        Ok(Self {
            name,
            namespace,
            annotations: [own, metadata.annotations.into_iter().collect()],
            labels: metadata.labels.into_iter().collect(),
            template_labels: template.labels.clone().into_iter().collect(),
            template,
            probe,
            unknown,
        })
    }

    /// The ports of its workloads by name.
    pub(super) fn ports(&self) -> BTreeMap<&str, u32> {
        self.template.ports.iter().map(|(name, port)| (name.as_str(), *port)).collect()
    }
}
