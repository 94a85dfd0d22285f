//! Selectors of workloads by labels, and label selectors of Kubernetes.

use std::collections::BTreeMap;

use serde_json::Value;
use sluice_parse::parse_label_selector;

/// Labels by key.
pub(crate) type Labels<'l> = BTreeMap<&'l str, &'l str>;

/// Whether all labels of the selector are present. An empty selector matches everything.
pub(crate) fn matches(selector: &Labels<'_>, labels: &Labels<'_>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// `key=value,...` in the order of the keys.
pub(crate) fn show(selector: &Labels<'_>) -> String {
    let pairs: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

/// Whether a Kubernetes `LabelSelector` matches. An absent or empty one matches everything, an invalid one nothing.
pub(crate) fn label_selector_matches(selector: &Value, labels: &Labels<'_>) -> bool {
    parse_label_selector(selector).is_some_and(|selector| selector.matches_labels_of(|key| labels.get(key).copied()))
}
