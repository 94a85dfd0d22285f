//! Label selectors.

use serde_json::Value as Json;

/// Whether a label selector of the injector's configuration matches. An empty selector matches nothing; an invalid one is
/// ignored.
pub(crate) fn matches(selector: &Json, labels: &Json) -> bool {
    let equal = selector["matchLabels"].as_object();
    let expressions = selector["matchExpressions"].as_array();
    let is_empty = equal.is_none_or(serde_json::Map::is_empty) && expressions.is_none_or(Vec::is_empty);
    !is_empty
        && equal.into_iter().flatten().all(|(key, value)| value.is_string() && labels[key] == *value)
        && expressions.into_iter().flatten().all(|expression| holds(expression, labels))
}

fn holds(expression: &Json, labels: &Json) -> bool {
    let Some(key) = expression["key"].as_str() else { return false };
    let label = labels[key].as_str();
    let values = expression["values"].as_array().map_or(&[][..], Vec::as_slice);
    let listed = label.is_some_and(|label| values.iter().any(|value| value.as_str() == Some(label)));
    match expression["operator"].as_str() {
        Some("In") => !values.is_empty() && listed,
        Some("NotIn") => !values.is_empty() && !listed,
        Some("Exists") => values.is_empty() && label.is_some(),
        Some("DoesNotExist") => values.is_empty() && label.is_none(),
        _ => false,
    }
}

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
