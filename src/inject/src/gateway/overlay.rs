//! Overlays of rendered objects: strategic merge patches in ConfigMaps.

use serde_json::{Map, Value as Json};
use sluice_model::ObjectKey;
use sluice_model::gateway_api::{DeployedKind, GatewayParameters};
use sluice_parse::yaml::{Limits, parse_value};

use crate::pod::{DEPLOYMENT, OTHER, SERVICE, SERVICE_ACCOUNT, Structure, merge};

/// Fields of metadata that an overlay may not change. `managedFields` may not even be set.
const FIXED: [&str; 11] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
];

fn structure(kind: DeployedKind) -> &'static Structure {
    match kind {
        DeployedKind::ServiceAccount => &SERVICE_ACCOUNT,
        DeployedKind::Deployment => &DEPLOYMENT,
        DeployedKind::Service => &SERVICE,
        DeployedKind::HorizontalPodAutoscaler | DeployedKind::PodDisruptionBudget => &OTHER,
    }
}

/// Whether there is no object without an overlay.
fn needs_overlay(kind: DeployedKind) -> bool {
    matches!(kind, DeployedKind::HorizontalPodAutoscaler | DeployedKind::PodDisruptionBudget)
}

/// Applies the overlays in order. `None` if the object exists only with an overlay, and there is none.
pub(super) fn apply_overlays(
    kind: DeployedKind,
    rendered: Json,
    overlays: &[(ObjectKey, GatewayParameters)],
) -> Result<Option<Json>, String> {
    let mut object = rendered.clone();
    let mut is_applied = false;
    for (config_map, parameters) in overlays {
        let place = format!("ConfigMap {}/{}", config_map.namespace, config_map.name);
        if let Some(problem) = parameters.problems.first() {
            return Err(format!("{place}, {problem}"));
        }
        let Some(text) = parameters.overlays.get(kind.overlay_key()) else { continue };
        apply(kind, &mut object, text)
            .and_then(|()| check_metadata(&rendered, &object))
            .map_err(|error| format!("{place}, data.{}: {error}", kind.overlay_key()))?;
        is_applied = true;
    }
    Ok((is_applied || !needs_overlay(kind)).then_some(object))
}

fn apply(kind: DeployedKind, object: &mut Json, overlay: &str) -> Result<(), String> {
    let overlay = match parse_value(overlay, &Limits::default()).map_err(|error| error.to_string())? {
        Json::Object(fields) => fields,
        Json::Null => Map::new(),
        _ => return Err("expected an object".to_owned()),
    };
    let Some(fields) = object.as_object_mut() else { return Err("the template renders no object".to_owned()) };
    // The API replaces this selector, and does not merge it.
    let has_selector = overlay.get("spec").is_some_and(|spec| spec["selector"].is_object());
    if kind == DeployedKind::PodDisruptionBudget
        && has_selector
        && let Some(spec) = fields.get_mut("spec").and_then(Json::as_object_mut)
    {
        spec.remove("selector");
    }
    merge(fields, overlay, structure(kind))
}

fn check_metadata(before: &Json, after: &Json) -> Result<(), String> {
    let differs = |field: &&&str| before["metadata"][**field] != after["metadata"][**field];
    if let Some(field) = FIXED.iter().find(differs) {
        return Err(format!("an overlay may not change metadata.{field}"));
    }
    match after["metadata"]["managedFields"].is_null() {
        true => Ok(()),
        false => Err("an overlay may not set metadata.managedFields".to_owned()),
    }
}
