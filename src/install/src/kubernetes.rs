//! `k8s` of a component: settings of its workload, and overlays of any of its objects.

use serde_json::{Map, Value as Json, json};

use crate::error::InstallError;
use crate::object::KubeObject;
use crate::values::{merge, parse_path, remove, set};

/// The workload of a component.
pub(crate) struct ComponentWorkload<'w> {
    /// `Deployment` or `DaemonSet`.
    pub(crate) kind: &'static str,
    /// Name of the workload and of the objects that belong to it.
    pub(crate) name: &'w str,
    /// Name of its container. `None` if the component has no workload.
    pub(crate) container: Option<&'w str>,
}

/// What a setting changes.
enum Target {
    /// A field of the pod template.
    Pod(&'static str),
    /// A field of the container.
    Container(&'static str),
    /// A path of the workload.
    Workload(&'static [&'static str]),
    /// A path of the workload, if it is a Deployment.
    Deployment(&'static [&'static str]),
    /// A path of another object with the name of the workload.
    Other(&'static str, &'static [&'static str]),
}

const SETTINGS: [(&str, Target); 18] = [
    ("affinity", Target::Pod("affinity")),
    ("env", Target::Container("env")),
    ("hpaSpec", Target::Other("HorizontalPodAutoscaler", &["spec"])),
    ("imagePullPolicy", Target::Container("imagePullPolicy")),
    ("nodeSelector", Target::Pod("nodeSelector")),
    ("podAnnotations", Target::Workload(&["spec", "template", "metadata", "annotations"])),
    ("podDisruptionBudget", Target::Other("PodDisruptionBudget", &["spec"])),
    ("priorityClassName", Target::Pod("priorityClassName")),
    ("readinessProbe", Target::Container("readinessProbe")),
    ("replicaCount", Target::Deployment(&["spec", "replicas"])),
    ("resources", Target::Container("resources")),
    ("securityContext", Target::Pod("securityContext")),
    ("service", Target::Other("Service", &["spec"])),
    ("serviceAnnotations", Target::Other("Service", &["metadata", "annotations"])),
    ("strategy", Target::Deployment(&["spec", "strategy"])),
    ("tolerations", Target::Pod("tolerations")),
    ("volumeMounts", Target::Container("volumeMounts")),
    ("volumes", Target::Pod("volumes")),
];

/// The keys by which Kubernetes merges lists, by the name of the list.
const LIST_KEYS: [(&str, &str); 6] = [
    ("containers", "name"),
    ("env", "name"),
    ("initContainers", "name"),
    ("ports", "port"),
    ("volumeMounts", "mountPath"),
    ("volumes", "name"),
];

/// Changes rendered objects as `k8s` says. `path` is that of the component.
///
/// # Errors
/// A setting is unknown, or the component has no object that it could change.
pub(crate) fn change(
    objects: &mut [KubeObject],
    kubernetes: &Map<String, Json>,
    workload: &ComponentWorkload<'_>,
    path: &str,
) -> Result<(), InstallError> {
    for (name, value) in kubernetes.iter().filter(|(name, _)| *name != "overlays") {
        let at = format!("{path}.k8s.{name}");
        let Some((_, target)) = SETTINGS.iter().find(|(known, _)| known == name) else {
            let known: Vec<&str> = SETTINGS.iter().map(|(known, _)| *known).collect();
            let reason = format!("this field is not known; the fields are {}, overlays", known.join(", "));
            return Err(InstallError::input(at, reason));
        };
        apply_setting(objects, target, value, workload).map_err(|reason| InstallError::input(at, reason))?;
    }
    match kubernetes.get("overlays") {
        None | Some(Json::Null) => Ok(()),
        Some(Json::Array(overlays)) => {
            for (index, overlay) in overlays.iter().enumerate() {
                apply_overlay(objects, overlay, &format!("{path}.k8s.overlays[{index}]"))?;
            }
            Ok(())
        }
        Some(_) => Err(InstallError::input(format!("{path}.k8s.overlays"), "a list is expected")),
    }
}

fn apply_setting(
    objects: &mut [KubeObject],
    target: &Target,
    value: &Json,
    workload: &ComponentWorkload<'_>,
) -> Result<(), String> {
    let container = workload.container.ok_or("the component has no workload")?;
    let nested = |keys: &[&str], value: Json| keys.iter().rev().fold(value, |inner, key| json!({*key: inner}));
    let (kind, patch) = match target {
        Target::Pod(field) => (workload.kind, nested(&["spec", "template", "spec", field], value.clone())),
        Target::Container(field) => {
            let containers = json!([{"name": container, *field: value}]);
            (workload.kind, nested(&["spec", "template", "spec", "containers"], containers))
        }
        Target::Workload(keys) => (workload.kind, nested(keys, value.clone())),
        Target::Deployment(keys) => ("Deployment", nested(keys, value.clone())),
        Target::Other(kind, keys) => (*kind, nested(keys, value.clone())),
    };
    let object = objects.iter_mut().find(|it| it.key().kind == kind && it.key().name == workload.name);
    let object = object.ok_or_else(|| format!("the component has no {kind} {} with its values", workload.name))?;
    object.change(|json| strategic_merge(json, &patch, ""));
    Ok(())
}

/// Merges as Kubernetes does for its own kinds: maps by key, and some lists by the key of their elements. Null removes a value.
fn strategic_merge(target: &mut Json, patch: &Json, name: &str) {
    match (target, patch) {
        (Json::Object(fields), Json::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    fields.remove(key);
                } else {
                    strategic_merge(fields.entry(key).or_insert(Json::Null), value, key);
                }
            }
        }
        (Json::Array(items), Json::Array(patch)) => {
            let key = LIST_KEYS.iter().find(|(list, _)| *list == name).map(|(_, key)| *key);
            let Some(key) = key.filter(|key| patch.iter().all(|item| item.get(key).is_some())) else {
                items.clone_from(patch);
                return;
            };
            for item in patch {
                match items.iter_mut().find(|known| known.get(key) == item.get(key)) {
                    Some(known) => replace_union(known, item, name),
                    None => items.push(item.clone()),
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

/// A variable or a volume has one source: a new one replaces the previous one.
fn replace_union(known: &mut Json, item: &Json, list: &str) {
    match list {
        "env" | "volumes" => *known = item.clone(),
        _ => strategic_merge(known, item, ""),
    }
}

fn apply_overlay(objects: &mut [KubeObject], overlay: &Json, path: &str) -> Result<(), InstallError> {
    let fields = overlay.as_object().ok_or_else(|| InstallError::input(path, "a map is expected"))?;
    if let Some(unknown) =
        fields.keys().find(|name| !["apiVersion", "kind", "name", "patches"].contains(&name.as_str()))
    {
        return Err(InstallError::input(format!("{path}.{unknown}"), "this field is not known"));
    }
    let text = |name: &str| {
        let text = overlay[name].as_str().filter(|text| !text.is_empty());
        text.ok_or_else(|| InstallError::input(format!("{path}.{name}"), "a text is required"))
    };
    let (kind, name) = (text("kind")?, text("name")?);
    let object = objects.iter_mut().find(|it| it.key().kind == kind && it.key().name == name);
    let object = object
        .ok_or_else(|| InstallError::input(path, format!("the component has no {kind} {name} with its values")))?;
    let patches = overlay["patches"]
        .as_array()
        .ok_or_else(|| InstallError::input(format!("{path}.patches"), "a list is expected"))?;
    for (index, patch) in patches.iter().enumerate() {
        let at = format!("{path}.patches[{index}]");
        let fail = |reason: String| InstallError::input(format!("{at}.path"), reason);
        let target = patch["path"].as_str().ok_or_else(|| fail("a text is required".to_owned()))?;
        let steps = parse_path(target).map_err(fail)?;
        let mut changed = object.json().clone();
        let result = match patch.get("value") {
            None | Some(Json::Null) => remove(&mut changed, &steps),
            Some(value) => set(&mut changed, &steps, value.clone()),
        };
        result.map_err(fail)?;
        match KubeObject::new(changed) {
            Some(changed) if changed.key() == object.key() => *object = changed,
            _ => return Err(fail("an overlay must not change version, kind, namespace or name".to_owned())),
        }
    }
    Ok(())
}

/// The labels with which an installation marks its objects, over those of an object.
pub(crate) fn add_labels(object: &mut KubeObject, labels: &[(&str, &str)]) {
    for (name, value) in labels {
        object.set_label(name, value);
    }
}

/// Annotations over those of an object.
pub(crate) fn with_annotations(mut object: Json, annotations: &Json) -> Json {
    merge(&mut object, &json!({"metadata": {"annotations": annotations}}));
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> Vec<KubeObject> {
        let objects = [
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "istiod"}, "spec": {"template": {
                "spec": {"containers": [
                    {"name": "discovery", "args": ["discovery", "--x"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                    {"name": "other"},
                ], "tolerations": [{"key": "a"}]}}}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "istiod"},
                   "spec": {"ports": [{"name": "x", "port": 1}, {"name": "y", "port": 2}]}}),
        ];
        objects.into_iter().filter_map(KubeObject::new).collect()
    }

    fn changed(kubernetes: Json) -> Result<Vec<Json>, String> {
        let mut objects = objects();
        let workload = ComponentWorkload { kind: "Deployment", name: "istiod", container: Some("discovery") };
        let kubernetes = kubernetes.as_object().cloned().unwrap_or_default();
        change(&mut objects, &kubernetes, &workload, "spec.components.pilot").map_err(|error| error.to_string())?;
        Ok(objects.iter().map(|object| object.json().clone()).collect())
    }

    #[test]
    fn settings_change_the_workload_and_its_service() {
        let kubernetes = json!({
            "env": [{"name": "B", "valueFrom": {"x": 1}}, {"name": "C", "value": "3"}],
            "replicaCount": 3,
            "resources": {"requests": {"cpu": "1"}},
            "tolerations": [{"key": "b"}],
            "podAnnotations": {"p": "q"},
            "service": {"type": "NodePort", "ports": [{"port": 2, "nodePort": 30000}]},
            "serviceAnnotations": {"s": "t"},
        });
        let objects = changed(kubernetes).expect("valid settings");
        let (deployment, service) = (&objects[0]["spec"], &objects[1]);
        let pod = &deployment["template"]["spec"];
        assert_eq!(deployment["replicas"], 3);
        assert_eq!(deployment["template"]["metadata"]["annotations"], json!({"p": "q"}));
        assert_eq!(pod["tolerations"], json!([{"key": "b"}]));
        let env =
            json!([{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"x": 1}}, {"name": "C", "value": "3"}]);
        assert_eq!(pod["containers"][0]["env"], env);
        assert_eq!(pod["containers"][0]["args"], json!(["discovery", "--x"]));
        assert_eq!(service["metadata"]["annotations"], json!({"s": "t"}));
        let ports = json!([{"name": "x", "port": 1}, {"name": "y", "port": 2, "nodePort": 30000}]);
        assert_eq!(service["spec"], json!({"type": "NodePort", "ports": ports}));
    }

    #[test]
    fn overlays_set_and_remove_by_path() {
        let overlays = json!({"overlays": [{"kind": "Deployment", "name": "istiod", "patches": [
            {"path": "spec.template.spec.containers.[name:discovery].args.[1]", "value": "--y"},
            {"path": "spec.template.spec.containers.[name:discovery].env.[name:A]"},
            {"path": "metadata.labels.example\\.com/x", "value": "1"},
        ]}]});
        let objects = changed(overlays).expect("valid overlays");
        let container = &objects[0]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["discovery", "--y"]));
        assert_eq!(container["env"], json!([{"name": "B", "value": "2"}]));
        assert_eq!(objects[0]["metadata"]["labels"], json!({"example.com/x": "1"}));
    }

    #[test]
    fn settings_without_effect_are_refused_with_their_path() {
        let cases = [
            (json!({"hpaSpec": {}}), "pilot.k8s.hpaSpec: the component has no HorizontalPodAutoscaler istiod"),
            (json!({"replicas": 1}), "pilot.k8s.replicas: this field is not known"),
            (
                json!({"overlays": [{"kind": "Service", "name": "x", "patches": []}]}),
                "overlays[0]: the component has no Service x",
            ),
            (
                json!({"overlays": [{"kind": "Service", "name": "istiod", "patches": [{"path": "spec.ports.[name:z].port", "value": 1}]}]}),
                "overlays[0].patches[0].path: [name:z]: the list has no such element",
            ),
            (
                json!({"overlays": [{"kind": "Service", "name": "istiod", "patches": [{"path": "metadata.name", "value": "z"}]}]}),
                "must not change version, kind, namespace or name",
            ),
        ];
        for (kubernetes, expected) in cases {
            let error = changed(kubernetes).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
