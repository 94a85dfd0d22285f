//! Images of proxies (IST0146, IST0147, IST0158).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::codes::{IMAGE_AUTO_DEPLOYMENT, IMAGE_AUTO_POD, PROXY_IMAGE_MISMATCH};
use crate::mesh::proxy_images;
use crate::resource::{DEPLOYMENT, MUTATING_WEBHOOKS, NAMESPACE, POD, PROXY_CONFIG};
use crate::selector::{self, label_selector_matches};
use crate::value::{at, has, items, map, text};
use crate::{AnalyzedObject, MeshObjects, MessageList};

use super::injection::injection_values;

/// Pods whose proxy has another image than injection gives to new pods.
pub(crate) fn mismatches<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let types = ImageTypes::new(mesh);
    let mut images: BTreeMap<&str, Option<String>> = BTreeMap::new();
    for namespace in mesh.all(NAMESPACE) {
        let revision = match (namespace.label("istio.io/rev"), namespace.label("istio-injection")) {
            (Some(revision), _) => revision,
            (None, Some("enabled")) => "default",
            _ => continue,
        };
        let image = images.entry(revision).or_insert_with(|| injected_image(&injection_values(mesh, revision)));
        let Some(image) = image.as_deref() else { continue };
        let is_expected = |pod: &AnalyzedObject, found: &str| {
            found == image || found.strip_prefix(image).and_then(|rest| rest.strip_prefix('-')) == Some(&*types.of(pod))
        };
        let pods = mesh.pods_in(namespace.name()).iter();
        let old: BTreeSet<String> = pods
            .filter(|pod| pod.annotation("sidecar.istio.io/proxyImage").unwrap_or_default().is_empty())
            .filter(|pod| proxy_images(pod.spec()).any(|image| !is_expected(pod, image)))
            .map(|pod| pod.name().to_owned())
            .collect();
        if !old.is_empty() {
            let text = format!(
                "the proxies of pods {} do not have the image {image} of injection, as after an upgrade; restart their workloads",
                super::join(&old)
            );
            report.add(&PROXY_IMAGE_MISMATCH, namespace, "", text);
        }
    }
}

/// Variants of the proxy image, from the general to the specific: mesh config, ProxyConfig of the root namespace, of the
/// namespace, of the workload, annotation.
struct ImageTypes<'m> {
    mesh: &'m str,
    root: Option<&'m AnalyzedObject>,
    by_namespace: BTreeMap<&'m str, Vec<&'m AnalyzedObject>>,
}

impl<'m> ImageTypes<'m> {
    fn new(mesh: &'m MeshObjects<'m>) -> Self {
        let root = super::root_namespace(mesh);
        let mut by_namespace: BTreeMap<&str, Vec<&AnalyzedObject>> = BTreeMap::new();
        for config in mesh.all(PROXY_CONFIG) {
            by_namespace.entry(config.namespace()).or_default().push(config);
        }
        Self {
            mesh: text(&mesh.mesh_config, "defaultConfig.image.imageType"),
            root: by_namespace.remove(root).and_then(|configs| configs.last().copied()),
            by_namespace,
        }
    }

    /// The variant of a pod, empty for the default one.
    fn of(&self, pod: &AnalyzedObject) -> String {
        let own = self.by_namespace.get(pod.namespace()).into_iter().flatten().copied();
        let (of_workloads, of_namespace): (Vec<_>, Vec<_>) =
            own.partition(|config: &&AnalyzedObject| has(config.spec(), "selector"));
        let labels = pod.labels();
        let selects =
            |config: &&&AnalyzedObject| selector::matches(&map(config.spec(), "selector.matchLabels"), &labels);
        let configs = self.root.iter().chain(&of_namespace).chain(of_workloads.iter().filter(selects));
        let annotation = MeshObjects::parse_yaml(pod.annotation("proxy.istio.io/config").unwrap_or_default());
        let mut types = std::iter::once(self.mesh)
            .chain(configs.map(|config| text(config.spec(), "image.imageType")))
            .chain([text(&annotation, "image.imageType")]);
        match types.rfind(|image_type| !image_type.is_empty()) {
            Some("default") | None => String::new(),
            Some(image_type) => image_type.to_owned(),
        }
    }
}

fn injected_image(values: &Value) -> Option<String> {
    let image = text(values, "global.proxy.image");
    if image.is_empty() {
        None
    } else if image.contains('/') {
        Some(image.to_owned())
    } else {
        let tag = at(values, "global.tag");
        let tag = tag.as_str().map_or_else(|| tag.to_string(), str::to_owned);
        Some(format!("{}/{image}:{tag}", text(values, "global.hub")))
    }
}

/// Pods and Deployments with a proxy container that expects injection.
pub(crate) fn image_auto<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let has_image_auto = |spec: &Value| {
        items(spec, "containers")
            .iter()
            .any(|container| text(container, "name") == "istio-proxy" && text(container, "image") == "auto")
    };
    let explain = |what: &str, name: &str| {
        format!("{what} {name} has `image: auto`, but no webhook of injection selects its pods; they do not start")
    };
    for pod in mesh.all(POD).iter().filter(|pod| has_image_auto(pod.spec())) {
        report.add(&IMAGE_AUTO_POD, pod, "spec.containers", explain("Pod", pod.name()));
    }
    let hooks = mesh.all(MUTATING_WEBHOOKS).iter().flat_map(|webhooks| items(&webhooks.value, "webhooks"));
    let hooks: Vec<&Value> = hooks.filter(|hook| text(hook, "name").ends_with("istio.io")).collect();
    for deployment in mesh.all(DEPLOYMENT) {
        if !has_image_auto(at(deployment.spec(), "template.spec")) {
            continue;
        }
        let namespace = mesh.namespace(deployment.namespace());
        let namespace = namespace.map(|namespace| namespace.labels()).unwrap_or_default();
        let labels = map(deployment.spec(), "template.metadata.labels");
        let selects = |hook: &&Value| {
            label_selector_matches(at(hook, "namespaceSelector"), &namespace)
                && label_selector_matches(at(hook, "objectSelector"), &labels)
        };
        if !hooks.iter().any(selects) {
            let text = explain("Deployment", deployment.name());
            report.add(&IMAGE_AUTO_DEPLOYMENT, deployment, "spec.template.spec.containers", text);
        }
    }
}
