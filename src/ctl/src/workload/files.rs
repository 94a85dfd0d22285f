//! The files of a machine, derived from a WorkloadGroup and the configuration of the control plane.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};
use sluice_inject::merge_proxy_configs;
use sluice_parse::yaml::{Limits, parse_value};
use sluice_proto::istio::mesh::v1alpha1::MeshConfig;
use sluice_proto::json::{decode, encode};

use super::group::WorkloadGroup;

const PROXY_CONFIG_ANNOTATION: &str = "proxy.istio.io/config";
const DISCOVERY_PORT: u16 = 15012;
const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
/// Labels with the canonical name and revision of a workload, in this order.
const CANONICAL_NAMES: [&str; 3] = [CANONICAL_NAME, "app.kubernetes.io/name", "app"];
const CANONICAL_REVISIONS: [&str; 3] = [CANONICAL_REVISION, "app.kubernetes.io/version", "version"];
/// Ports of SSH, of Envoy's metrics and of readiness, whose traffic does not pass Envoy. The one of the agent's status follows.
const EXCLUDED_PORTS: &str = "22,15090,15021";
/// Ports of the list above.
const ENVOY_PORTS: [i64; 2] = [15090, 15021];
const DEFAULT_STATUS_PORT: i64 = 15020;

/// What the files depend on besides the WorkloadGroup.
pub(super) struct MachineSettings<'a> {
    /// The text of the mesh config.
    pub(super) mesh: &'a Value,
    /// Namespace of the control plane.
    pub(super) istio_namespace: &'a str,
    /// Revision of the control plane; `None` for the one without a name.
    pub(super) revision: Option<&'a str>,
    pub(super) cluster_id: &'a str,
    pub(super) autoregister: bool,
    pub(super) capture_dns: bool,
    pub(super) address: Option<MachineAddress>,
}

/// The address by which other workloads reach a machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum MachineAddress {
    /// An address of the machine.
    Internal(IpAddr),
    /// An address that is translated to one of the machine.
    External(IpAddr),
}

/// `mesh.yaml` and `cluster.env`.
#[derive(Debug)]
pub(super) struct ConfigurationFiles {
    pub(super) mesh: Value,
    pub(super) environment: String,
}

/// The DNS name of the control plane.
pub(super) fn discovery_host(namespace: &str, revision: Option<&str>) -> String {
    let name = revision.map_or_else(|| "istiod".to_owned(), |revision| format!("istiod-{revision}"));
    format!("{name}.{namespace}.svc")
}

/// The files of a machine of a WorkloadGroup.
///
/// # Errors
/// The mesh config or an annotation does not decode, or `proxyMetadata` has a name that is none of a variable.
pub(super) fn configuration_files(
    group: &WorkloadGroup,
    settings: &MachineSettings<'_>,
) -> Result<ConfigurationFiles, String> {
    let mesh = decode::<MeshConfig>(settings.mesh).and_then(|decoded| encode(&decoded.message));
    let mesh = mesh.map_err(|error| format!("MeshConfig: {error}"))?;
    let proxy = proxy_config(group, settings, &mesh)?;
    let environment = environment(group, settings, &proxy)?;
    Ok(ConfigurationFiles { mesh: json!({"defaultConfig": proxy}), environment })
}

/// The proxy configuration: that of the mesh, of the annotations, and what identifies the workload.
fn proxy_config(group: &WorkloadGroup, settings: &MachineSettings<'_>, mesh: &Value) -> Result<Value, String> {
    let mut layers = Vec::new();
    if mesh["defaultConfig"].is_object() {
        layers.push(mesh["defaultConfig"].clone());
    }
    for annotations in &group.annotations {
        let Some(text) = annotations.get(PROXY_CONFIG_ANNOTATION) else { continue };
        let layer = parse_value(text, &Limits::default());
        layers.push(layer.map_err(|error| format!("annotation {PROXY_CONFIG_ANNOTATION}: {error}"))?);
    }
    let merged = merge_proxy_configs(&layers);
    let mut proxy = merged.map_err(|error| format!("proxy configuration: {error}"))?;
    if settings.revision.is_some() && proxy["discoveryAddress"].as_str().is_none_or(str::is_empty) {
        proxy["discoveryAddress"] = discovery_address(settings).into();
    }
    if let Some(fields) = proxy.as_object_mut() {
        fields.remove("readinessProbe");
        fields.extend(group.probe.clone().map(|probe| ("readinessProbe".to_owned(), probe)));
    }
    for (name, value) in metadata(group, settings, &mesh["trustDomain"], &proxy["meshId"]) {
        proxy["proxyMetadata"][name] = value.into();
    }
    Ok(proxy)
}

fn discovery_address(settings: &MachineSettings<'_>) -> String {
    format!("{}:{DISCOVERY_PORT}", discovery_host(settings.istio_namespace, settings.revision))
}

/// The variables that identify the workload.
fn metadata(
    group: &WorkloadGroup,
    settings: &MachineSettings<'_>,
    trust_domain: &Value,
    mesh_id: &Value,
) -> BTreeMap<&'static str, String> {
    let mut labels = group.labels.clone();
    labels.extend(group.template_labels.clone());
    let first = |keys: [&str; 3]| keys.into_iter().find_map(|key| labels.get(key)).cloned();
    let name = first(CANONICAL_NAMES).unwrap_or_else(|| group.name.clone());
    let revision = first(CANONICAL_REVISIONS).unwrap_or_else(|| "latest".to_owned());
    labels.insert(CANONICAL_NAME.to_owned(), name.clone());
    labels.insert(CANONICAL_REVISION.to_owned(), revision.clone());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut variables = BTreeMap::from([
        ("CANONICAL_SERVICE", name),
        ("CANONICAL_REVISION", revision),
        ("POD_NAMESPACE", group.namespace.clone()),
        ("SERVICE_ACCOUNT", group.template.service_account.clone()),
        ("TRUST_DOMAIN", text(trust_domain)),
        ("ISTIO_META_CLUSTER_ID", settings.cluster_id.to_owned()),
        ("ISTIO_META_MESH_ID", text(mesh_id)),
        ("ISTIO_META_NETWORK", group.template.network.clone()),
        ("ISTIO_META_WORKLOAD_NAME", group.name.clone()),
        ("ISTIO_METAJSON_LABELS", json!(labels).to_string()),
    ]);
    if !group.ports().is_empty() {
        let ports = group.ports().into_iter();
        let ports: Vec<Value> =
            ports.map(|(name, port)| json!({"name": name, "containerPort": port, "protocol": ""})).collect();
        variables.insert("ISTIO_META_POD_PORTS", json!(ports).to_string());
    }
    if settings.capture_dns {
        variables.insert("ISTIO_META_DNS_CAPTURE", "true".to_owned());
    }
    if settings.autoregister {
        variables.insert("ISTIO_META_AUTO_REGISTER_GROUP", group.name.clone());
    }
    variables
}

/// The text of `cluster.env`, which a shell reads.
fn environment(group: &WorkloadGroup, settings: &MachineSettings<'_>, proxy: &Value) -> Result<String, String> {
    let metadata = proxy["proxyMetadata"].as_object().into_iter().flatten();
    let mut variables: BTreeMap<&str, String> =
        metadata.map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default().to_owned())).collect();
    let ports: Vec<String> = group.ports().values().map(ToString::to_string).collect();
    let excluded = match proxy["statusPort"].as_i64().filter(|port| *port != 0).unwrap_or(DEFAULT_STATUS_PORT) {
        port if ENVOY_PORTS.contains(&port) => EXCLUDED_PORTS.to_owned(),
        port => format!("{EXCLUDED_PORTS},{port}"),
    };
    variables.extend([
        ("ISTIO_INBOUND_PORTS", if ports.is_empty() { "*".to_owned() } else { ports.join(",") }),
        ("ISTIO_NAMESPACE", group.namespace.clone()),
        ("ISTIO_SERVICE", format!("{}.{}", group.name, group.namespace)),
        ("ISTIO_SERVICE_CIDR", "*".to_owned()),
        ("ISTIO_LOCAL_EXCLUDE_PORTS", excluded),
        ("SERVICE_ACCOUNT", group.template.service_account.clone()),
    ]);
    if settings.revision.is_some() {
        variables.insert("CA_ADDR", discovery_address(settings));
    }
    match settings.address {
        None => {}
        Some(MachineAddress::Internal(address)) => {
            variables.insert("ISTIO_SVC_IP", address.to_string());
        }
        Some(MachineAddress::External(address)) => {
            variables.insert("ISTIO_SVC_IP", address.to_string());
            // The machine does not have the address, so that probes go to the loopback.
            variables.insert("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "true".to_owned());
        }
    }
    if let Some(name) = variables.keys().find(|name| !is_variable_name(name)) {
        return Err(format!("proxyMetadata: {name:?} is not the name of an environment variable"));
    }
    let mut lines: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={}\n", shell_quoted(value))).collect();
    lines.sort();
    Ok(lines.concat())
}

/// Whether a shell can set a variable of this name. Anything else in its place could be a command.
fn is_variable_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\"'\"'"))
}

#[cfg(test)]
mod tests;
