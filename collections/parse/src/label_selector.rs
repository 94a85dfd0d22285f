//! `LabelSelector` of Kubernetes.

use serde_json::Value;
use sluice_model::{LabelRequirement, LabelSelector, Text};

use crate::{Fields, is_label_key, is_label_value};

/// Reads a selector of an object whose findings are recorded.
pub(crate) fn label_selector(fields: &Fields<'_>) -> LabelSelector {
    LabelSelector {
        match_labels: fields.text_map("matchLabels"),
        match_expressions: fields.list("matchExpressions", |expression| LabelRequirement {
            key: expression.text("key"),
            operator: expression.text("operator"),
            values: expression.texts("values"),
        }),
    }
}

/// Reads a selector by the rules of the API server. An absent one is the empty selector, which matches everything.
/// An invalid one is `None`: the API server refuses it, and it matches nothing.
#[must_use]
pub fn parse_label_selector(value: &Value) -> Option<LabelSelector> {
    if value.is_null() {
        return Some(LabelSelector::default());
    }
    let fields = value.as_object()?;
    let mut selector = LabelSelector::default();
    for (key, value) in optional(fields.get("matchLabels"), Value::as_object)?.into_iter().flatten() {
        selector.match_labels.insert(label_key(key)?, label_value(value)?);
    }
    for expression in optional(fields.get("matchExpressions"), Value::as_array)?.into_iter().flatten() {
        let values = optional(expression.get("values"), Value::as_array)?.into_iter().flatten();
        let requirement = LabelRequirement {
            key: label_key(expression.get("key")?.as_str()?)?,
            operator: expression.get("operator")?.as_str()?.into(),
            values: values.map(label_value).collect::<Option<_>>()?,
        };
        selector.match_expressions.push(requirement.is_valid().then_some(requirement)?);
    }
    Some(selector)
}

/// `Some(None)` for an absent field, `None` for one of another type.
fn optional<'v, T: ?Sized>(field: Option<&'v Value>, read: fn(&'v Value) -> Option<&'v T>) -> Option<Option<&'v T>> {
    match field {
        None | Some(Value::Null) => Some(None),
        Some(value) => read(value).map(Some),
    }
}

fn label_key(key: &str) -> Option<Text> {
    is_label_key(key).then(|| key.into())
}

fn label_value(value: &Value) -> Option<Text> {
    /// Of a label value.
    const MAX_BYTES: usize = 63;
    value.as_str().filter(|value| value.len() <= MAX_BYTES && is_label_value(value)).map(Text::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(selector: &Value, labels: &[(&str, &str)]) -> Option<bool> {
        let selector = parse_label_selector(selector)?;
        let label = |key: &str| labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
        Some(selector.matches_labels_of(label))
    }

    #[test]
    fn conditions_are_those_of_kubernetes() {
        let labels = [("app", "web"), ("tier", "")];
        let check = |selector: Value, expected| assert_eq!(matches(&selector, &labels), expected, "{selector}");
        check(Value::Null, Some(true));
        check(json!({}), Some(true));
        check(json!({"matchLabels": {"app": "web"}}), Some(true));
        check(json!({"matchLabels": {"app": "web", "a": "b"}}), Some(false));
        let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        check(expression("app", "In", json!(["api", "web"])), Some(true));
        check(expression("app", "In", json!(["api"])), Some(false));
        check(expression("app", "NotIn", json!(["api"])), Some(true));
        check(expression("other", "NotIn", json!(["api"])), Some(true));
        check(expression("app", "NotIn", json!(["web"])), Some(false));
        check(expression("tier", "Exists", Value::Null), Some(true));
        check(expression("other", "Exists", json!([])), Some(false));
        check(expression("other", "DoesNotExist", Value::Null), Some(true));
        check(expression("app", "DoesNotExist", Value::Null), Some(false));
    }

    #[test]
    fn selector_that_the_api_server_refuses_is_invalid() {
        let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let invalid = [
            json!("app=web"),
            json!({"matchLabels": []}),
            json!({"matchLabels": {"app": 1}}),
            json!({"matchLabels": {"app": "a b"}}),
            json!({"matchLabels": {"-": "a"}}),
            json!({"matchExpressions": [{"operator": "Exists"}]}),
            expression("app", "In", json!([])),
            expression("app", "NotIn", Value::Null),
            expression("app", "Exists", json!(["web"])),
            expression("app", "DoesNotExist", json!(["web"])),
            expression("app", "Gt", json!(["1"])),
        ];
        for selector in invalid {
            assert_eq!(matches(&selector, &[("app", "web")]), None, "{selector}");
        }
    }
}
