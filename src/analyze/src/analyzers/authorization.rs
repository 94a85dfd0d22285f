//! AuthorizationPolicies: workloads and namespaces (IST0101, IST0127).

use std::collections::BTreeMap;

use crate::codes::{NO_MATCHING_WORKLOADS, REFERENCED_RESOURCE_NOT_FOUND};
use crate::resource::{AUTHORIZATION_POLICY, NAMESPACE, POD};
use crate::selector::{self, Labels, show};
use crate::value::{has, items, map, texts};
use crate::{AnalyzedObject, MeshObjects, MessageList};

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut pods: BTreeMap<&str, Vec<Labels<'_>>> = BTreeMap::new();
    for pod in mesh.all(POD) {
        let is_ambient = pod.annotation("ambient.istio.io/redirection") == Some("enabled");
        if is_ambient || mesh.has_sidecar(pod) {
            pods.entry(pod.namespace()).or_default().push(pod.labels());
        }
    }
    let root = super::root_namespace(mesh);
    for policy in mesh.all(AUTHORIZATION_POLICY) {
        workloads(policy, root, &pods, report);
        namespaces(mesh, policy, report);
    }
}

fn workloads<'m>(
    policy: &'m AnalyzedObject,
    root: &str,
    pods: &BTreeMap<&str, Vec<Labels<'_>>>,
    report: &mut MessageList<'m>,
) {
    // A policy with targets has no selector.
    if has(policy.spec(), "targetRefs") || has(policy.spec(), "targetRef") {
        return;
    }
    let has_selector = has(policy.spec(), "selector");
    let selector = map(policy.spec(), "selector.matchLabels");
    let selects = |list: &Vec<Labels<'_>>| list.iter().any(|labels| selector::matches(&selector, labels));
    let found = if policy.namespace() == root {
        !has_selector || pods.values().any(selects)
    } else {
        pods.get(policy.namespace()).is_some_and(selects)
    };
    if !found {
        let text = if has_selector {
            format!("no workload of the mesh has the labels {}", show(&selector))
        } else {
            format!("namespace {} has no workload of the mesh", policy.namespace())
        };
        report.add(&NO_MATCHING_WORKLOADS, policy, if has_selector { "spec.selector" } else { "" }, text);
    }
}

fn namespaces<'m>(mesh: &'m MeshObjects<'m>, policy: &'m AnalyzedObject, report: &mut MessageList<'m>) {
    for (n, rule) in items(policy.spec(), "rules").iter().enumerate() {
        for (of, from) in items(rule, "from").iter().enumerate() {
            for list in ["namespaces", "notNamespaces"] {
                for (at, name) in texts(from, &format!("source.{list}")).into_iter().enumerate() {
                    if !mesh.all(NAMESPACE).iter().any(|namespace| namespace_matches(name, namespace.name())) {
                        let field = format!("spec.rules[{n}].from[{of}].source.{list}[{at}]");
                        let text = super::not_found("namespace", name);
                        report.add(&REFERENCED_RESOURCE_NOT_FOUND, policy, field, text);
                    }
                }
            }
        }
    }
}

fn namespace_matches(pattern: &str, name: &str) -> bool {
    if let Some(suffix) = pattern.strip_prefix('*') {
        name.ends_with(suffix)
    } else if let Some(prefix) = pattern.strip_suffix('*') {
        name.starts_with(prefix)
    } else {
        pattern.eq_ignore_ascii_case(name)
    }
}
