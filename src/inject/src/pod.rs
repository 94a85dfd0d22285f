//! Pods and the objects that contain them as JSON: the structure of their fields, strategic merge, and canonical values.
//!
//! Pods stay JSON, so a field that this version does not know passes through unchanged.

mod deployed_schema;
mod merge;
mod normalize;
mod quantity;
mod record;
mod schema;
mod structure;
mod volume_schema;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value as Json};

pub(crate) use deployed_schema::{DEPLOYMENT, OTHER, SERVICE, SERVICE_ACCOUNT};
pub(crate) use merge::{merge, without_directives};
pub(crate) use normalize::normalize;
pub(crate) use quantity::canonical;
pub(crate) use record::record;
pub(crate) use schema::{OBJECT_META, POD, POD_SPEC};
pub(crate) use structure::Structure;

/// Name of the proxy's container.
pub(crate) const PROXY: &str = "istio-proxy";
/// Name of the container that sets up the interception of traffic.
pub(crate) const INIT: &str = "istio-init";
/// Name of the container that checks what the CNI plugin has set up.
pub(crate) const VALIDATION: &str = "istio-validation";

/// The containers of a pod's field `containers` or `initContainers`.
pub(crate) fn containers<'p>(pod: &'p Json, list: &str) -> &'p [Json] {
    pod["spec"][list].as_array().map_or(&[], Vec::as_slice)
}

/// As [`containers`], to change them.
pub(crate) fn containers_mut<'p>(pod: &'p mut Json, list: &str) -> &'p mut [Json] {
    pod.pointer_mut(&format!("/spec/{list}")).and_then(Json::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// The name of a container or volume.
pub(crate) fn name_of(item: &Json) -> &str {
    item["name"].as_str().unwrap_or_default()
}

/// The first container with a name.
pub(crate) fn find<'p>(containers: &'p [Json], name: &str) -> Option<&'p Json> {
    containers.iter().find(|container| name_of(container) == name)
}

/// The first container with a name, in `containers`, then in `initContainers`.
pub(crate) fn find_in_pod<'p>(pod: &'p Json, name: &str) -> Option<&'p Json> {
    find(containers(pod, "containers"), name).or_else(|| find(containers(pod, "initContainers"), name))
}

/// As [`find_in_pod`], to change it.
pub(crate) fn find_in_pod_mut<'p>(pod: &'p mut Json, name: &str) -> Option<&'p mut Json> {
    let list = ["containers", "initContainers"].into_iter().find(|list| find(containers(pod, list), name).is_some())?;
    containers_mut(pod, list).iter_mut().find(|container| name_of(container) == name)
}

/// The text of an annotation or label.
pub(crate) fn meta_text<'p>(pod: &'p Json, map: &str, key: &str) -> Option<&'p str> {
    pod["metadata"][map][key].as_str()
}

/// The object at `key`, which is created where it is missing or null.
pub(crate) fn object_at<'p>(parent: &'p mut Json, key: &str) -> Option<&'p mut Map<String, Json>> {
    let fields = parent.as_object_mut()?;
    let value = fields.entry(key).or_insert(Json::Null);
    if value.is_null() {
        *value = Json::Object(Map::new());
    }
    value.as_object_mut()
}

/// Annotations or labels, to change them.
pub(crate) fn meta_mut<'p>(pod: &'p mut Json, map: &str) -> Option<&'p mut Map<String, Json>> {
    object_at(pod, "metadata")?;
    object_at(&mut pod["metadata"], map)
}
