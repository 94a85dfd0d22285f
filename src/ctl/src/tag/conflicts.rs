//! Webhooks that would inject pods twice, or call a Service that does not exist, once a tag is set.

use serde_json::Value;
use sluice_analyze::{ANALYZERS, AnalyzedObject, Level, MeshObjects, Origin, Settings, analyze};

/// The analyzer of webhooks.
const ANALYZER: &str = "webhook.Analyzer";

/// Errors of the analysis about the configuration `name`, a line each, when `changed` objects replace those of the cluster.
pub(super) fn find<'o>(
    existing: impl IntoIterator<Item = &'o Value>,
    changed: impl IntoIterator<Item = &'o Value>,
    name: &str,
    istio_namespace: &str,
) -> Vec<String> {
    let objects = existing.into_iter().chain(changed).cloned();
    // Of several objects with one name, the last one counts.
    let objects: Vec<AnalyzedObject> =
        objects.map(|object| AnalyzedObject::new(object, Origin::Cluster, istio_namespace)).collect();
    let settings = Settings { istio_namespace: istio_namespace.to_owned(), ..Settings::default() };
    let mesh = MeshObjects::new(&objects, settings);
    let analyzers: Vec<_> = ANALYZERS.iter().filter(|analyzer| analyzer.name == ANALYZER).collect();
    let messages = analyze(&mesh, &analyzers).into_iter().filter(|message| {
        message.message_type.level == Level::Error
            && message.resource.name() == name
            && message.resource.kind().name == "MutatingWebhookConfiguration"
    });
    messages
        .map(|it| format!("{} [{}] ({}) {}", it.message_type.level, it.message_type.code, it.resource, it.text))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configuration(name: &str, revision: &str) -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name, "labels": {"istio.io/rev": revision}},
            "webhooks": [{
                "name": "rev.namespace.sidecar-injector.istio.io", "clientConfig": {"url": "https://a/inject"},
                "namespaceSelector": {"matchExpressions": [{"key": "istio.io/rev", "operator": "In", "values": ["prod"]}]},
            }],
        })
    }

    #[test]
    fn webhooks_that_select_the_same_pods_conflict() {
        let (other, tag) = (configuration("other", "old"), configuration("istio-revision-tag-prod", "canary"));
        let found = find([&other], [&tag], "istio-revision-tag-prod", "istio-system");
        assert!(!found.is_empty() && found.iter().all(|line| line.contains("[IST0139]")), "{found:?}");
        // The tag replaces its former configuration.
        assert_eq!(find([&tag], [&tag], "istio-revision-tag-prod", "istio-system"), Vec::<String>::new());
    }
}
