//! Injection into the pod templates of workload objects, without a webhook (I07).

use serde_json::{Map, Value as Json, json};

use crate::injector::{InjectContext, Injector};
use crate::pod::object_at;
use crate::review::{Admission, AdmissionReview};

/// Group, kind, and path of the pod template: the kinds that istioctl injects. A Pod is its own template.
const KINDS: [(&str, &str, &str); 8] = [
    ("", "Pod", ""),
    ("", "ReplicationController", "/spec/template"),
    ("apps", "DaemonSet", "/spec/template"),
    ("apps", "Deployment", "/spec/template"),
    ("apps", "ReplicaSet", "/spec/template"),
    ("apps", "StatefulSet", "/spec/template"),
    ("batch", "CronJob", "/spec/jobTemplate/spec/template"),
    ("batch", "Job", "/spec/template"),
];
/// Fields of the metadata by which the injector recognizes the workload of a pod. A template does not have them.
const WORKLOAD_FIELDS: [&str; 2] = ["generateName", "ownerReferences"];

/// What becomes of a workload object.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectInjection {
    /// The kind has no pods: the object stays as it is.
    NoPods,
    /// The pods use the network of their node, and are not injected.
    HostNetwork,
    /// Labels, annotations or the namespace disable injection.
    Disabled,
    /// The object with the proxy in its pod template.
    Injected(Json),
}

impl Injector {
    /// Injects the pod template of an object as the webhook injects the pods that are created from it. `namespace` is that
    /// of an object without one.
    ///
    /// # Errors
    /// The object has no pod template, or the webhook would deny the pods: the reason.
    pub fn inject_object(
        &self,
        object: &Json,
        namespace: &str,
        context: &InjectContext<'_>,
    ) -> Result<ObjectInjection, String> {
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let Some((.., path)) = KINDS.iter().find(|(of, name, _)| *of == group && *name == kind) else {
            return Ok(ObjectInjection::NoPods);
        };
        let template = object.pointer(path).filter(|template| template["spec"].is_object());
        let mut pod = template.cloned().ok_or_else(|| match *path {
            "" => "spec is required".to_owned(),
            path => format!("{}.spec is required", path[1..].replace('/', ".")),
        })?;
        if pod["spec"]["hostNetwork"] == true {
            return Ok(ObjectInjection::HostNetwork);
        }
        let Some(metadata) = object_at(&mut pod, "metadata") else { return Err("metadata is no object".to_owned()) };
        let stated: Vec<(&str, Option<Json>)> =
            WORKLOAD_FIELDS.iter().map(|field| (*field, metadata.get(*field).cloned())).collect();
        if !path.is_empty() {
            let name = text(&object["metadata"]["name"]);
            metadata.insert("generateName".to_owned(), json!(format!("{name}-")));
            let owner = json!([{"apiVersion": api_version, "kind": kind, "name": name, "controller": true}]);
            metadata.insert("ownerReferences".to_owned(), owner);
        }
        let namespaces = [&pod["metadata"]["namespace"], &object["metadata"]["namespace"]];
        let namespace =
            namespaces.into_iter().filter_map(Json::as_str).find(|name| !name.is_empty()).unwrap_or(namespace);
        let review = AdmissionReview::of_pod(pod.clone(), namespace);
        match self.inject(&review, context) {
            Admission::Unchanged => return Ok(ObjectInjection::Disabled),
            Admission::Denied(reason) => return Err(reason),
            Admission::Patched(patch) => {
                json_patch::patch(&mut pod, &patch).map_err(|error| format!("the patch does not apply: {error}"))?;
            }
        }
        if let Some(metadata) = object_at(&mut pod, "metadata") {
            restore(metadata, stated);
        }
        let mut injected = object.clone();
        match injected.pointer_mut(path) {
            Some(template) => *template = pod,
            None => return Err(format!("{path} is missing")),
        }
        Ok(ObjectInjection::Injected(injected))
    }
}

fn restore(metadata: &mut Map<String, Json>, stated: Vec<(&str, Option<Json>)>) {
    for (field, value) in stated {
        match value {
            Some(value) => metadata.insert(field.to_owned(), value),
            None => metadata.remove(field),
        };
    }
}
