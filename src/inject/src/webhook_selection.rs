//! Which pods the webhooks select.

use serde_json::Value as Json;

/// Whether the webhooks of a revision select a pod (W09). `revision` is `default` for the default revision.
#[must_use]
pub fn webhook_selects(revision: &str, namespace_labels: &Json, pod_labels: &Json) -> bool {
    let namespace = |key: &str| namespace_labels[key].as_str();
    let pod = |key: &str| pod_labels[key].as_str();
    let inject = pod("sidecar.istio.io/inject");
    let without_injection = namespace("istio-injection").is_none();
    if inject != Some("false") {
        match (namespace("istio.io/rev"), namespace("istio-injection")) {
            (Some(of_namespace), None) if of_namespace == revision => return true,
            (None, None) if pod("istio.io/rev") == Some(revision) => return true,
            (_, Some("enabled")) if revision == "default" => return true,
            _ => {}
        }
    }
    let unlabelled = without_injection && namespace("istio.io/rev").is_none();
    revision == "default" && unlabelled && inject == Some("true") && pod("istio.io/rev").is_none()
}
