//! Label selectors.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::value::{items, map, text, texts};

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

/// Whether a Kubernetes `LabelSelector` matches. An absent one matches everything, an invalid one nothing.
pub(crate) fn label_selector_matches(selector: &Value, labels: &Labels<'_>) -> bool {
    matches(&map(selector, "matchLabels"), labels)
        && items(selector, "matchExpressions").iter().all(|expression| {
            let (key, values) = (text(expression, "key"), texts(expression, "values"));
            let value = labels.get(key);
            match text(expression, "operator") {
                "In" => value.is_some_and(|value| values.contains(value)),
                "NotIn" => value.is_none_or(|value| !values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}
