//! The ProxyConfig resource (C18): settings that the proxies of a namespace or a workload start with.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Labels, ProxyConfig, Text, Timestamp, match_labels};

/// A ProxyConfig resource. It is merged over `defaultConfig` of the mesh config when a proxy is injected.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ProxyConfigResource {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Creation time; the oldest is used.
    pub created: Timestamp,
    /// Selector of workloads; `None` is the whole namespace, an empty selector is no workload.
    pub selector: Option<Labels>,
    /// Number of worker threads, if set.
    pub concurrency: Option<i32>,
    /// Environment of the proxy.
    pub environment: BTreeMap<Text, Text>,
    /// Kind of the image, such as `distroless`, empty if unset.
    pub image_type: Text,
}

/// The resources that apply to a workload, by level. An annotation of the pod is merged between those of the namespace
/// and of the workload.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ProxyConfigLevels<'a> {
    /// That of the root namespace.
    pub mesh: Option<&'a ProxyConfigResource>,
    /// That of its namespace.
    pub namespace: Option<&'a ProxyConfigResource>,
    /// That of the workload.
    pub workload: Option<&'a ProxyConfigResource>,
}

impl ProxyConfigResource {
    /// The resources that apply to a workload with these labels; of several at one level the oldest.
    pub fn levels<'a>(
        resources: impl IntoIterator<Item = &'a Self>,
        root: &str,
        namespace: &str,
        labels: &Labels,
    ) -> ProxyConfigLevels<'a> {
        let mut resources: Vec<&Self> = resources.into_iter().collect();
        resources.sort_by(|a, b| (a.created, &a.name, &a.namespace).cmp(&(b.created, &b.name, &b.namespace)));
        let whole = |of: &str| {
            let here = resources.iter().find(|resource| *resource.namespace == *of && resource.selector.is_none());
            here.copied()
        };
        let selects = |selector: &Labels| !selector.is_empty() && match_labels(selector, labels);
        let workload = resources
            .iter()
            .find(|resource| *resource.namespace == *namespace && resource.selector.as_ref().is_some_and(selects));
        ProxyConfigLevels {
            mesh: whole(root),
            namespace: if namespace == root { None } else { whole(namespace) },
            workload: workload.copied(),
        }
    }

    /// `config` with these resources merged over it. Unset fields keep their value.
    #[must_use]
    pub fn merge_over(&self, mut config: ProxyConfig) -> ProxyConfig {
        config.concurrency = self.concurrency.or(config.concurrency);
        config.proxy_metadata.extend(self.environment.iter().map(|(name, value)| (name.clone(), value.clone())));
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(namespace: &str, name: &str, selector: Option<&[(&str, &str)]>) -> ProxyConfigResource {
        let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (Text::from(*k), Text::from(*v))).collect();
        ProxyConfigResource {
            namespace: namespace.into(),
            name: name.into(),
            selector: selector.map(labels),
            ..ProxyConfigResource::default()
        }
    }

    #[test]
    fn oldest_resource_of_each_level_applies() {
        let all = [
            resource("istio-system", "mesh", None),
            resource("shop", "z", None),
            resource("shop", "a", None),
            resource("shop", "none", Some(&[])),
            resource("shop", "web", Some(&[("app", "web")])),
            resource("other", "web", Some(&[("app", "web")])),
        ];
        let labels = Labels::from([("app".into(), "web".into()), ("v".into(), "1".into())]);
        let names = |namespace: &str, labels: &Labels| {
            let found = ProxyConfigResource::levels(&all, "istio-system", namespace, labels);
            [found.mesh, found.namespace, found.workload].map(|found| found.map_or("", |resource| &*resource.name))
        };
        assert_eq!(names("shop", &labels), ["mesh", "a", "web"]);
        assert_eq!(names("shop", &Labels::new()), ["mesh", "a", ""]);
        assert_eq!(names("istio-system", &labels), ["mesh", "", ""]);
    }

    #[test]
    fn unset_fields_keep_their_value() {
        let own =
            ProxyConfigResource { environment: [("A".into(), "1".into())].into(), ..ProxyConfigResource::default() };
        let base = ProxyConfig {
            concurrency: Some(2),
            proxy_metadata: [("A".into(), "0".into()), ("B".into(), "0".into())].into(),
            ..ProxyConfig::default()
        };
        let laid = own.merge_over(base.clone());
        assert_eq!(laid.concurrency, Some(2));
        assert_eq!(laid.proxy_metadata, [("A".into(), "1".into()), ("B".into(), "0".into())].into());
        let own = ProxyConfigResource { concurrency: Some(0), ..own };
        assert_eq!(own.merge_over(base).concurrency, Some(0));
    }
}
