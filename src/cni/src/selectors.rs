//! Which pods belong to the ambient mesh (`AMBIENT_ENABLEMENT_SELECTOR`).

use std::collections::BTreeMap;

use serde_json::Value;
use sluice_model::LabelSelector;
use sluice_parse::parse_label_selector;
use sluice_parse::yaml::{Limits, parse_value};

use crate::pod::{NodePod, SIDECAR_STATUS};

/// Selectors of pods and their namespaces. A pod belongs to the mesh if one of them selects it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct EnablementSelectors {
    selectors: Vec<(LabelSelector, LabelSelector)>,
    /// As configured, for the configuration of the plugin.
    source: Vec<Value>,
}

/// Selectors that are not valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SelectorError {
    /// The text is not YAML.
    #[error("{0}")]
    Yaml(String),
    /// The value is not a list.
    #[error("not a list")]
    NotAList,
    /// A selector is invalid.
    #[error("[{index}].{field}: not a label selector")]
    Selector {
        /// Its position.
        index: usize,
        /// `podSelector` or `namespaceSelector`.
        field: &'static str,
    },
}

impl EnablementSelectors {
    /// Reads a YAML list of `podSelector` and `namespaceSelector`.
    pub(crate) fn parse(text: &str) -> Result<Self, SelectorError> {
        let value = parse_value(text, &Limits::default()).map_err(|error| SelectorError::Yaml(error.to_string()))?;
        match value {
            Value::Null => Ok(Self::default()),
            Value::Array(list) => Self::read(list),
            _ => Err(SelectorError::NotAList),
        }
    }

    /// Reads the list of the configuration of the plugin.
    pub(crate) fn read(source: Vec<Value>) -> Result<Self, SelectorError> {
        let mut selectors = Vec::new();
        for (index, item) in source.iter().enumerate() {
            let read = |field: &'static str| {
                parse_label_selector(&item[field]).ok_or(SelectorError::Selector { index, field })
            };
            selectors.push((read("podSelector")?, read("namespaceSelector")?));
        }
        Ok(Self { selectors, source })
    }

    /// As configured.
    pub(crate) fn source(&self) -> &[Value] {
        &self.source
    }

    /// Whether a pod belongs to the mesh. A pod in the network of its node, or with a sidecar, never does.
    pub(crate) fn select(&self, pod: &NodePod, namespace_labels: &BTreeMap<String, String>) -> bool {
        if pod.host_network || pod.annotations.contains_key(SIDECAR_STATUS) {
            return false;
        }
        fn label<'l>(labels: &'l BTreeMap<String, String>) -> impl Fn(&str) -> Option<&'l str> {
            |key| labels.get(key).map(String::as_str)
        }
        self.selectors.iter().any(|(pods, namespaces)| {
            pods.matches_labels_of(label(&pod.labels)) && namespaces.matches_labels_of(label(namespace_labels))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DEFAULT: &str = "
- podSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}
- podSelector:
    matchExpressions: [{key: istio.io/dataplane-mode, operator: NotIn, values: [none]}]
  namespaceSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}
";

    fn selected(metadata: Value, spec: Value, namespace: Value) -> bool {
        let mut metadata = metadata;
        metadata["name"] = "a".into();
        metadata["namespace"] = "b".into();
        metadata["uid"] = "u".into();
        let pod = NodePod::read(&json!({"metadata": metadata, "spec": spec})).expect("a pod");
        let selectors = EnablementSelectors::parse(DEFAULT).expect("selectors");
        selectors.select(&pod, &crate::pod::text_map(&namespace))
    }

    #[test]
    fn label_of_the_pod_or_of_its_namespace_enrols() {
        let ambient = json!({"istio.io/dataplane-mode": "ambient"});
        assert!(selected(json!({"labels": ambient}), json!({}), json!({})));
        assert!(selected(json!({}), json!({}), ambient.clone()));
        assert!(!selected(json!({}), json!({}), json!({})));
        assert!(!selected(json!({"labels": {"istio.io/dataplane-mode": "none"}}), json!({}), ambient.clone()));
        assert!(!selected(json!({"annotations": {"sidecar.istio.io/status": "{}"}}), json!({}), ambient.clone()));
        assert!(!selected(json!({}), json!({"hostNetwork": true}), ambient));
    }

    #[test]
    fn invalid_selector_is_named() {
        let text = "[{}, {podSelector: {matchExpressions: [{key: a, operator: Like}]}}]";
        let error = EnablementSelectors::parse(text).expect_err("invalid").to_string();
        assert_eq!(error, "[1].podSelector: not a label selector");
        assert_eq!(EnablementSelectors::parse("a: b").expect_err("a map").to_string(), "not a list");
    }
}
