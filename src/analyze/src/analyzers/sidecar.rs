//! Workloads of Sidecars (IST0101, IST0110, IST0111, IST0167).

use std::collections::{BTreeMap, BTreeSet};

use crate::codes::{
    CONFLICTING_SIDECAR_SELECTORS, INEFFECTIVE_POLICY, MULTIPLE_DEFAULT_SIDECARS, REFERENCED_RESOURCE_NOT_FOUND,
};
use crate::resource::SIDECAR;
use crate::selector::show;
use crate::value::map;
use crate::{AnalyzedObject, MeshObjects, MessageList};

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut defaults: BTreeMap<&str, Vec<&'m AnalyzedObject>> = BTreeMap::new();
    let mut by_pod: BTreeMap<(&str, &str), (&'m AnalyzedObject, Vec<&'m AnalyzedObject>)> = BTreeMap::new();
    for sidecar in mesh.all(SIDECAR) {
        let selector = map(sidecar.spec(), "workloadSelector.labels");
        if selector.is_empty() {
            defaults.entry(sidecar.namespace()).or_default().push(sidecar);
            continue;
        }
        let pods = mesh.pods(&selector).into_iter().filter(|pod| pod.namespace() == sidecar.namespace());
        let mut has_pods = false;
        for pod in pods {
            has_pods = true;
            by_pod.entry((pod.namespace(), pod.name())).or_insert((pod, Vec::new())).1.push(sidecar);
        }
        if !has_pods {
            let text = super::not_found("selector", &show(&selector));
            report.add(&REFERENCED_RESOURCE_NOT_FOUND, sidecar, "spec.workloadSelector.labels", text);
        }
    }
    let mut without_effect = BTreeSet::new();
    for (pod, sidecars) in by_pod.into_values() {
        selected(pod, &sidecars, &mut without_effect, report);
    }
    for (namespace, sidecars) in defaults {
        whole_namespace(mesh, namespace, &sidecars, &mut without_effect, report);
    }
}

/// Sidecars that select a pod.
fn selected<'m>(
    pod: &AnalyzedObject,
    sidecars: &[&'m AnalyzedObject],
    without_effect: &mut BTreeSet<String>,
    report: &mut MessageList<'m>,
) {
    if pod.annotation("ambient.istio.io/redirection") == Some("enabled") {
        for sidecar in sidecars.iter().filter(|sidecar| without_effect.insert(sidecar.full_name())) {
            let text = "has no effect: a workload that it selects is in ambient mode";
            report.add(&INEFFECTIVE_POLICY, sidecar, "spec.workloadSelector", text);
        }
    } else if sidecars.len() > 1 {
        for sidecar in sidecars {
            let text = format!(
                "Sidecars {} of namespace {} select pod {}; only one of them applies",
                names(sidecars),
                pod.namespace(),
                pod.name()
            );
            report.add(&CONFLICTING_SIDECAR_SELECTORS, sidecar, "spec.workloadSelector", text);
        }
    }
}

/// Sidecars without a selector.
fn whole_namespace<'m>(
    mesh: &MeshObjects<'_>,
    namespace: &str,
    sidecars: &[&'m AnalyzedObject],
    without_effect: &mut BTreeSet<String>,
    report: &mut MessageList<'m>,
) {
    if mesh.namespace(namespace).is_some_and(is_ambient) {
        for sidecar in sidecars.iter().filter(|sidecar| without_effect.insert(sidecar.full_name())) {
            report.add(&INEFFECTIVE_POLICY, sidecar, "", "has no effect: the namespace is in ambient mode");
        }
    } else if sidecars.len() > 1 {
        for sidecar in sidecars {
            let text = format!(
                "Sidecars {} of namespace {namespace} have no workload selector; only one of them applies",
                names(sidecars)
            );
            report.add(&MULTIPLE_DEFAULT_SIDECARS, sidecar, "", text);
        }
    }
}

fn is_ambient(namespace: &AnalyzedObject) -> bool {
    namespace.label("istio-injection") != Some("enabled")
        && namespace.label("istio.io/rev").unwrap_or_default().is_empty()
        && namespace.label("istio.io/dataplane-mode") == Some("ambient")
}

/// The names, sorted.
pub(super) fn names(resources: &[&AnalyzedObject]) -> String {
    super::join(&resources.iter().map(|resource| resource.name().to_owned()).collect())
}
