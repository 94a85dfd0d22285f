//! Whether the webhooks of a configuration select a pod, with the reason in the words of istioctl.

use serde_json::{Value, json};
use sluice_parse::parse_label_selector;

use crate::answer_output::{list, text};

/// The label of namespaces that enables or disables injection.
const INJECTION_LABEL: &str = "istio-injection";
/// The label with the name of a namespace, which the API server sets.
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Whether a configuration injects a pod.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Selection {
    pub(crate) is_injected: bool,
    pub(crate) reason: String,
}

impl Selection {
    fn injects(reason: String) -> Self {
        Self { is_injected: true, reason }
    }

    fn leaves_out(reason: String) -> Self {
        Self { is_injected: false, reason }
    }
}

/// Whether a MutatingWebhookConfiguration has webhooks of Istio.
pub(crate) fn is_istio(configuration: &Value) -> bool {
    list(configuration, "webhooks").iter().any(|webhook| text(webhook, "name").ends_with("istio.io"))
}

/// What the webhooks of a configuration do with a pod of these labels. The first one that selects it, or that its labels
/// exclude, decides.
pub(crate) fn of(configuration: &Value, pod_labels: &Value, namespace_labels: &Value) -> Selection {
    let webhooks = list(configuration, "webhooks");
    for webhook in webhooks {
        let namespace = selects(&webhook["namespaceSelector"], namespace_labels);
        let pod = selects(&webhook["objectSelector"], pod_labels);
        if namespace && pod {
            let mut reason = selected(webhook, pod_labels, namespace_labels);
            if !list(webhook, "matchConditions").is_empty() {
                reason.push_str(" (its matchConditions are not evaluated)");
            }
            return Selection::injects(reason);
        }
        let excluded = match (namespace, pod) {
            (true, false) => excluding_pod_label(&webhook["objectSelector"], pod_labels),
            (false, true) => excluding_namespace_label(namespace_labels),
            _ => None,
        };
        if let Some(reason) = excluded {
            return Selection::leaves_out(reason);
        }
    }
    Selection::leaves_out(no_match(webhooks))
}

fn selects(selector: &Value, labels: &Value) -> bool {
    parse_label_selector(selector).is_some_and(|selector| selector.matches_labels_of(|key| labels[key].as_str()))
}

fn selected(webhook: &Value, pod_labels: &Value, namespace_labels: &Value) -> String {
    let namespace = deciding_label(&webhook["namespaceSelector"], namespace_labels);
    let pod = deciding_label(&webhook["objectSelector"], pod_labels);
    match (namespace, pod) {
        (Some(namespace), Some(pod)) => format!("Namespace label {namespace} matches, and pod label {pod} matches"),
        (Some(namespace), None) if namespace.starts_with(NAMESPACE_NAME_LABEL) => {
            format!("Namespace label {namespace} matches (Automatic injection is enabled in all namespaces).")
        }
        (Some(namespace), None) => format!("Namespace label {namespace} matches"),
        (None, Some(pod)) => format!("Pod label {pod} matches"),
        (None, None) => "No label is required, and none excludes the pod".to_owned(),
    }
}

/// `NAME=VALUE` of a label whose value a matching selector compares.
fn deciding_label(selector: &Value, labels: &Value) -> Option<String> {
    let compared =
        list(selector, "matchExpressions").iter().filter(|it| ["In", "NotIn"].contains(&text(it, "operator")));
    let compared = compared.map(|expression| text(expression, "key"));
    let equal = selector["matchLabels"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    compared.chain(equal).find_map(|name| labels[name].as_str().map(|value| format!("{name}={value}")))
}

/// A label of the pod that a selector of objects excludes.
fn excluding_pod_label(selector: &Value, labels: &Value) -> Option<String> {
    list(selector, "matchExpressions").iter().find_map(|expression| {
        let name = text(expression, "key");
        let value = labels[name].as_str()?;
        let is_excluded = match text(expression, "operator") {
            "DoesNotExist" => true,
            "NotIn" => list(expression, "values").iter().any(|excluded| excluded == value),
            _ => false,
        };
        is_excluded.then(|| format!("Pod has {name}={value} label, preventing injection"))
    })
}

fn excluding_namespace_label(labels: &Value) -> Option<String> {
    let value = labels[INJECTION_LABEL].as_str().filter(|value| *value != "enabled")?;
    Some(format!("Namespace has {INJECTION_LABEL}={value} label, preventing injection"))
}

/// The labels that webhooks would select.
fn no_match(webhooks: &[Value]) -> String {
    // What `tag set default` makes of the webhooks of the former default revision.
    let never = json!({"matchLabels": {"istio.io/deactivated": "never-match"}});
    if webhooks.iter().any(|webhook| webhook["namespaceSelector"] == never && webhook["objectSelector"] == never) {
        return "The injection webhook is deactivated, and will never match labels.".to_owned();
    }
    let selecting = |selector: &str| {
        let expressions = webhooks.iter().flat_map(|webhook| list(&webhook[selector], "matchExpressions"));
        let values = expressions.filter(|expression| text(expression, "operator") == "In").flat_map(|expression| {
            let values = list(expression, "values").iter().filter_map(Value::as_str);
            values.map(|value| format!("{}={value}", text(expression, "key")))
        });
        values.collect::<Vec<_>>().join(", ")
    };
    format!(
        "No matching namespace labels ({}) or pod labels ({})",
        selecting("namespaceSelector"),
        selecting("objectSelector")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"key": key, "operator": operator, "values": values})
    }

    /// The webhooks of a revision, as the chart and Istio's chart make them.
    fn configuration(revision: &str) -> Value {
        let (is_revision, no_revision) =
            (expression("istio.io/rev", "In", &[revision]), expression("istio.io/rev", "DoesNotExist", &[]));
        let no_injection = expression(INJECTION_LABEL, "DoesNotExist", &[]);
        let inject = "sidecar.istio.io/inject";
        let not_disabled = expression(inject, "NotIn", &["false"]);
        let webhook = |name: &str, namespace: Value, object: Value| {
            json!({
                "name": format!("{name}.sidecar-injector.istio.io"),
                "namespaceSelector": {"matchExpressions": namespace},
                "objectSelector": {"matchExpressions": object},
            })
        };
        let mut webhooks = vec![
            webhook("rev.namespace", json!([is_revision, no_injection]), json!([not_disabled])),
            webhook("rev.object", json!([no_revision, no_injection]), json!([not_disabled, is_revision])),
        ];
        if revision == "default" {
            let enabled = expression(INJECTION_LABEL, "In", &["enabled"]);
            webhooks.push(webhook("namespace", json!([enabled]), json!([not_disabled])));
            let opted_in = expression(inject, "In", &["true"]);
            webhooks.push(webhook("object", json!([no_injection, no_revision]), json!([opted_in, no_revision])));
        }
        json!({"metadata": {"name": "istio-sidecar-injector"}, "webhooks": webhooks})
    }

    #[track_caller]
    fn check(revision: &str, namespace: Value, pod: Value, is_injected: bool, reason: &str) {
        let selection = of(&configuration(revision), &pod, &namespace);
        assert_eq!(selection, Selection { is_injected, reason: reason.to_owned() });
    }

    #[test]
    fn labels_of_namespace_and_pod_decide() {
        check(
            "default",
            json!({INJECTION_LABEL: "enabled"}),
            json!({}),
            true,
            "Namespace label istio-injection=enabled matches",
        );
        check(
            "default",
            json!({INJECTION_LABEL: "enabled"}),
            json!({"sidecar.istio.io/inject": "true"}),
            true,
            "Namespace label istio-injection=enabled matches, and pod label sidecar.istio.io/inject=true matches",
        );
        check(
            "canary",
            json!({"istio.io/rev": "canary"}),
            json!({}),
            true,
            "Namespace label istio.io/rev=canary matches",
        );
        check("canary", json!({}), json!({"istio.io/rev": "canary"}), true, "Pod label istio.io/rev=canary matches");
        check(
            "canary",
            json!({"istio.io/rev": "canary"}),
            json!({"sidecar.istio.io/inject": "false"}),
            false,
            "Pod has sidecar.istio.io/inject=false label, preventing injection",
        );
        check(
            "default",
            json!({INJECTION_LABEL: "disabled"}),
            json!({}),
            false,
            "Namespace has istio-injection=disabled label, preventing injection",
        );
        check(
            "canary",
            json!({}),
            json!({"app": "cart"}),
            false,
            "No matching namespace labels (istio.io/rev=canary) or pod labels (istio.io/rev=canary)",
        );
    }

    #[test]
    fn webhooks_without_selectors_select_all_pods_as_in_kubernetes() {
        let webhook = json!({"name": "own.istio.io", "namespaceSelector": {}});
        let selection = of(&json!({"webhooks": [webhook]}), &json!({}), &Value::Null);
        assert!(selection.is_injected, "{selection:?}");
        let conditional = json!({"name": "own.istio.io", "matchConditions": [{"name": "a", "expression": "false"}]});
        let selection = of(&json!({"webhooks": [conditional]}), &json!({}), &json!({}));
        assert!(selection.reason.ends_with("(its matchConditions are not evaluated)"), "{selection:?}");
    }

    #[test]
    fn labels_of_a_selector_without_expressions_are_compared() {
        let webhook = json!({"name": "own.istio.io", "objectSelector": {"matchLabels": {"app": "cart"}}});
        let configuration = json!({"webhooks": [webhook]});
        let selection = of(&configuration, &json!({"app": "cart"}), &json!({}));
        assert_eq!(selection, Selection::injects("Pod label app=cart matches".to_owned()));
        assert!(!of(&configuration, &json!({"app": "bank"}), &json!({})).is_injected);
    }

    #[test]
    fn automatic_injection_and_deactivated_webhooks_are_named() {
        let automatic = json!({"name": "auto.sidecar-injector.istio.io", "namespaceSelector": {
            "matchExpressions": [expression(NAMESPACE_NAME_LABEL, "NotIn", &["kube-system"])]}});
        let selection = of(&json!({"webhooks": [automatic]}), &json!({}), &json!({NAMESPACE_NAME_LABEL: "shop"}));
        let reason = "Namespace label kubernetes.io/metadata.name=shop matches (Automatic injection is enabled in all namespaces).";
        assert_eq!(selection, Selection::injects(reason.to_owned()));
        let never = json!({"matchLabels": {"istio.io/deactivated": "never-match"}});
        let webhook = json!({"name": "a.istio.io", "namespaceSelector": never, "objectSelector": never});
        let selection = of(&json!({"webhooks": [webhook]}), &json!({}), &json!({}));
        assert_eq!(selection.reason, "The injection webhook is deactivated, and will never match labels.");
    }

    #[test]
    fn configurations_of_others_are_not_listed() {
        assert!(is_istio(&configuration("canary")));
        assert!(!is_istio(&json!({"webhooks": [{"name": "quota.example.com"}]})));
    }
}
