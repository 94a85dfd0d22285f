//! The node that the proxy sends to the control plane: metadata, locality, service cluster (X05).

use serde_json::{Map, Value, json};
use sluice_proto::istio::mesh::v1alpha1::AuthenticationPolicy;
use sluice_proto::istio::mesh::v1alpha1::proxy_config::{ClusterName, TracingServiceName};

use crate::environment::Environment;
use crate::proxy_config;
use crate::settings::Settings;

/// The node of the bootstrap.
#[derive(Clone, Debug)]
pub(crate) struct EnvoyNode {
    pub(crate) id: String,
    pub(crate) cluster: String,
    pub(crate) metadata: Map<String, Value>,
    /// Region, zone, subzone.
    pub(crate) locality: [String; 3],
}

/// The release of Istio whose proxy this agent replaces, unless `ISTIO_META_ISTIO_VERSION` names another one. EnvoyFilters
/// compare it with their `proxyVersion`, so it is not the version of the agent.
const ISTIO_VERSION: &str = "1.30.0";

/// Label with the locality, its parts separated by `/` or `.`.
const LOCALITY_LABEL: &str = "istio-locality";

impl EnvoyNode {
    pub(crate) fn new(settings: &Settings, environment: &Environment, warnings: &mut Vec<String>) -> Self {
        let mut metadata = Map::new();
        for (name, value) in proxy_config::metadata(&settings.proxy) {
            metadata.insert(name.to_owned(), value.into());
        }
        for (name, value) in environment.with_prefix("ISTIO_META_") {
            metadata.insert(name.to_owned(), value.into());
        }
        let mut static_labels = Map::new();
        for (name, value) in environment.with_prefix("ISTIO_METAJSON_") {
            match serde_json::from_str::<Map<String, Value>>(value) {
                Ok(fields) => {
                    if name == "LABELS" {
                        static_labels = fields.clone();
                    }
                    metadata.extend(fields);
                }
                Err(error) => warnings
                    .push(format!("variable ISTIO_METAJSON_{name} is not a JSON object and is ignored: {error}")),
            }
        }
        let mut labels = static_labels.clone();
        if let Some(mounted) = &settings.pod.labels {
            // A ReplicaSet adds this label; it does not describe the workload.
            let mounted = mounted.iter().filter(|(name, _)| *name != "pod-template-hash");
            labels.extend(mounted.map(|(name, value)| (name.clone(), Value::from(value.as_str()))));
        }
        let locality = locality(&mut labels);
        let mut text = |name: &str, value: &str| {
            if !value.is_empty() {
                metadata.insert(name.to_owned(), value.into());
            }
        };
        text("NAME", &settings.pod_name);
        text("NAMESPACE", &settings.namespace);
        text("SERVICE_ACCOUNT", &settings.service_account);
        text("OUTLIER_LOG_PATH", &settings.envoy.outlier_log_path);
        text("DNS_PROXY_ADDR", environment.text("DNS_PROXY_ADDR").unwrap_or_default());
        let addresses: Vec<_> = settings.addresses.iter().map(ToString::to_string).collect();
        text("INSTANCE_IPS", &addresses.join(","));
        text("WORKLOAD_IDENTITY_SOCKET_FILE", &settings.identity.socket_name);
        // Upstream Envoy does not discover metadata of workloads.
        text("METADATA_DISCOVERY", "false");
        for (name, set) in [
            ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", settings.drain.until_no_connections),
            ("ENVOY_SKIP_DEPRECATED_LOGS", settings.envoy.skip_deprecated_logs),
        ] {
            text(name, if set { "true" } else { "" });
        }
        metadata.entry("ISTIO_VERSION").or_insert_with(|| ISTIO_VERSION.into());
        metadata.insert("ENVOY_STATUS_PORT".to_owned(), settings.ports.envoy_status.into());
        metadata.insert("ENVOY_PROMETHEUS_PORT".to_owned(), settings.ports.envoy_prometheus.into());
        for (name, values) in [("LABELS", labels.clone()), ("STATIC_LABELS", static_labels)] {
            if !values.is_empty() {
                metadata.insert(name.to_owned(), values.into());
            }
        }
        if !settings.pod.annotations.is_empty() {
            metadata.insert("ANNOTATIONS".to_owned(), json!(settings.pod.annotations));
        }
        if settings.proxy.control_plane_auth_policy == AuthenticationPolicy::MutualTls as i32 {
            metadata.insert("PILOT_SAN".to_owned(), json!([settings.control_plane.upstream.server_name]));
        }
        match sluice_proto::json::encode(&settings.proxy) {
            Ok(config) => drop(metadata.insert("PROXY_CONFIG".to_owned(), config)),
            Err(error) => warnings.push(format!("the ProxyConfig cannot be encoded and is not sent: {error}")),
        }
        Self { id: settings.node_id(), cluster: service_cluster(settings, &labels, &metadata), metadata, locality }
    }
}

/// Region, zone and subzone of the label. In the label, `.` is replaced by `/`.
fn locality(labels: &mut Map<String, Value>) -> [String; 3] {
    let Some(Value::String(label)) = labels.get_mut(LOCALITY_LABEL) else { return Default::default() };
    // Values of Kubernetes labels cannot have slashes.
    if !label.contains('/') {
        *label = label.replace('.', "/");
    }
    let mut parts = label.splitn(3, '/').map(ToOwned::to_owned);
    [(); 3].map(|()| parts.next().unwrap_or_default())
}

/// The name of the proxy's service in traces.
fn service_cluster(settings: &Settings, labels: &Map<String, Value>, metadata: &Map<String, Value>) -> String {
    let text =
        |values: &Map<String, Value>, name: &str| values.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
    let workload = text(metadata, "WORKLOAD_NAME");
    let namespace = &settings.namespace;
    let or_default = |name: &str| -> String {
        if !name.is_empty() && name != "istio-proxy" {
            return name.to_owned();
        }
        let app = text(labels, "app").or_else(|| text(labels, "app.kubernetes.io/name")).or_else(|| workload.clone());
        match (app, namespace.is_empty()) {
            (Some(app), _) => format!("{app}.{namespace}"),
            (None, false) => format!("istio-proxy.{namespace}"),
            (None, true) => "istio-proxy".to_owned(),
        }
    };
    let canonical = || {
        let names = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];
        let named = names.iter().find_map(|name| text(labels, name));
        named.or_else(|| workload.clone()).unwrap_or_else(|| "istio-proxy".to_owned())
    };
    match &settings.proxy.cluster_name {
        Some(ClusterName::ServiceCluster(name)) => or_default(name),
        Some(ClusterName::TracingServiceName(kind)) => match TracingServiceName::try_from(*kind) {
            Ok(TracingServiceName::CanonicalNameOnly) => or_default(&canonical()),
            Ok(TracingServiceName::CanonicalNameAndNamespace) if !namespace.is_empty() => {
                format!("{}.{namespace}", canonical())
            }
            Ok(TracingServiceName::CanonicalNameAndNamespace) => or_default(&canonical()),
            _ => or_default(""),
        },
        None => or_default(""),
    }
}

/// Addresses of the interfaces, without loopback and link-local ones.
pub(crate) fn interface_addresses() -> Vec<std::net::IpAddr> {
    use std::net::IpAddr;

    use nix::net::if_::InterfaceFlags;
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let mut addresses = Vec::new();
    for interface in interfaces {
        if !interface.flags.contains(InterfaceFlags::IFF_UP) || interface.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        let Some(storage) = interface.address else { continue };
        let address = match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::from(v4.ip()),
            (None, Some(v6)) => IpAddr::from(v6.ip()).to_canonical(),
            (None, None) => continue,
        };
        let is_local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_multicast() || v4.is_unspecified() || v4.is_loopback(),
            IpAddr::V6(v6) => {
                v6.is_unicast_link_local() || v6.is_multicast() || v6.is_unspecified() || v6.is_loopback()
            }
        };
        if !is_local && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::environment;
    use crate::settings::tests::settings;

    fn node(variables: &[(&str, &str)]) -> EnvoyNode {
        let settings = settings("sidecar", variables).expect("settings");
        EnvoyNode::new(&settings, &environment(variables), &mut Vec::new())
    }

    #[test]
    fn metadata_comes_from_the_environment() {
        let node = node(&[
            ("POD_NAME", "tea-1"),
            ("POD_NAMESPACE", "shop"),
            ("INSTANCE_IP", "10.0.0.7"),
            ("SERVICE_ACCOUNT", "tea"),
            ("ISTIO_META_CLUSTER_ID", "c1"),
            ("ISTIO_META_WORKLOAD_NAME", "tea"),
            ("ISTIO_METAJSON_LABELS", r#"{"app":"green-tea","istio-locality":"r.z.s"}"#),
            ("PROXY_CONFIG", "{drainDuration: 3s, proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}}"),
        ]);
        assert_eq!(node.id, "sidecar~10.0.0.7~tea-1.shop~shop.svc.cluster.local");
        assert_eq!(node.cluster, "green-tea.shop");
        assert_eq!(node.locality, ["r", "z", "s"]);
        let metadata = &node.metadata;
        assert_eq!(metadata["CLUSTER_ID"], "c1");
        assert_eq!(metadata["DNS_CAPTURE"], "true");
        assert_eq!(metadata["INSTANCE_IPS"], "10.0.0.7,10.1.1.1");
        assert_eq!(metadata["LABELS"]["istio-locality"], "r/z/s");
        assert_eq!(metadata["STATIC_LABELS"]["app"], "green-tea");
        assert_eq!(metadata["PROXY_CONFIG"]["drainDuration"], "3s");
        assert_eq!(metadata["PROXY_CONFIG"]["discoveryAddress"], "istiod.istio-system.svc:15012");
        assert_eq!(metadata["ENVOY_STATUS_PORT"], json!(15021));
        assert_eq!(metadata["ISTIO_VERSION"], "1.30.0");
        assert!(!metadata.contains_key("EXIT_ON_ZERO_ACTIVE_CONNECTIONS"));
    }

    #[test]
    fn reported_version_can_be_set() {
        let node = node(&[("ISTIO_META_ISTIO_VERSION", "1.29.2")]);
        assert_eq!(node.metadata["ISTIO_VERSION"], "1.29.2");
    }

    #[test]
    fn service_cluster_follows_the_proxy_config() {
        let cluster = |config: &str, labels: &str| {
            let workload = ("ISTIO_META_WORKLOAD_NAME", "pot");
            node(&[("POD_NAMESPACE", "n"), ("PROXY_CONFIG", config), ("ISTIO_METAJSON_LABELS", labels), workload])
                .cluster
        };
        let canonical = r#"{"service.istio.io/canonical-name":"c","app":"a"}"#;
        assert_eq!(cluster("{serviceCluster: mine}", "{}"), "mine");
        assert_eq!(cluster("{}", "{}"), "pot.n");
        assert_eq!(cluster("{tracingServiceName: CANONICAL_NAME_ONLY}", canonical), "c");
        assert_eq!(cluster("{tracingServiceName: CANONICAL_NAME_AND_NAMESPACE}", canonical), "c.n");
        assert_eq!(cluster("{tracingServiceName: APP_LABEL_AND_NAMESPACE}", canonical), "a.n");
    }

    #[test]
    fn malformed_json_metadata_gives_a_warning() {
        let variables = [("ISTIO_METAJSON_ANNOTATIONS", "[1]")];
        let mut warnings = Vec::new();
        EnvoyNode::new(&settings("router", &variables).expect("settings"), &environment(&variables), &mut warnings);
        assert!(warnings.len() == 1 && warnings[0].contains("ISTIO_METAJSON_ANNOTATIONS"), "{warnings:?}");
    }
}
