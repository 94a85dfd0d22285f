//! Namespaces with the revision that injects them, and their pods by the revision that has injected these.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{GAP, InjectionState, name_of};
use crate::answer_output::{list, text};
use crate::columns::{print_columns, table};

/// What stands for the revision of pods without a proxy.
const NOT_INJECTED: &str = "<non-Istio>";

/// Pods of a namespace that the same revision has injected.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct PodCounts {
    all: u64,
    /// A label or annotation of the pod disables injection.
    disabled: u64,
    /// A new pod with the same labels would be injected by another revision, or not at all.
    outdated: u64,
}

impl InjectionState {
    pub(super) fn namespace(&self, namespace: &Value) -> Value {
        let labels = &namespace["metadata"]["labels"];
        let mut counts: BTreeMap<String, PodCounts> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| text(&pod["metadata"], "namespace") == name_of(namespace)) {
            let revision = injected_by(pod);
            let is_disabled = is_injection_disabled(pod);
            // The injector leaves out pods with the network of their node, whatever their labels are.
            let expected = if pod["spec"]["hostNetwork"] == true {
                String::new()
            } else {
                self.injecting_revision(&pod["metadata"]["labels"], labels).unwrap_or_default().to_owned()
            };
            let is_outdated = !is_disabled && revision != expected;
            let counts = counts.entry(revision).or_default();
            counts.all += 1;
            counts.disabled += u64::from(is_disabled);
            counts.outdated += u64::from(is_outdated);
        }
        let of_all: u64 = counts.values().map(|counts| counts.all).sum();
        let not_injected = counts.get("").map_or(0, |counts| counts.all);
        let by_revision: Vec<Value> = counts
            .into_iter()
            .map(|(revision, PodCounts { all, disabled, outdated })| {
                json!({"revision": revision, "pods": all, "injectionDisabled": disabled, "needRestart": outdated})
            })
            .collect();
        json!({
            "namespace": name_of(namespace),
            "revision": self.revision_of_namespace(labels),
            "pods": of_all,
            "injectedPods": of_all - not_injected,
            "podRevisions": by_revision,
        })
    }

    /// The revision that injects pods without labels; `MISSING/` and the label's value if none has webhooks for it. Empty if the
    /// namespace is not injected.
    fn revision_of_namespace(&self, labels: &Value) -> String {
        if let Some(revision) = self.injecting_revision(&Value::Null, labels) {
            return revision.to_owned();
        }
        match (text(labels, "istio.io/rev"), labels["istio-injection"].as_str()) {
            ("", None | Some("disabled")) => String::new(),
            ("", Some(_)) => "MISSING/istio-injection".to_owned(),
            (revision, _) => format!("MISSING/{revision}"),
        }
    }
}

/// The revision that has injected a pod; empty if none has.
fn injected_by(pod: &Value) -> String {
    let annotations = &pod["metadata"]["annotations"];
    if let Some(revision) = annotations["istio.io/rev"].as_str() {
        return revision.to_owned();
    }
    let status: Value = serde_json::from_str(text(annotations, "sidecar.istio.io/status")).unwrap_or_default();
    text(&status, "revision").to_owned()
}

fn is_injection_disabled(pod: &Value) -> bool {
    let inject = |field: &str| pod["metadata"][field]["sidecar.istio.io/inject"].as_str();
    inject("labels").or_else(|| inject("annotations")).is_some_and(|inject| inject.eq_ignore_ascii_case("false"))
}

/// A row for each revision that has pods in a namespace.
pub(super) fn print_table(namespaces: &[Value], out: &mut dyn Write) -> io::Result<()> {
    let rows: Vec<Vec<String>> = namespaces.iter().flat_map(rows).collect();
    if rows.is_empty() {
        return writeln!(out, "No Istio injected namespaces present.");
    }
    print_columns(&table(&["NAMESPACE", "ISTIO-REVISION", "POD-REVISIONS"], rows), GAP, out)
}

fn rows(namespace: &Value) -> Vec<Vec<String>> {
    let revision = text(namespace, "revision");
    let row = |pods: String| vec![text(namespace, "namespace").to_owned(), revision.to_owned(), pods];
    match list(namespace, "podRevisions") {
        [] if revision.is_empty() => Vec::new(),
        [] => vec![row("<no pods>".to_owned())],
        counts => counts.iter().map(|counts| row(pods_cell(counts))).collect(),
    }
}

fn pods_cell(counts: &Value) -> String {
    let number = |field: &str| counts[field].as_u64().unwrap_or_default();
    let revision = match text(counts, "revision") {
        "" => NOT_INJECTED,
        revision => revision,
    };
    let mut cell = format!("{revision}: {}", number("pods"));
    if number("injectionDisabled") > 0 {
        cell.push_str(&format!(" (injection disabled: {})", number("injectionDisabled")));
    }
    if number("needRestart") > 0 {
        cell.push_str(&format!(" NEEDS RESTART: {}", number("needRestart")));
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration whose webhooks select a label of the namespace, or one of the pod, as those of the charts.
    fn configuration(revision: &str) -> Value {
        let is_in = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
        let is_absent = |key: &str| json!({"key": key, "operator": "DoesNotExist"});
        let not_disabled = json!({"key": "sidecar.istio.io/inject", "operator": "NotIn", "values": ["false"]});
        let of_revision = is_in("istio.io/rev", &[revision]);
        json!({
            "metadata": {"name": format!("injector-{revision}"), "labels": {"istio.io/rev": revision}},
            "webhooks": [
                {
                    "name": "rev.namespace.sidecar-injector.istio.io",
                    "namespaceSelector": {"matchExpressions": [of_revision, is_absent("istio-injection")]},
                    "objectSelector": {"matchExpressions": [not_disabled]},
                },
                {
                    "name": "rev.object.sidecar-injector.istio.io",
                    "namespaceSelector": {"matchExpressions": [is_absent("istio.io/rev"), is_absent("istio-injection")]},
                    "objectSelector": {"matchExpressions": [not_disabled, of_revision]},
                },
            ],
        })
    }

    fn state(namespaces: &[(&str, Value)], pods: &[(&str, Value)]) -> InjectionState {
        let namespace = |(name, labels): &(&str, Value)| json!({"metadata": {"name": name, "labels": labels}});
        let pod = |(namespace, metadata): &(&str, Value)| {
            let mut pod = json!({"metadata": metadata});
            pod["metadata"]["namespace"] = (*namespace).into();
            pod
        };
        InjectionState {
            namespaces: namespaces.iter().map(namespace).collect(),
            configurations: vec![configuration("canary"), configuration("stable")],
            pods: pods.iter().map(pod).collect(),
            config_maps: Vec::new(),
        }
    }

    fn printed(state: &InjectionState) -> String {
        let namespaces: Vec<Value> = state.namespaces.iter().map(|it| state.namespace(it)).collect();
        let mut out = Vec::new();
        print_table(&namespaces, &mut out).expect("written");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn pods_are_counted_by_the_revision_that_has_injected_them() {
        let status = |revision: &str| json!({"sidecar.istio.io/status": json!({"revision": revision}).to_string()});
        let pods = [
            ("shop", json!({"annotations": status("canary")})),
            ("shop", json!({"annotations": {"istio.io/rev": "stable", "sidecar.istio.io/status": "not JSON"}})),
            ("shop", json!({"labels": {"sidecar.istio.io/inject": "False"}})),
            ("shop", json!({"annotations": {"sidecar.istio.io/inject": "false"}})),
            ("shop", json!({})),
            ("none", json!({"labels": {"istio.io/rev": "stable"}, "annotations": status("stable")})),
            ("none", json!({})),
        ];
        let revision = |name: &str| json!({"istio.io/rev": name});
        let namespaces = [
            ("bank", revision("stable")),
            ("none", Value::Null),
            ("off", json!({"istio-injection": "disabled"})),
            ("old", revision("gone")),
            ("shop", revision("canary")),
            ("typo", json!({"istio-injection": "on"})),
        ];
        let state = state(&namespaces, &pods);
        let expected = "\
NAMESPACE ISTIO-REVISION          POD-REVISIONS
bank      stable                  <no pods>
none                              <non-Istio>: 1
none                              stable: 1
old       MISSING/gone            <no pods>
shop      canary                  <non-Istio>: 3 (injection disabled: 2) NEEDS RESTART: 1
shop      canary                  canary: 1
shop      canary                  stable: 1 NEEDS RESTART: 1
typo      MISSING/istio-injection <no pods>
";
        assert_eq!(printed(&state), expected);
        let shop = state.namespace(&state.namespaces[4]);
        assert_eq!((&shop["pods"], &shop["injectedPods"]), (&json!(5), &json!(2)));
    }

    #[test]
    fn pod_with_the_network_of_its_node_needs_no_restart() {
        let mut state = state(&[("shop", json!({"istio.io/rev": "canary"}))], &[("shop", json!({}))]);
        state.pods[0]["spec"] = json!({"hostNetwork": true});
        assert!(printed(&state).ends_with("shop      canary         <non-Istio>: 1\n"), "{}", printed(&state));
    }

    #[test]
    fn cluster_without_injected_namespaces_has_no_table() {
        let state = state(&[("none", Value::Null)], &[]);
        assert_eq!(printed(&state), "No Istio injected namespaces present.\n");
    }
}
