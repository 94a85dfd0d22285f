//! Which containers of which pods are in the report.

use serde_json::Value;
use sluice_analyze::matches_pattern;

use crate::analyze::live::IGNORED_NAMESPACES;
use crate::answer_output::{list, text};

/// The parts of a filter, in order.
const PART_COUNT: usize = 6;

/// A filter: `NAMESPACES/DEPLOYMENTS/PODS/LABELS/ANNOTATIONS/CONTAINERS`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct PodFilter {
    namespaces: Vec<String>,
    deployments: Vec<String>,
    pods: Vec<String>,
    labels: Vec<(String, String)>,
    annotations: Vec<(String, String)>,
    containers: Vec<String>,
}

impl PodFilter {
    fn parse(flag: &str, filter: &str) -> Result<Self, String> {
        let parts: Vec<&str> = filter.split('/').collect();
        if parts.len() > PART_COUNT {
            return Err(format!("{flag} {filter:?} has more than {PART_COUNT} parts"));
        }
        let names = |at: usize| -> Vec<String> {
            let names = parts.get(at).copied().unwrap_or_default().split(',').map(str::trim);
            names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        let pairs = |at: usize| -> Result<Vec<(String, String)>, String> {
            let pair = |text: String| match text.split_once('=') {
                Some((key, value)) if !key.contains('*') && !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
                _ => Err(format!("{flag} {filter:?}: {text:?} is not of the form KEY=VALUE")),
            };
            names(at).into_iter().map(pair).collect()
        };
        Ok(Self {
            namespaces: names(0),
            deployments: names(1),
            pods: names(2),
            labels: pairs(3)?,
            annotations: pairs(4)?,
            containers: names(5),
        })
    }

    fn matches(&self, pod: &Value, container: &str) -> bool {
        let metadata = &pod["metadata"];
        let is_in = |patterns: &[String], name: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| matches_pattern(pattern, name))
        };
        let has = |pairs: &[(String, String)], map: &Value| {
            let is_there = |(key, pattern): &(String, String)| {
                map[key.as_str()].as_str().is_some_and(|value| matches_pattern(pattern, value))
            };
            pairs.is_empty() || pairs.iter().any(is_there)
        };
        is_in(&self.namespaces, text(metadata, "namespace"))
            && is_in(&self.deployments, &workload_name(pod))
            && is_in(&self.pods, text(metadata, "name"))
            && has(&self.labels, &metadata["labels"])
            && has(&self.annotations, &metadata["annotations"])
            && is_in(&self.containers, container)
    }
}

/// The filters of a report.
#[derive(Debug)]
pub(super) struct PodSelection {
    include: Vec<PodFilter>,
    exclude: Vec<PodFilter>,
}

impl PodSelection {
    /// Reads the filters of the flags.
    ///
    /// # Errors
    /// A filter is malformed.
    pub(super) fn new(include: &[String], exclude: &[String]) -> Result<Self, String> {
        let parse = |flag: &str, filters: &[String]| -> Result<Vec<PodFilter>, String> {
            filters.iter().map(|filter| PodFilter::parse(flag, filter)).collect()
        };
        Ok(Self { include: parse("--include", include)?, exclude: parse("--exclude", exclude)? })
    }

    /// Whether the report has a container.
    pub(super) fn has_container(&self, pod: &Value, container: &str) -> bool {
        !IGNORED_NAMESPACES.contains(&text(&pod["metadata"], "namespace"))
            && (self.include.is_empty() || self.include.iter().any(|filter| filter.matches(pod, container)))
            && !self.exclude.iter().any(|filter| filter.matches(pod, container))
    }

    /// Whether the report has the objects of a namespace. Filters by pods or containers do not leave out objects.
    pub(super) fn has_namespace(&self, namespace: &str) -> bool {
        let of = |filter: &PodFilter| {
            filter.namespaces.is_empty() || filter.namespaces.iter().any(|pattern| matches_pattern(pattern, namespace))
        };
        let is_whole =
            |filter: &PodFilter| PodFilter { namespaces: Vec::new(), ..filter.clone() } == PodFilter::default();
        !IGNORED_NAMESPACES.contains(&namespace)
            && (self.include.is_empty() || self.include.iter().any(of))
            && !self.exclude.iter().any(|filter| is_whole(filter) && of(filter))
    }
}

/// The names of the containers of a pod, those of native sidecars included.
pub(super) fn container_names(pod: &Value) -> Vec<&str> {
    let spec = &pod["spec"];
    let native = list(spec, "initContainers").iter().filter(|container| container["restartPolicy"] == "Always");
    native.chain(list(spec, "containers")).map(|container| text(container, "name")).collect()
}

/// The Deployment, StatefulSet or DaemonSet of a pod, as its owner and labels tell; empty if there is none.
fn workload_name(pod: &Value) -> String {
    let owners = list(&pod["metadata"], "ownerReferences");
    let Some(owner) = owners.iter().find(|owner| owner["controller"] == true).or_else(|| owners.first()) else {
        return String::new();
    };
    let name = text(owner, "name");
    let hash = text(&pod["metadata"]["labels"], "pod-template-hash");
    let of_deployment = name.strip_suffix(hash).and_then(|name| name.strip_suffix('-'));
    of_deployment.filter(|_| owner["kind"] == "ReplicaSet" && !hash.is_empty()).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, name: &str) -> Value {
        json!({
            "metadata": {
                "namespace": namespace, "name": name,
                "labels": {"app": "cart", "pod-template-hash": "7f"},
                "annotations": {"team": "shop"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "cart-v1-7f", "controller": true}],
            },
            "spec": {
                "initContainers": [{"name": "istio-init"}, {"name": "istio-proxy", "restartPolicy": "Always"}],
                "containers": [{"name": "app"}],
            },
        })
    }

    fn selection(include: &[&str], exclude: &[&str]) -> PodSelection {
        let owned = |filters: &[&str]| filters.iter().map(|filter| (*filter).to_owned()).collect::<Vec<_>>();
        PodSelection::new(&owned(include), &owned(exclude)).expect("valid filters")
    }

    #[track_caller]
    fn has(include: &[&str], exclude: &[&str], expected: bool) {
        let selected = selection(include, exclude).has_container(&pod("shop", "cart-v1-7f-1"), "istio-proxy");
        assert_eq!(selected, expected, "{include:?} {exclude:?}");
    }

    #[test]
    fn each_part_of_a_filter_has_to_match() {
        has(&[], &[], true);
        has(&["shop,bank"], &[], true);
        has(&["bank"], &[], false);
        has(&["s*//cart*"], &[], true);
        has(&["/cart-v1"], &[], true);
        has(&["/cart"], &[], false);
        has(&["shop///app=cart,app=x"], &[], true);
        has(&["shop///app=bank"], &[], false);
        has(&["////team=s*"], &[], true);
        has(&["/////istio-proxy"], &[], true);
        has(&["/////app"], &[], false);
        has(&["bank", "shop"], &[], true);
        has(&["shop"], &["//cart-v1-*"], false);
        has(&[], &["shop/other"], true);
    }

    #[test]
    fn namespaces_of_kubernetes_and_of_filters_are_left_out() {
        assert!(!selection(&["kube-system"], &[]).has_container(&pod("kube-system", "a"), "istio-proxy"));
        let all_but_bank = selection(&[], &["bank", "shop//cart"]);
        assert!(all_but_bank.has_namespace("shop"), "only a pod is excluded");
        assert!(!all_but_bank.has_namespace("bank") && !all_but_bank.has_namespace("kube-system"));
        assert!(!selection(&["shop//cart"], &[]).has_namespace("bank"));
    }

    #[test]
    fn malformed_filters_are_refused() {
        for filter in ["a/b/c/d=e/f=g/h/i", "///app", "///a*=b"] {
            let error = PodSelection::new(&[filter.to_owned()], &[]).expect_err(filter);
            assert!(error.starts_with("--include "), "{error}");
        }
    }

    #[test]
    fn native_sidecars_are_containers() {
        assert_eq!(container_names(&pod("shop", "a")), ["istio-proxy", "app"]);
    }
}
