//! Envoy's static listeners: metrics and readiness. Readiness requests pass through Envoy, so they fail when Envoy fails.

use serde_json::{Value, json};

use super::{BootstrapInputs, FamilyAddresses, socket_address};

pub(super) fn build(inputs: &BootstrapInputs<'_>, hosts: &FamilyAddresses) -> Vec<Value> {
    let ports = inputs.settings.ports;
    let compressed = inputs.settings.proxy.stats_compression.as_ref().is_none_or(|compression| compression.value);
    let compressors = if compressed { ["brotli", "zstd", "gzip"].map(compressor).to_vec() } else { Vec::new() };
    vec![
        listener(hosts, ports.envoy_prometheus, "stats", "/stats/prometheus", "prometheus_stats", compressors),
        listener(hosts, ports.envoy_status, "agent", "/healthz/ready", "agent", Vec::new()),
    ]
}

/// Routes requests of one path to a cluster.
fn listener(
    hosts: &FamilyAddresses,
    port: u16,
    stat_prefix: &str,
    path: &str,
    cluster: &str,
    filters: Vec<Value>,
) -> Value {
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    });
    let filters: Vec<_> = filters.into_iter().chain([router]).collect();
    let mut listener = json!({
        // The control plane uses these names for no other listener.
        "name": format!("{}_{port}", hosts.wildcard),
        "address": socket_address(hosts.wildcard, port),
        // They must respond when Envoy is overloaded.
        "ignore_global_conn_limit": true,
        "bypass_overload_manager": true,
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                          HttpConnectionManager",
                "stat_prefix": stat_prefix,
                "route_config": { "virtual_hosts": [{
                    "name": "backend",
                    "domains": ["*"],
                    "routes": [{ "match": { "prefix": path }, "route": { "cluster": cluster } }],
                }] },
                "http_filters": filters,
            },
        }] }],
    });
    if let Some(additional) = hosts.additional_wildcard {
        listener["additional_addresses"] = json!([{ "address": socket_address(additional, port) }]);
    }
    listener
}

fn compressor(kind: &str) -> Value {
    let message = format!("{}{}", kind[..1].to_ascii_uppercase(), &kind[1..]);
    json!({
        "name": format!("envoy.filters.http.compressor.{kind}"),
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor",
            "compressor_library": {
                "name": format!("stats_{kind}"),
                "typed_config": {
                    "@type": format!("type.googleapis.com/envoy.extensions.compression.{kind}.compressor.v3.{message}"),
                },
            },
        },
    })
}
