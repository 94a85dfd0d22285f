//! Injection of a pod: policy, templates, and changes after them.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};
use sluice_model::ProxyConfigResource;

use crate::annotations::{self, NETWORK as NETWORK_LABEL, PROXY_CONFIG, STATUS};
use crate::config::{ConfigError, InjectionConfig, Values};
use crate::mesh::Mesh;
use crate::pod::{PROXY, containers, find_in_pod_mut, meta_mut, meta_text, name_of};
use crate::proxy_config::{Target, effective, flag, is_tproxy};
use crate::rendering::{Inputs, render};
use crate::request_path::{CLUSTER_ID, NETWORK, variables};
use crate::review::{Admission, AdmissionReview};
use crate::workload::workload_of;
use crate::{container_order, openshift, overrides, policy, probes, prometheus, proxy_config};

/// The cluster that a pod belongs to if neither the URL nor the values name one.
const DEFAULT_CLUSTER: &str = "Kubernetes";

/// Settings of the injector that are fixed at start-up.
#[derive(Clone, Debug, Default)]
pub struct InjectorSettings {
    /// The revision of the control plane; `default` is the default revision.
    pub revision: String,
    /// `COMPLIANCE_POLICY`, empty if unset.
    pub compliance_policy: String,
    /// The environment that the template function `env` reads.
    pub environment: BTreeMap<String, String>,
    /// Whether the clusters are OpenShift clusters.
    pub openshift: bool,
}

/// What the injector has to know about clusters.
pub trait ClusterView {
    /// Whether a pod of the cluster runs native sidecars (W07). `node` is the node that the pod names. An unknown cluster
    /// does not run them.
    fn has_native_sidecars(&self, cluster: &str, node: Option<&str>) -> bool;

    /// The annotations of a namespace. They are read on OpenShift only.
    fn namespace_annotations(&self, cluster: &str, namespace: &str) -> Option<BTreeMap<String, String>>;
}

/// The context of one request.
#[derive(Clone, Copy)]
pub struct InjectContext<'a> {
    /// Path of the URL, such as `/inject/cluster/C/net/N`.
    pub path: &'a str,
    /// All ProxyConfig resources.
    pub proxy_configs: &'a [&'a ProxyConfigResource],
    /// The clusters.
    pub clusters: &'a dyn ClusterView,
}

/// The injector with one configuration. A changed configuration makes a new one.
#[derive(Debug)]
pub struct Injector {
    pub(crate) config: InjectionConfig,
    pub(crate) values: Values,
    pub(crate) mesh: Mesh,
    pub(crate) settings: InjectorSettings,
}

impl Injector {
    /// Reads `config` and `values` of the ConfigMap `istio-sidecar-injector`, and the layers of the mesh config, as JSON
    /// objects: later ones replace fields of earlier ones.
    ///
    /// # Errors
    /// A part does not parse, or a template is invalid.
    pub fn new(config: &str, values: &str, mesh: &[Json], settings: InjectorSettings) -> Result<Self, ConfigError> {
        Ok(Self {
            config: InjectionConfig::parse(config)?,
            values: Values::parse(values)?,
            mesh: Mesh::new(mesh).map_err(ConfigError::Mesh)?,
            settings,
        })
    }

    /// Replaces the mesh config.
    ///
    /// # Errors
    /// The mesh config does not decode. The injector keeps the former one.
    pub fn set_mesh(&mut self, mesh: &[Json]) -> Result<(), ConfigError> {
        self.mesh = Mesh::new(mesh).map_err(ConfigError::Mesh)?;
        Ok(())
    }

    /// Decides about the pod of a review.
    #[must_use]
    pub fn inject(&self, review: &AdmissionReview, context: &InjectContext<'_>) -> Admission {
        let mut pod = review.field("object").clone();
        if !pod["metadata"].is_object() || !pod["spec"].is_object() {
            return Admission::Denied("expected a pod with metadata and spec".to_owned());
        }
        // The list is long, and injection does not change it.
        let managed_fields = pod["metadata"].as_object_mut().and_then(|metadata| metadata.remove("managedFields"));
        if pod["metadata"]["namespace"].as_str().is_none_or(str::is_empty) {
            pod["metadata"]["namespace"] = json!(review.text("namespace"));
        }
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        if !policy::is_injected(&self.config, &pod, &namespace) {
            return Admission::Unchanged;
        }
        let injected = match self.injected(&pod, &namespace, context) {
            Ok(injected) => injected,
            Err(reason) => return Admission::Denied(reason),
        };
        let (mut before, mut after) = (pod, injected);
        if let Some(managed_fields) = managed_fields {
            before["metadata"]["managedFields"] = managed_fields.clone();
            after["metadata"]["managedFields"] = managed_fields;
        }
        if review.field("object")["metadata"]["namespace"].is_null()
            && let (Some(before), Some(after)) = (before["metadata"].as_object_mut(), after["metadata"].as_object_mut())
        {
            before.remove("namespace");
            after.remove("namespace");
        }
        Admission::Patched(json_patch::diff(&before, &after))
    }

    fn injected(&self, pod: &Json, namespace: &str, context: &InjectContext<'_>) -> Result<Json, String> {
        let rendering = |error: String| format!("failed to run injection template: {error}");
        let annotation = meta_text(pod, "annotations", PROXY_CONFIG);
        let target = Target {
            root_namespace: &self.mesh.root_namespace,
            namespace,
            labels: &pod["metadata"]["labels"],
            annotation,
        };
        let config = effective(&self.mesh.default_config, context.proxy_configs, target);
        let mut variables = variables(context.path);
        let cluster = self.cluster(&variables);
        let node = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty());
        let native_sidecars = context.clusters.has_native_sidecars(&cluster, node);
        let namespace_annotations = match self.settings.openshift {
            true => context.clusters.namespace_annotations(&cluster, namespace),
            false => None,
        };
        let mut pod = pod.clone();
        if self.settings.openshift && openshift::has_user_of_application(&pod) {
            clear_user_of_proxy(&mut pod);
        }
        let pod = &pod;

        annotations::check(&pod["metadata"]["annotations"]).map_err(rendering)?;
        self.name_cluster_and_network(pod, &mut variables);
        let status_port = self.mesh.status_port();
        let bare = overrides::before_injection(pod, status_port).map_err(rendering)?;
        let revision = match self.settings.revision.as_str() {
            "" => "default",
            revision => revision,
        };
        let inputs = Inputs {
            config: &self.config,
            values: &self.values,
            mesh: &self.mesh,
            proxy_config: &config,
            workload: &workload_of(pod),
            namespace,
            revision,
            native_sidecars,
            ids: openshift::proxy_ids(namespace_annotations.as_ref()),
            compliance_policy: &self.settings.compliance_policy,
            environment: &self.settings.environment,
        };
        let rendered = render(pod, &bare, inputs).map_err(rendering)?;
        let (mut merged, template) = (rendered.merged, rendered.template);
        overrides::apply(&mut merged, pod, &template, is_tproxy(&config))
            .map_err(|error| format!("failed to re apply container: {error}"))?;

        let processing = |error: String| format!("failed to process pod: {error}");
        set_variables(&mut merged, &variables);
        prometheus::merge(&mut merged, &self.mesh).map_err(processing)?;
        prometheus::annotate_secure_port(&mut merged);
        probes::rewrite(&mut merged, self.values.flag("/sidecarInjectorWebhook/rewriteAppHTTPProbe"), status_port);
        self.annotate(&mut merged, &template, &variables, revision);
        container_order::reorder(&mut merged, self.holds_application(annotation).map_err(processing)?);
        Ok(merged)
    }

    /// The cluster of the pod, which the URL or the values name.
    fn cluster(&self, variables: &BTreeMap<String, String>) -> String {
        let named = variables.get(CLUSTER_ID).filter(|cluster| !cluster.is_empty()).cloned();
        let named = named.unwrap_or_else(|| self.values.text("/global/multiCluster/clusterName"));
        if named.is_empty() { DEFAULT_CLUSTER.to_owned() } else { named }
    }

    /// Adds cluster and network of the values and of the pod's label to the variables of the proxy.
    fn name_cluster_and_network(&self, pod: &Json, variables: &mut BTreeMap<String, String>) {
        let of_values = [(CLUSTER_ID, "/global/multiCluster/clusterName"), (NETWORK, "/global/network")];
        for (name, pointer) in of_values {
            let value = self.values.text(pointer);
            if variables.get(name).is_none_or(String::is_empty) && !value.is_empty() {
                variables.insert(name.to_owned(), value);
            }
        }
        if let Some(network) = meta_text(pod, "labels", NETWORK_LABEL).filter(|network| !network.is_empty()) {
            variables.insert(NETWORK.to_owned(), network.to_owned());
        }
    }

    /// Whether the application starts after the proxy.
    fn holds_application(&self, annotation: Option<&str>) -> Result<bool, String> {
        let mut config = self.mesh.default_config.clone();
        if let Some(yaml) = annotation {
            proxy_config::apply(&mut config, &proxy_config::parse(yaml)?)?;
        }
        Ok(flag(&config, "hold_application_until_proxy_starts") == Some(true)
            || self.values.flag("/global/proxy/holdApplicationUntilProxyStarts"))
    }

    fn annotate(&self, pod: &mut Json, template: &Json, variables: &BTreeMap<String, String>, revision: &str) {
        if let (Some(network), Some(labels)) = (variables.get(NETWORK), meta_mut(pod, "labels")) {
            labels.insert(NETWORK_LABEL.to_owned(), json!(network));
        }
        if let Some(annotations) = meta_mut(pod, "annotations") {
            annotations.insert(STATUS.to_owned(), json!(status(template, revision).to_string()));
            annotations.extend(self.config.annotations.clone());
        }
    }
}

/// What the templates add: the status of the injection (W06).
fn status(template: &Json, revision: &str) -> Json {
    let names = |items: &[Json]| match items {
        [] => Json::Null,
        items => Json::Array(items.iter().map(|item| json!(name_of(item))).collect()),
    };
    let list = |field: &str| names(containers(template, field));
    json!({
        "initContainers": list("initContainers"),
        "containers": list("containers"),
        "volumes": list("volumes"),
        "imagePullSecrets": list("imagePullSecrets"),
        "revision": revision,
    })
}

/// Sets variables of the proxy, behind all others.
fn set_variables(pod: &mut Json, variables: &BTreeMap<String, String>) {
    if variables.is_empty() {
        return;
    }
    let Some(proxy) = find_in_pod_mut(pod, PROXY).and_then(Json::as_object_mut) else { return };
    let env = proxy.entry("env").or_insert_with(|| json!([]));
    if let Json::Array(env) = env {
        env.retain(|variable| !variables.contains_key(name_of(variable)));
        env.extend(variables.iter().map(|(name, value)| match value.as_str() {
            "" => json!({"name": name}),
            value => json!({"name": name, "value": value}),
        }));
    }
}

fn clear_user_of_proxy(pod: &mut Json) {
    let context: Option<&mut Map<String, Json>> =
        find_in_pod_mut(pod, PROXY).and_then(|proxy| proxy.get_mut("securityContext")).and_then(Json::as_object_mut);
    if let Some(context) = context {
        context.remove("runAsUser");
        context.remove("runAsGroup");
    }
}
