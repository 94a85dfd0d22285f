//! Workload objects get the proxy that the webhook adds to their pods (I07).

use serde_json::{Value, json};
use sluice_inject::{Admission, ObjectInjection};

use super::cases::{Case, Reference};

/// Fields that a controller adds to the metadata of a pod.
const CONTROLLER_FIELDS: [&str; 2] = ["generateName", "ownerReferences"];

/// Where an object has its pod template.
fn template_path(kind: &str) -> &'static str {
    match kind {
        "Pod" => "",
        "CronJob" => "/spec/jobTemplate/spec/template",
        _ => "/spec/template",
    }
}

/// The workload that a recorded pod was created from. `None` for owners of other kinds.
fn workload(pod: &Value) -> Option<Value> {
    let metadata = &pod["metadata"];
    let Some(owner) = metadata["ownerReferences"].as_array().and_then(|owners| owners.first()) else {
        return metadata["generateName"].is_null().then(|| pod.clone());
    };
    let name = owner["name"].as_str()?;
    let (api_version, kind, name) = match owner["kind"].as_str()? {
        "ReplicaSet" => match metadata["labels"]["pod-template-hash"].as_str() {
            Some(hash) => ("apps/v1", "Deployment", name.strip_suffix(hash)?.strip_suffix('-')?),
            None => ("apps/v1", "ReplicaSet", name),
        },
        "Job" => match name.rsplit_once('-').filter(|(_, time)| time.len() == 8 && time.parse::<u32>().is_ok()) {
            Some((name, _)) => ("batch/v1", "CronJob", name),
            None => ("batch/v1", "Job", name),
        },
        kind @ ("StatefulSet" | "DaemonSet") => ("apps/v1", kind, name),
        "ReplicationController" if metadata["labels"]["deploymentconfig"].is_null() => {
            ("v1", "ReplicationController", name)
        }
        _ => return None,
    };
    let template = json!({"metadata": without_controller_fields(metadata), "spec": pod["spec"]});
    let spec = match kind {
        "CronJob" => json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": template}}}),
        _ => json!({"template": template}),
    };
    let metadata = json!({"name": name, "namespace": metadata["namespace"]});
    Some(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}))
}

fn without_controller_fields(metadata: &Value) -> Value {
    let mut metadata = metadata.clone();
    if let Some(fields) = metadata.as_object_mut() {
        fields.retain(|name, _| !CONTROLLER_FIELDS.contains(&name.as_str()));
    }
    metadata
}

#[test]
fn workload_objects_get_what_the_webhook_adds_to_their_pods() {
    let reference = Reference::own();
    let (mut injected, mut kinds) = (0, std::collections::BTreeSet::new());
    for case in Case::all() {
        let pod = &case.review()["request"]["object"];
        let Some(object) = workload(pod) else { continue };
        let kind = object["kind"].as_str().expect("a kind");
        let injector = case.injector(&reference);
        let namespace = case.review()["request"]["namespace"].as_str().expect("a namespace");
        let result = case.with_context(|context| injector.inject_object(&object, namespace, context));
        let is_host_network = pod["spec"]["hostNetwork"] == true;
        match (case.answer(&injector, case.review().clone()), result) {
            (Admission::Patched(patch), Ok(ObjectInjection::Injected(object))) => {
                let mut expected = pod.clone();
                json_patch::patch(&mut expected, &patch).expect("the patch applies");
                let template = object.pointer(template_path(kind)).expect("a template");
                let metadata = match kind {
                    "Pod" => expected["metadata"].clone(),
                    _ => without_controller_fields(&expected["metadata"]),
                };
                assert_eq!(template["metadata"], metadata, "{}", case.name);
                assert_eq!(template["spec"], expected["spec"], "{}", case.name);
                injected += 1;
                kinds.insert(kind.to_owned());
            }
            (Admission::Unchanged, Ok(ObjectInjection::HostNetwork)) if is_host_network => {}
            (Admission::Unchanged, Ok(ObjectInjection::Disabled)) if !is_host_network => {}
            (Admission::Denied(expected), Err(reason)) => assert_eq!(reason, expected, "{}", case.name),
            (admission, result) => panic!("{}: {result:?}, but the webhook: {admission:?}", case.name),
        }
    }
    assert!(injected >= 100, "{injected} objects were injected");
    for kind in ["CronJob", "DaemonSet", "Deployment", "Job", "Pod", "StatefulSet"] {
        assert!(kinds.contains(kind), "no {kind} was injected");
    }
}

#[test]
fn objects_without_a_pod_template_are_left_or_refused() {
    let case = &Case::all()[0];
    let injector = case.injector(&Reference::own());
    let inject = |object: Value| case.with_context(|context| injector.inject_object(&object, "shop", context));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}});
    assert_eq!(inject(service), Ok(ObjectInjection::NoPods));
    let other_group = json!({"apiVersion": "serving.example/v1", "kind": "Deployment", "spec": {}});
    assert_eq!(inject(other_group), Ok(ObjectInjection::NoPods));
    let empty = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {}});
    assert_eq!(inject(empty), Err("spec.template.spec is required".to_owned()));
}
