//! Injection of namespaces and pods (IST0102, IST0103, IST0123, IST0148).

use std::collections::BTreeSet;

use serde_json::Value;

use crate::codes::{INJECTED_BY_DEFAULT, MULTIPLE_INJECTION_LABELS, NAMESPACE_NOT_INJECTED, POD_MISSING_PROXY};
use crate::mesh::has_proxy;
use crate::resource::{CONFIG_MAP, NAMESPACE};
use crate::value::{at, text};
use crate::{AnalyzedObject, MeshObjects, MessageList};

const INJECTION: &str = "istio-injection";
const REVISION: &str = "istio.io/rev";
const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";

/// Namespaces of Kubernetes itself.
const IGNORED: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "local-path-storage"];

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut injected = BTreeSet::new();
    for namespace in mesh.all(NAMESPACE) {
        let name = namespace.name();
        if name == mesh.settings.istio_namespace || IGNORED.contains(&name) {
            continue;
        }
        several_labels(namespace, report);
        if namespace.label(DATAPLANE_MODE) == Some("ambient") {
            continue;
        }
        let label = namespace.label(INJECTION).unwrap_or_default();
        if label.is_empty() && namespace.label(REVISION).is_none() {
            not_injected(mesh, namespace, report);
        } else if label == "enabled" {
            injected.insert(name);
        }
    }
    for pod in injected.iter().flat_map(|namespace| mesh.pods_in(namespace)) {
        missing_proxy(pod, report);
    }
}

fn several_labels<'m>(namespace: &'m AnalyzedObject, report: &mut MessageList<'m>) {
    let injection = namespace.label(INJECTION);
    let mut labels: Vec<String> = injection.map(|value| format!("{INJECTION}={value}")).into_iter().collect();
    // A namespace that is excluded from injection may have the other labels.
    if matches!(injection, None | Some("enabled")) {
        let others = [REVISION, DATAPLANE_MODE].into_iter();
        labels.extend(others.filter_map(|key| Some(format!("{key}={}", namespace.label(key)?))));
    }
    if labels.len() > 1 {
        let text = format!("labels {} are alternatives; the namespace may have one of them", labels.join(", "));
        report.add(&MULTIPLE_INJECTION_LABELS, namespace, "metadata.labels", text);
    }
}

fn not_injected<'m>(mesh: &MeshObjects<'_>, namespace: &'m AnalyzedObject, report: &mut MessageList<'m>) {
    let name = namespace.name();
    let values = injection_values(mesh, "default");
    if at(&values, "sidecarInjectorWebhook.enableNamespacesByDefault") == &Value::Bool(true) {
        let text = "pods get a sidecar, because the installation sets enableNamespacesByDefault";
        report.add(&INJECTED_BY_DEFAULT, namespace, "metadata.labels", text);
    } else {
        let text = format!(
            "pods get no sidecar: `kubectl label namespace {name} {INJECTION}=enabled` enables injection, and {INJECTION}=disabled states that none is intended"
        );
        report.add(&NAMESPACE_NOT_INJECTED, namespace, "metadata.name", text);
    }
}

fn missing_proxy<'m>(pod: &'m AnalyzedObject, report: &mut MessageList<'m>) {
    const INJECT: &str = "sidecar.istio.io/inject";
    let inject = pod.label(INJECT).or_else(|| pod.annotation(INJECT)).unwrap_or_default();
    let on_host_network = at(pod.spec(), "hostNetwork").as_bool().unwrap_or(false);
    if inject.eq_ignore_ascii_case("false") || on_host_network || has_proxy(pod.spec()) {
        return;
    }
    let text = format!(
        "pod {} has no sidecar, although its namespace is injected; restart its workload if it is older than the label",
        pod.full_name()
    );
    report.add(&POD_MISSING_PROXY, pod, "metadata.name", text);
}

/// The values of the injection of a revision, from its ConfigMap; null if there is none.
pub(super) fn injection_values(mesh: &MeshObjects<'_>, revision: &str) -> Value {
    let name = match revision {
        "" | "default" => "istio-sidecar-injector".to_owned(),
        revision => format!("istio-sidecar-injector-{revision}"),
    };
    let found = mesh.find(CONFIG_MAP, &mesh.settings.istio_namespace, &name);
    found.map_or(Value::Null, |map| serde_json::from_str(text(&map.value, "data.values")).unwrap_or_default())
}
