//! User and group ids that OpenShift allocates to namespaces.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::pod::{INIT, PROXY, VALIDATION, containers, name_of};

const UID_RANGE: &str = "openshift.io/sa.scc.uid-range";
const SUPPLEMENTAL_GROUPS: &str = "openshift.io/sa.scc.supplemental-groups";
/// User and group of the proxy where none are allocated.
const DEFAULT_ID: i64 = 1337;

/// User and group of the proxy: the last ones of the ranges in the annotations of the namespace.
pub(crate) fn proxy_ids(annotations: Option<&BTreeMap<String, String>>) -> (i64, i64) {
    let Some(annotations) = annotations else { return (DEFAULT_ID, DEFAULT_ID) };
    let user = annotations.get(UID_RANGE).and_then(|range| last_of(range));
    let groups = annotations.get(SUPPLEMENTAL_GROUPS).or_else(|| annotations.get(UID_RANGE));
    let groups: Option<Vec<i64>> = groups.and_then(|groups| groups.split(',').map(last_of).collect());
    let group = groups.and_then(|groups| groups.first().copied());
    (user.unwrap_or(DEFAULT_ID), group.unwrap_or(DEFAULT_ID))
}

/// The last id of `START/SIZE` or `START-END`.
fn last_of(range: &str) -> Option<i64> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let last = match range.split_once('/') {
        Some((start, size)) => number(start)?.checked_add(number(size)?)?.checked_sub(1)?,
        None => {
            let (start, end) = range.split_once('-')?;
            number(start)?;
            number(end)?
        }
    };
    Some(i64::from(last))
}

/// Whether the proxy has the user of the application, which OpenShift sets in all containers.
pub(crate) fn has_user_of_application(pod: &Json) -> bool {
    let (mut proxy, mut application) = (0, 0);
    for container in containers(pod, "containers").iter().chain(containers(pod, "initContainers")) {
        let Some(user) = container["securityContext"]["runAsUser"].as_i64() else { continue };
        match name_of(container) {
            PROXY => proxy = user,
            VALIDATION | INIT => {}
            _ => application = user,
        }
    }
    proxy == application
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Admission, AdmissionReview, ClusterView, InjectContext, Injector, InjectorSettings};

    const TEMPLATE: &str = "spec:\n  containers:\n  - name: istio-proxy\n    image: proxy\n    securityContext:\n      \
                            runAsUser: {{ .ProxyUID }}\n      runAsGroup: {{ .ProxyGID }}\n";

    fn annotations(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn ids_are_the_last_of_the_ranges() {
        let ids = |of: &[(&str, &str)]| proxy_ids(Some(&annotations(of)));
        assert_eq!(proxy_ids(None), (1337, 1337));
        assert_eq!(ids(&[(UID_RANGE, "1000/100")]), (1099, 1099));
        assert_eq!(ids(&[(UID_RANGE, "1000-1050"), (SUPPLEMENTAL_GROUPS, "2000/10,3000/10")]), (1050, 2009));
        assert_eq!(ids(&[(UID_RANGE, "many"), (SUPPLEMENTAL_GROUPS, "2000/10,few")]), (1337, 1337));
    }

    /// A cluster that allocates ids to all namespaces.
    struct Allocating;

    impl ClusterView for Allocating {
        fn has_native_sidecars(&self, _: &str, _: Option<&str>) -> bool {
            false
        }

        fn namespace_annotations(&self, _: &str, _: &str) -> Option<BTreeMap<String, String>> {
            Some(annotations(&[(UID_RANGE, "1000/100")]))
        }
    }

    #[test]
    fn proxy_has_the_allocated_ids_on_openshift_only() {
        let patch = |openshift| {
            let config = json!({"policy": "enabled", "templates": {"sidecar": TEMPLATE}}).to_string();
            let settings = InjectorSettings { openshift, ..InjectorSettings::default() };
            let injector = Injector::new(&config, "{}", &[], settings).expect("a configuration");
            let review = json!({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": {
                    "uid": "u-1", "namespace": "shop",
                    "object": {
                        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
                        "spec": {"containers": [{"name": "app", "image": "app"}]},
                    },
                },
            });
            let review = AdmissionReview::from_json(review).expect("a review");
            let context = InjectContext { path: "/inject", proxy_configs: &[], clusters: &Allocating };
            match injector.inject(&review, &context) {
                Admission::Patched(patch) => json!(patch).to_string(),
                other => panic!("{other:?}"),
            }
        };
        let ids = |patch: &str| [1099, 1337].map(|id| patch.contains(&format!("\"runAsUser\":{id}")));
        assert_eq!(ids(&patch(true)), [true, false]);
        assert_eq!(ids(&patch(false)), [false, true]);
    }
}
