//! The configuration of the injector: from files, or from a cluster.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use sluice_inject::{
    ClusterView, InjectContext, Injector, InjectorSettings, ObjectInjection, supports_native_sidecars,
};
use sluice_model::{Object, ProxyConfigResource};
use sluice_parse::parse_object;
use sluice_parse::yaml::{Limits, parse_value};

use crate::answer_output::list;
use crate::connect::QueryError;
use crate::connect::kubernetes::{KubeconfigCluster, current_thread};
use crate::control_plane_config::{
    INJECTOR_CONFIG_MAP, MESH_CONFIG_MAP, config_map, config_map_name, data_of, yaml_object,
};
use crate::inject_args::KubeInjectArgs;
use crate::proxy_config::read_file;

/// The template of a file that is a single template.
const SINGLE_TEMPLATE: &str = "sidecar";
/// The path of the webhook without variables.
const WEBHOOK_PATH: &str = "/inject";

/// An injector, and what it has to know about the cluster.
pub(super) struct Configuration {
    injector: Injector,
    proxy_configs: Vec<ProxyConfigResource>,
    nodes: Nodes,
}

impl Configuration {
    /// Reads the files of the flags, and what they leave out from the cluster.
    pub(super) fn read(args: &KubeInjectArgs) -> Result<Self, QueryError> {
        let parts = InjectionParts {
            config: args
                .inject_config_file
                .as_deref()
                .map(|path| config_of_file("--injectConfigFile", path))
                .transpose()?,
            values: args.values_file.as_deref().map(|path| read_text("--valuesFile", path)).transpose()?,
            mesh: args.mesh_config_file.as_deref().map(|path| read_text("--meshConfigFile", path)).transpose()?,
        };
        let is_complete = parts.config.is_some() && parts.values.is_some() && parts.mesh.is_some();
        let (parts, cluster) = match is_complete {
            true => (parts, ClusterObjects::default()),
            false => read_cluster(args, parts)?,
        };
        let InjectionParts { config: Some(config), values: Some(values), mesh: Some(mesh) } = parts else {
            return Err(QueryError::Flags("the configuration of the injector is incomplete".to_owned()));
        };
        let mesh = yaml_object("MeshConfig", &mesh)?;
        let settings = InjectorSettings {
            revision: args.target.revision.clone(),
            openshift: yaml_object("values", &values)?["global"]["platform"] == "openshift",
            ..InjectorSettings::default()
        };
        let injector = Injector::new(&config, &values, &[mesh], settings);
        let injector = injector.map_err(|error| QueryError::Invalid(format!("injection configuration: {error}")))?;
        let nodes = Nodes { native_sidecars: args.native_sidecars, ..cluster.nodes };
        Ok(Self { injector, proxy_configs: cluster.proxy_configs, nodes })
    }

    /// Injects an object.
    pub(super) fn inject(&self, object: &Value, namespace: &str) -> Result<ObjectInjection, String> {
        let proxy_configs: Vec<&ProxyConfigResource> = self.proxy_configs.iter().collect();
        let context = InjectContext { path: WEBHOOK_PATH, proxy_configs: &proxy_configs, clusters: &self.nodes };
        self.injector.inject_object(object, namespace, &context)
    }
}

/// The texts that an injector consists of.
struct InjectionParts {
    config: Option<String>,
    values: Option<String>,
    mesh: Option<String>,
}

/// What is read from a cluster beside the configuration.
#[derive(Default)]
struct ClusterObjects {
    proxy_configs: Vec<ProxyConfigResource>,
    nodes: Nodes,
}

/// The nodes of the cluster. Without a cluster there is none, and no pod has a native sidecar.
#[derive(Default)]
struct Nodes {
    /// Versions of kubelets by node.
    kubelets: BTreeMap<String, String>,
    /// Annotations by namespace.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// What the flag says.
    native_sidecars: Option<bool>,
}

impl ClusterView for Nodes {
    fn has_native_sidecars(&self, _: &str, node: Option<&str>) -> bool {
        if let Some(stated) = self.native_sidecars {
            return stated;
        }
        match node.and_then(|node| self.kubelets.get(node)) {
            Some(version) => supports_native_sidecars(version),
            None => {
                !self.kubelets.is_empty() && self.kubelets.values().all(|version| supports_native_sidecars(version))
            }
        }
    }

    fn namespace_annotations(&self, _: &str, namespace: &str) -> Option<BTreeMap<String, String>> {
        self.namespaces.get(namespace).cloned()
    }
}

/// A configuration, or a single template, whose pods are injected.
fn config_of_file(flag: &str, path: &Path) -> Result<String, QueryError> {
    let text = read_text(flag, path)?;
    let config = parse_value(&text, &Limits::default());
    let has_templates = |config: &Value| config["templates"].as_object().is_some_and(|templates| !templates.is_empty());
    let mut config = match config {
        Ok(config) if has_templates(&config) => config,
        _ => json!({"templates": {SINGLE_TEMPLATE: text}}),
    };
    config["policy"] = json!("enabled");
    Ok(config.to_string())
}

fn read_text(flag: &str, path: &Path) -> Result<String, QueryError> {
    let failed = |error: String| QueryError::Flags(format!("{flag} {}: {error}", path.display()));
    let bytes = read_file(path).map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| failed(error.to_string()))
}

fn read_cluster(args: &KubeInjectArgs, parts: InjectionParts) -> Result<(InjectionParts, ClusterObjects), QueryError> {
    current_thread()?.block_on(async {
        let cluster = KubeconfigCluster::of(&args.target.cluster).await?;
        let InjectionParts { config, mut values, mesh } = parts;
        let named =
            |stated: &Option<String>, base| stated.clone().unwrap_or_else(|| config_map_name(base, &args.target));
        let mesh_name = named(&args.mesh_config_map, MESH_CONFIG_MAP);
        let inject_name = named(&args.inject_config_map, INJECTOR_CONFIG_MAP);
        let namespace = &args.target.istio_namespace;
        let mut injector = Value::Null;
        if config.is_none() || values.is_none() {
            injector =
                config_map(&cluster, namespace, &inject_name, "--injectConfigFile and --valuesFile a file").await?;
        }
        let config = match config {
            Some(config) => config,
            None => data_of(&injector, &inject_name, "config")?,
        };
        if values.is_none() {
            values = Some(data_of(&injector, &inject_name, "values")?);
        }
        let mesh = match mesh {
            Some(mesh) => mesh,
            None => {
                let map = config_map(&cluster, namespace, &mesh_name, "--meshConfigFile a file").await?;
                data_of(&map, &mesh_name, "mesh")?
            }
        };
        let parts = InjectionParts { config: Some(config), values, mesh: Some(mesh) };
        Ok((parts, cluster_objects(&cluster).await?))
    })
}

async fn cluster_objects(cluster: &KubeconfigCluster) -> Result<ClusterObjects, QueryError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nodes = cluster.read("/api/v1/nodes").await?;
    let kubelet = |node: &Value| (text(&node["metadata"]["name"]), text(&node["status"]["nodeInfo"]["kubeletVersion"]));
    let kubelets = list(&nodes, "items").iter().map(kubelet).collect();
    let namespaces = cluster.read("/api/v1/namespaces").await?;
    let annotations = |namespace: &Value| {
        let annotations = namespace["metadata"]["annotations"].as_object().into_iter().flatten();
        (text(&namespace["metadata"]["name"]), annotations.map(|(name, value)| (name.clone(), text(value))).collect())
    };
    let namespaces = list(&namespaces, "items").iter().map(annotations).collect();
    // Without the CRD there are none.
    let resources = cluster.find("/apis/networking.istio.io/v1beta1/proxyconfigs").await?.unwrap_or_default();
    let proxy_configs = list(&resources, "items").iter().filter_map(|item| {
        let mut item = item.clone();
        item["apiVersion"] = "networking.istio.io/v1beta1".into();
        item["kind"] = "ProxyConfig".into();
        match parse_object(&"Kubernetes".into(), "cluster.local", &item).ok()?.object? {
            Object::ProxyConfig(resource) => Some(resource),
            _ => None,
        }
    });
    let proxy_configs = proxy_configs.collect();
    Ok(ClusterObjects { proxy_configs, nodes: Nodes { kubelets, namespaces, native_sidecars: None } })
}
