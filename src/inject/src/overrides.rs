//! Containers that both the pod and the template define, and pods that are injected again (W06).
//!
//! A container of the pod with the name of an injected one changes the injected one. The annotation
//! `proxy.istio.io/overrides` keeps it, so that it applies when the pod is injected again.

use serde_json::{Map, Value as Json, json};

use crate::annotations::{INTERCEPTION_MODE, OVERRIDES, STATUS};
use crate::pod::{
    INIT, POD, PROXY, VALIDATION, containers, containers_mut, find, find_in_pod, find_in_pod_mut, merge, meta_mut,
    meta_text, name_of, normalize, without_directives,
};
use crate::prometheus;

/// Lists of containers.
const LISTS: [&str; 2] = ["containers", "initContainers"];
/// The image of a container that keeps the injected image.
const AUTO_IMAGE: &str = "auto";

/// What an earlier injection added, by the annotation of the pod.
struct EarlierStatus(Json);

impl EarlierStatus {
    /// `None` if there was no injection, or its status does not parse.
    fn of(pod: &Json) -> Option<Self> {
        let status: Json = serde_json::from_str(meta_text(pod, "annotations", STATUS)?).ok()?;
        let is_list = |list: &str| match &status[list] {
            Json::Null => true,
            Json::Array(names) => names.iter().all(Json::is_string),
            _ => false,
        };
        (status.is_object() && LISTS.iter().all(|list| is_list(list))).then_some(Self(status))
    }

    fn added(&self, list: &str, name: &str) -> bool {
        self.0[list].as_array().into_iter().flatten().any(|added| added.as_str() == Some(name))
    }
}

/// The pod without what an earlier injection added, but with the overrides it kept.
pub(crate) fn before_injection(pod: &Json, status_port: i32) -> Result<Json, String> {
    let mut pod = pod.clone();
    if let Some(status) = EarlierStatus::of(&pod) {
        for list in LISTS {
            if let Some(items) = pod.pointer_mut(&format!("/spec/{list}")).and_then(Json::as_array_mut) {
                items.retain(|item| !status.added(list, name_of(item)));
            }
        }
        if prometheus::port(&pod) == Some(status_port.to_string().as_str()) {
            prometheus::clear(&mut pod);
        }
        if let Some(annotations) = meta_mut(&mut pod, "annotations") {
            annotations.remove(STATUS);
        }
    }
    let kept = kept_overrides(&pod)?;
    for list in LISTS {
        for container in kept[list].as_array().into_iter().flatten() {
            if find(containers(&pod, list), name_of(container)).is_none() {
                let spec = pod.get_mut("spec").and_then(Json::as_object_mut);
                let items = spec.map(|spec| spec.entry(list).or_insert_with(|| json!([])));
                if let Some(Json::Array(items)) = items {
                    items.push(container.clone());
                }
            }
        }
    }
    Ok(pod)
}

fn kept_overrides(pod: &Json) -> Result<Json, String> {
    match meta_text(pod, "annotations", OVERRIDES) {
        None => Ok(json!({})),
        Some(text) => {
            let kept: Json = serde_json::from_str(text).map_err(|error| format!("{OVERRIDES}: {error}"))?;
            let is_valid = LISTS.iter().all(|list| {
                kept[*list].is_null() || kept[*list].as_array().is_some_and(|items| items.iter().all(Json::is_object))
            });
            if kept.is_object() && is_valid {
                Ok(kept)
            } else {
                Err(format!("{OVERRIDES}: expected lists of containers"))
            }
        }
    }
}

/// Applies the pod's own containers on top of the injected ones.
pub(crate) fn apply(merged: &mut Json, original: &Json, template: &Json, config_is_tproxy: bool) -> Result<(), String> {
    let kept = kept_overrides(original)?;
    let was_injected = meta_text(original, "annotations", STATUS).is_some();
    let status = EarlierStatus::of(original);
    let mut applied: Map<String, Json> = Map::new();
    for list in LISTS {
        for injected in containers(template, list) {
            let name = name_of(injected);
            if status.as_ref().is_some_and(|status| status.added(list, name)) {
                // What was injected before is replaced, not kept.
                continue;
            }
            let own = match list {
                "containers" => find(containers(original, list), name),
                _ => find_in_pod(original, name),
            };
            let kept = find(kept[list].as_array().map_or(&[], Vec::as_slice), name);
            let Some(container) = kept.or(own) else { continue };
            let overlay = overlay_of(container);
            merge_container(merged, list, overlay.clone()).map_err(|error| {
                let kind = if list == "containers" { "sidecar container" } else { "sidecar init container" };
                format!("failed to apply {kind}: {error}")
            })?;
            if let Some(items) = applied.entry(list).or_insert_with(|| json!([])).as_array_mut() {
                items.push(overlay);
            }
        }
    }
    if !was_injected
        && !applied.is_empty()
        && let Some(annotations) = meta_mut(merged, "annotations")
    {
        annotations.insert(OVERRIDES.to_owned(), json!(Json::Object(applied).to_string()));
    }
    let has_tproxy = config_is_tproxy || meta_text(merged, "annotations", INTERCEPTION_MODE) == Some("TPROXY");
    adjust_users(merged, original, has_tproxy);
    Ok(())
}

/// A container without unset fields, and without the image that stands for the injected one.
fn overlay_of(container: &Json) -> Json {
    let fields = container.as_object().into_iter().flatten();
    let is_unset = |value: &Json| match value {
        Json::Null => true,
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        _ => false,
    };
    let is_auto = |key: &str, value: &Json| key == "image" && value.as_str() == Some(AUTO_IMAGE);
    let set = fields.filter(|(key, value)| !is_unset(value) && !is_auto(key, value));
    let mut overlay: Map<String, Json> = set.map(|(key, value)| (key.clone(), value.clone())).collect();
    overlay.entry("resources").or_insert_with(|| json!({}));
    // Directives are for templates only.
    without_directives(Json::Object(overlay))
}

fn merge_container(pod: &mut Json, list: &str, container: Json) -> Result<(), String> {
    let Json::Object(patch) = json!({"spec": {list: [container]}}) else { return Ok(()) };
    if let Some(fields) = pod.as_object_mut() {
        merge(fields, patch, &POD).map_err(|error| format!("strategic merge: {error}"))?;
    }
    normalize(pod).map_err(|error| format!("unmarshal patched pod: {error}"))
}

/// If the pod's own container of the proxy has a user or group, the containers that set up interception follow it.
fn adjust_users(merged: &mut Json, original: &Json, has_tproxy: bool) {
    let Some(own) = find_in_pod(original, PROXY) else { return };
    let user = own["securityContext"]["runAsUser"].as_i64();
    let group = own["securityContext"]["runAsGroup"].as_i64();
    if user.is_none() && group.is_none() {
        return;
    }
    let init_containers = containers(merged, "initContainers");
    let Some(setup) = [INIT, VALIDATION].into_iter().find(|name| find(init_containers, name).is_some()) else { return };
    if has_tproxy && user.is_some() {
        // TPROXY needs root.
        let Some(context) = find_in_pod_mut(merged, PROXY).and_then(|proxy| proxy.get_mut("securityContext")) else {
            return;
        };
        context["runAsUser"] = json!(0);
    }
    let init_containers = containers_mut(merged, "initContainers");
    let Some(container) = init_containers.iter_mut().find(|container| name_of(container) == setup) else { return };
    if !has_tproxy
        && setup == VALIDATION
        && let Some(context) = crate::pod::object_at(container, "securityContext")
    {
        context.extend(user.map(|user| ("runAsUser".to_owned(), json!(user))));
        context.extend(group.map(|group| ("runAsGroup".to_owned(), json!(group))));
    }
    // Rules for the user 0 are not accepted.
    let Some(user) = user.filter(|user| *user != 0) else { return };
    if let Some(args) = container.get_mut("args").and_then(Json::as_array_mut)
        && let Some(index) = args.iter().position(|argument| argument.as_str() == Some("-u"))
        && let Some(argument) = args.get_mut(index + 1)
    {
        *argument = json!(user.to_string());
    }
}
