//! Envoy's bootstrap: its node, the source of its configuration, and its static resources (D04, N33).
//!
//! It uses only extensions of upstream Envoy.

mod clusters;
mod listeners;
mod runtime;
mod stats;
mod telemetry;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::node::EnvoyNode;
use crate::settings::Settings;

/// The inputs of a bootstrap.
pub(crate) struct BootstrapInputs<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) node: &'a EnvoyNode,
    /// Another SDS server provides the workload's certificate; the agent serves secrets in files on a separate socket.
    pub(crate) external_sds: bool,
    /// Another SDS server provides credentials of gateways.
    pub(crate) credential_socket: bool,
}

impl BootstrapInputs<'_> {
    /// The addresses by IP family.
    fn hosts(&self) -> FamilyAddresses {
        let addresses = &self.settings.addresses;
        let v6_first = addresses.first().is_some_and(IpAddr::is_ipv6);
        let both =
            self.settings.dual_stack && addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6);
        match (both, addresses.iter().all(IpAddr::is_ipv6)) {
            (true, _) if v6_first => FamilyAddresses {
                local: "::1",
                wildcard: "::",
                additional_wildcard: Some("0.0.0.0"),
                dns_lookup_family: "ALL",
            },
            (true, _) => FamilyAddresses {
                local: "127.0.0.1",
                wildcard: "0.0.0.0",
                additional_wildcard: Some("::"),
                dns_lookup_family: "ALL",
            },
            (false, true) => FamilyAddresses {
                local: "::1",
                wildcard: "::",
                additional_wildcard: None,
                dns_lookup_family: "V6_ONLY",
            },
            (false, false) => FamilyAddresses {
                local: "127.0.0.1",
                wildcard: "0.0.0.0",
                additional_wildcard: None,
                dns_lookup_family: "V4_ONLY",
            },
        }
    }
}

/// Addresses by IP family.
struct FamilyAddresses {
    /// The address by which Envoy and the agent reach each other.
    local: &'static str,
    /// The address of all interfaces.
    wildcard: &'static str,
    /// The address of all interfaces in the other family, in dual-stack pods.
    additional_wildcard: Option<&'static str>,
    /// Envoy's `dns_lookup_family`.
    dns_lookup_family: &'static str,
}

/// Builds the bootstrap. Invalid settings are skipped, with a warning.
pub(crate) fn build(inputs: &BootstrapInputs<'_>, warnings: &mut Vec<String>) -> Value {
    let BootstrapInputs { settings, node, .. } = inputs;
    let hosts = inputs.hosts();
    let telemetry = telemetry::build(inputs, &hosts, warnings);
    let mut clusters = clusters::build(inputs, &hosts);
    clusters.extend(telemetry.clusters);
    let [region, zone, sub_zone] = &node.locality;
    let mut bootstrap = json!({
        "node": {
            "id": node.id,
            "cluster": node.cluster,
            "locality": { "region": region, "zone": zone, "sub_zone": sub_zone },
            "metadata": node.metadata,
        },
        "application_log_config": { "log_format": log_format(settings.envoy.log_as_json) },
        "layered_runtime": runtime::build(&settings.proxy, settings.compliance),
        "bootstrap_extensions": [{
            "name": "envoy.bootstrap.internal_listener",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
                "buffer_size_kb": 64,
            },
        }],
        "stats_config": stats::config(settings, warnings),
        "admin": {
            "access_log": [{
                "name": "envoy.access_loggers.file",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                    "path": "/dev/null",
                },
            }],
            "address": socket_address(hosts.local, settings.ports.admin),
        },
        "dynamic_resources": {
            "lds_config": ads(),
            "cds_config": ads(),
            "ads_config": {
                "api_type": if settings.delta { "DELTA_GRPC" } else { "GRPC" },
                "transport_api_version": "V3",
                // The node is large.
                "set_node_on_first_message_only": true,
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds-grpc" } }],
            },
        },
        "static_resources": { "clusters": clusters, "listeners": listeners::build(inputs, &hosts) },
        "overload_manager": {
            "resource_monitors": [{
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.\
                              DownstreamConnectionsConfig",
                    "max_active_downstream_connections": runtime::connection_limit(&settings.proxy, warnings),
                },
            }],
        },
        "cluster_manager": cluster_manager(inputs),
        "deferred_stat_options": { "enable_deferred_creation_stats": true },
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let (Some(bootstrap), Some(value)) = (bootstrap.as_object_mut(), value) {
            bootstrap.insert(name.to_owned(), value);
        }
    };
    set("tracing", telemetry.tracing);
    set("stats_sinks", (!telemetry.sinks.is_empty()).then(|| telemetry.sinks.into()));
    let (flush, eviction) = stats::intervals(&settings.pod, warnings);
    set("stats_flush_interval", flush.map(Into::into));
    set("stats_eviction_interval", eviction.map(Into::into));
    bootstrap
}

/// Writes the bootstrap to the ProxyConfig's `configPath`, and returns the path of the file. Only the agent's user may read it.
///
/// # Errors
/// The directory or the file is not writable.
pub(crate) fn write(settings: &Settings, bootstrap: &Value) -> std::io::Result<PathBuf> {
    let directory = Path::new(&settings.proxy.config_path);
    std::fs::create_dir_all(directory)?;
    let file = directory.join("envoy-rev.json");
    crate::files::write_private(&file, bootstrap.to_string().as_bytes())?;
    Ok(file)
}

fn cluster_manager(inputs: &BootstrapInputs<'_>) -> Value {
    let mut manager = json!({ "enable_deferred_cluster_creation": true });
    let path = &inputs.settings.envoy.outlier_log_path;
    if !path.is_empty() {
        manager["outlier_detection"] = json!({ "event_log_path": path });
    }
    if clusters::has_self_discovery(inputs.node) {
        manager["local_cluster_name"] = clusters::LOCAL_CLUSTER.into();
    }
    manager
}

fn log_format(json: bool) -> Value {
    match json {
        true => json!({ "json_format": {
            "level": "%l", "time": "%Y-%m-%dT%T.%fZ", "scope": "envoy %n", "msg": "%j", "caller": "%g:%#", "thread": "%t",
        } }),
        false => json!({ "text_format": "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t" }),
    }
}

/// Configuration from the ADS stream. Envoy waits for it without a timeout.
fn ads() -> Value {
    json!({ "ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3" })
}

fn socket_address(host: &str, port: u16) -> Value {
    json!({ "socket_address": { "protocol": "TCP", "address": host, "port_value": port } })
}

#[cfg(test)]
mod tests;
