//! Envoy's bootstrap: who it is, where its configuration comes from, and what it has without any (D04, N33).
//!
//! Only what upstream Envoy knows is used.

mod clusters;
mod listeners;
mod runtime;
mod stats;
mod telemetry;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::node::Node;
use crate::settings::Settings;

/// What a bootstrap is made from.
pub(crate) struct Inputs<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) node: &'a Node,
    /// Somebody else serves the workload's certificate; files are served on a socket of their own.
    pub(crate) foreign_identity: bool,
    /// Somebody serves credentials of gateways on a socket.
    pub(crate) credential_socket: bool,
}

impl Inputs<'_> {
    /// The address that Envoy and the agent reach each other by, and the one that means every interface.
    fn hosts(&self) -> Hosts {
        let addresses = &self.settings.addresses;
        let v6_first = addresses.first().is_some_and(IpAddr::is_ipv6);
        let both =
            self.settings.dual_stack && addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6);
        match (both, addresses.iter().all(IpAddr::is_ipv6)) {
            (true, _) if v6_first => Hosts { local: "::1", wildcard: "::", also: Some("0.0.0.0"), lookup: "ALL" },
            (true, _) => Hosts { local: "127.0.0.1", wildcard: "0.0.0.0", also: Some("::"), lookup: "ALL" },
            (false, true) => Hosts { local: "::1", wildcard: "::", also: None, lookup: "V6_ONLY" },
            (false, false) => Hosts { local: "127.0.0.1", wildcard: "0.0.0.0", also: None, lookup: "V4_ONLY" },
        }
    }
}

/// Addresses by family.
struct Hosts {
    local: &'static str,
    wildcard: &'static str,
    /// The other family's wildcard, with two families.
    also: Option<&'static str>,
    /// Envoy's `dns_lookup_family`.
    lookup: &'static str,
}

/// Makes the bootstrap. What cannot be used is warned of and left out.
pub(crate) fn build(inputs: &Inputs<'_>, warnings: &mut Vec<String>) -> Value {
    let Inputs { settings, node, .. } = inputs;
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
                // The node is long.
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

/// Writes the bootstrap below the ProxyConfig's `configPath`, readable for the own user only: its address is returned.
///
/// # Errors
/// The directory or the file cannot be written.
pub(crate) fn write(settings: &Settings, bootstrap: &Value) -> std::io::Result<PathBuf> {
    let directory = Path::new(&settings.proxy.config_path);
    std::fs::create_dir_all(directory)?;
    let file = directory.join("envoy-rev.json");
    crate::files::write_private(&file, bootstrap.to_string().as_bytes())?;
    Ok(file)
}

fn cluster_manager(inputs: &Inputs<'_>) -> Value {
    let mut manager = json!({ "enable_deferred_cluster_creation": true });
    let path = &inputs.settings.envoy.outlier_log_path;
    if !path.is_empty() {
        manager["outlier_detection"] = json!({ "event_log_path": path });
    }
    if clusters::discovers_itself(inputs.node) {
        manager["local_cluster_name"] = clusters::LOCAL.into();
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

/// Configuration that comes with the one stream; started without it, Envoy waits.
fn ads() -> Value {
    json!({ "ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3" })
}

fn socket_address(host: &str, port: u16) -> Value {
    json!({ "socket_address": { "protocol": "TCP", "address": host, "port_value": port } })
}

#[cfg(test)]
mod tests;
