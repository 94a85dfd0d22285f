//! Which pods are injected (W03).

use serde_json::Value as Json;
use sluice_model::LabelSelector;

use crate::annotations::INJECT;
use crate::config::{InjectionConfig, Policy};
use crate::pod::meta_text;

/// Namespaces whose pods are never injected.
const IGNORED_NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "local-path-storage"];

/// Whether a pod is injected. The label decides, then the annotation, the selectors and the policy.
pub(crate) fn is_injected(config: &InjectionConfig, pod: &Json, namespace: &str) -> bool {
    if pod["spec"]["hostNetwork"].as_bool() == Some(true) || IGNORED_NAMESPACES.contains(&namespace) {
        return false;
    }
    let selects = |selector: &LabelSelector| selector.matches_labels_of(|key| meta_text(pod, "labels", key));
    let choice = meta_text(pod, "labels", INJECT).or_else(|| meta_text(pod, "annotations", INJECT));
    let chosen = match choice {
        Some("true") => Some(true),
        Some("false") => Some(false),
        _ if config.never.iter().any(selects) => Some(false),
        _ if config.always.iter().any(selects) => Some(true),
        _ => None,
    };
    match config.policy {
        Policy::Enabled => chosen.unwrap_or(true),
        Policy::Disabled => chosen.unwrap_or(false),
        Policy::Illegal => false,
    }
}
