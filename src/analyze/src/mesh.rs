//! The objects of an analysis with the indices that analyzers use.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::resource::{CONFIG_MAP, NAMESPACE, POD, SERVICE};
use crate::selector::{self, Labels};
use crate::value::{at, items, map, text};
use crate::{AnalyzedObject, GroupKind, Origin};

/// Settings of an analysis.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the control plane.
    pub istio_namespace: String,
    /// Revision of the control plane: `default` or the name of a revision. It selects the ConfigMap of the mesh config.
    pub revision: String,
    /// Mesh config that replaces the one of the ConfigMap.
    pub mesh_config: Option<Value>,
    /// Current time in seconds since 1970, at which certificates have to be valid. Without it, their validity periods are not
    /// checked.
    pub now_unix_seconds: Option<i64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            istio_namespace: "istio-system".to_owned(),
            revision: "default".to_owned(),
            mesh_config: None,
            now_unix_seconds: None,
        }
    }
}

/// Objects by kind and name. Of several objects with one name, the last one counts. Of other clusters, only the Services are
/// read.
#[derive(Debug)]
pub struct MeshObjects<'m> {
    /// The settings.
    pub settings: Settings,
    /// The mesh config; empty if there is none.
    pub mesh_config: Value,
    by_kind: HashMap<GroupKind<'m>, Vec<&'m AnalyzedObject>>,
    by_name: HashMap<(GroupKind<'m>, &'m str, &'m str), &'m AnalyzedObject>,
    pods_by_label: HashMap<(&'m str, &'m str), Vec<&'m AnalyzedObject>>,
    pods_by_namespace: BTreeMap<&'m str, Vec<&'m AnalyzedObject>>,
    services_by_label: HashMap<(&'m str, &'m str, &'m str), Vec<&'m AnalyzedObject>>,
    /// Services of other clusters, by cluster.
    remote_services: Vec<&'m AnalyzedObject>,
}

impl<'m> MeshObjects<'m> {
    /// Indexes objects.
    #[must_use]
    pub fn new(resources: &'m [AnalyzedObject], settings: Settings) -> Self {
        let mut last: BTreeMap<(GroupKind<'m>, &str, &str), &'m AnalyzedObject> = BTreeMap::new();
        let mut remote: BTreeMap<(&str, &str, &str), &'m AnalyzedObject> = BTreeMap::new();
        for resource in resources {
            match &resource.origin {
                Origin::RemoteCluster(cluster) if resource.kind() == SERVICE => {
                    remote.insert((cluster.as_str(), resource.namespace(), resource.name()), resource);
                }
                Origin::RemoteCluster(_) => {}
                _ => {
                    last.insert((resource.kind(), resource.namespace(), resource.name()), resource);
                }
            }
        }
        let mut mesh = Self {
            mesh_config: Value::Null,
            by_kind: HashMap::new(),
            by_name: last.iter().map(|(key, resource)| (*key, *resource)).collect(),
            pods_by_label: HashMap::new(),
            pods_by_namespace: BTreeMap::new(),
            services_by_label: HashMap::new(),
            remote_services: remote.into_values().collect(),
            settings,
        };
        for ((kind, ..), resource) in last {
            mesh.by_kind.entry(kind).or_default().push(resource);
            match kind {
                POD => mesh.index_pod(resource),
                SERVICE => mesh.index_service(resource),
                _ => {}
            }
        }
        mesh.mesh_config = mesh.settings.mesh_config.clone().unwrap_or_else(|| mesh.read_mesh_config());
        mesh
    }

    fn index_pod(&mut self, pod: &'m AnalyzedObject) {
        self.pods_by_namespace.entry(pod.namespace()).or_default().push(pod);
        for label in pod.labels() {
            self.pods_by_label.entry(label).or_default().push(pod);
        }
    }

    /// A Service is indexed by one label of its selector.
    fn index_service(&mut self, service: &'m AnalyzedObject) {
        if let Some((key, value)) = map(service.spec(), "selector").into_iter().next() {
            self.services_by_label.entry((service.namespace(), key, value)).or_default().push(service);
        }
    }

    /// The ConfigMap with the mesh config and the networks.
    pub(crate) fn mesh_config_map(&self) -> Option<&'m AnalyzedObject> {
        let name = match self.settings.revision.as_str() {
            "" | "default" => "istio".to_owned(),
            revision => format!("istio-{revision}"),
        };
        self.find(CONFIG_MAP, &self.settings.istio_namespace, &name)
    }

    fn read_mesh_config(&self) -> Value {
        self.mesh_config_map().map_or(Value::Null, |map| Self::parse_yaml(text(&map.value, "data.mesh")))
    }

    /// Parses a YAML text in an object; null if it is invalid, which the schema analyzer reports.
    pub(crate) fn parse_yaml(yaml: &str) -> Value {
        sluice_parse::yaml::parse_value(yaml, &sluice_parse::yaml::Limits::default()).unwrap_or_default()
    }

    /// All objects of a kind, by namespace and name.
    #[must_use]
    pub fn all(&self, kind: GroupKind<'static>) -> &[&'m AnalyzedObject] {
        self.by_kind.get(&kind).map_or(&[], Vec::as_slice)
    }

    /// The Services of other clusters, by cluster, namespace and name.
    pub(crate) fn remote_services(&self) -> &[&'m AnalyzedObject] {
        &self.remote_services
    }

    /// The object with a name.
    #[must_use]
    pub fn find(&self, kind: GroupKind<'_>, namespace: &str, name: &str) -> Option<&'m AnalyzedObject> {
        self.by_name.get(&(kind, namespace, name)).copied()
    }

    /// The object that `name` or `namespace/name` refers to.
    pub(crate) fn find_reference(
        &self,
        kind: GroupKind<'_>,
        namespace: &str,
        reference: &str,
    ) -> Option<&'m AnalyzedObject> {
        let (namespace, name) = reference.split_once('/').unwrap_or((namespace, reference));
        self.find(kind, namespace, name)
    }

    pub(crate) fn namespace(&self, name: &str) -> Option<&'m AnalyzedObject> {
        self.find(NAMESPACE, "", name)
    }

    /// The pods of a namespace.
    pub(crate) fn pods_in(&self, namespace: &str) -> &[&'m AnalyzedObject] {
        self.pods_by_namespace.get(namespace).map_or(&[], Vec::as_slice)
    }

    /// The pods with all labels of a selector, in all namespaces.
    pub(crate) fn pods(&self, selector: &Labels<'_>) -> Vec<&'m AnalyzedObject> {
        let index: &HashMap<(&str, &str), Vec<&'m AnalyzedObject>> = &self.pods_by_label;
        let candidates = selector.iter().map(|(key, value)| index.get(&(*key, *value)));
        match candidates.min_by_key(|pods| pods.map_or(0, Vec::len)) {
            None => self.all(POD).to_vec(),
            Some(fewest) => {
                let fewest = fewest.into_iter().flatten().copied();
                fewest.filter(|pod| selector::matches(selector, &pod.labels())).collect()
            }
        }
    }

    /// The Services that select a workload.
    pub(crate) fn services_of(&self, namespace: &str, labels: &Labels<'_>) -> Vec<&'m AnalyzedObject> {
        let found = labels.iter().filter_map(|(key, value)| self.services_by_label.get(&(namespace, *key, *value)));
        let selects = |service: &&&AnalyzedObject| selector::matches(&map(service.spec(), "selector"), labels);
        found.flatten().filter(selects).copied().collect()
    }

    /// Whether a pod has a sidecar, or gets one by its labels, its annotations or its namespace.
    pub(crate) fn has_sidecar(&self, pod: &AnalyzedObject) -> bool {
        has_proxy(pod.spec()) || self.is_injected(pod.namespace(), at(&pod.value, "metadata"))
    }

    /// Whether the pods of a Deployment have a sidecar, or get one by their labels, their annotations or their namespace.
    pub(crate) fn pods_have_sidecar(&self, deployment: &AnalyzedObject) -> bool {
        let template = at(deployment.spec(), "template");
        is_proxy_image(proxies(items(template, "spec.containers")).next())
            || self.is_injected(deployment.namespace(), at(template, "metadata"))
    }

    fn is_injected(&self, namespace: &str, metadata: &Value) -> bool {
        let inject = |field| at(metadata, field).get("sidecar.istio.io/inject").and_then(Value::as_str);
        match inject("labels").or_else(|| inject("annotations")) {
            Some(inject) => inject == "true",
            None => {
                self.namespace(namespace).is_some_and(|namespace| namespace.label("istio-injection") == Some("enabled"))
            }
        }
    }
}

/// Whether a pod has a container of the proxy with an image.
pub(crate) fn has_proxy(pod_spec: &Value) -> bool {
    is_proxy_image(proxy_images(pod_spec).next())
}

/// The images of the proxy containers of a pod.
pub(crate) fn proxy_images(pod_spec: &Value) -> impl Iterator<Item = &str> {
    proxies(items(pod_spec, "containers")).chain(proxies(items(pod_spec, "initContainers")))
}

fn proxies(containers: &[Value]) -> impl Iterator<Item = &str> {
    let proxies = containers.iter().filter(|container| text(container, "name") == "istio-proxy");
    proxies.map(|container| text(container, "image"))
}

fn is_proxy_image(image: Option<&str>) -> bool {
    image.is_some_and(|image| !image.is_empty())
}
