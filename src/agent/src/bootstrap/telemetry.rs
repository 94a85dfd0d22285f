//! Destinations of traces, statistics and access logs, from the ProxyConfig.

use std::net::SocketAddr;

use serde_json::{Value, json};
use sluice_proto::istio::mesh::v1alpha1::RemoteService;
use sluice_proto::istio::mesh::v1alpha1::tracing::Tracer;
use sluice_proto::istio::networking::v1alpha3::ClientTlsSettings;
use sluice_proto::istio::networking::v1alpha3::client_tls_settings::TlSmode as TlsMode;

use super::clusters::{http2, load_assignment};
use super::{BootstrapInputs, FamilyAddresses};
use crate::settings::host_and_port;

/// The parts of the bootstrap for telemetry.
#[derive(Default)]
pub(super) struct Telemetry {
    pub(super) clusters: Vec<Value>,
    pub(super) tracing: Option<Value>,
    pub(super) sinks: Vec<Value>,
}

pub(super) fn build(inputs: &BootstrapInputs<'_>, hosts: &FamilyAddresses, warnings: &mut Vec<String>) -> Telemetry {
    let config = &inputs.settings.proxy;
    let mut telemetry = Telemetry::default();
    let mut problems = Vec::new();
    let mut remote = |name: &str, address: &str, tls: Option<&ClientTlsSettings>, grpc: bool| {
        let address = address.replace("$(HOST_IP)", &inputs.settings.envoy.host_ip);
        match cluster(name, &address, tls, grpc, hosts) {
            Ok(cluster) => {
                telemetry.clusters.push(cluster);
                true
            }
            Err(reason) => {
                problems.push(format!("ProxyConfig: {name} is ignored: {reason}"));
                false
            }
        }
    };
    let tracing = config.tracing.as_ref();
    let tls = tracing.and_then(|tracing| tracing.tls_settings.as_ref());
    let provider = match tracing.and_then(|tracing| tracing.tracer.as_ref()) {
        Some(Tracer::Zipkin(zipkin)) if remote("zipkin", &zipkin.address, tls, false) => Some(json!({
            "name": "envoy.tracers.zipkin",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
                "collector_cluster": "zipkin",
                "collector_endpoint": "/api/v2/spans",
                "collector_endpoint_version": "HTTP_JSON",
                "trace_id_128bit": true,
                "shared_span_context": false,
            },
        })),
        Some(Tracer::Datadog(datadog)) if remote("datadog_agent", &datadog.address, tls, false) => Some(json!({
            "name": "envoy.tracers.datadog",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.DatadogConfig",
                "collector_cluster": "datadog_agent",
                "service_name": inputs.node.cluster,
            },
        })),
        Some(Tracer::Zipkin(_) | Tracer::Datadog(_)) | None => None,
        Some(_) => {
            warnings.push(
                "ProxyConfig: tracing: only zipkin and datadog are supported in the bootstrap; the tracer is ignored"
                    .to_owned(),
            );
            None
        }
    };
    telemetry.tracing = provider.map(|http| json!({ "http": http }));
    let mut service = |name: &str, service: Option<&RemoteService>| {
        let service = service.filter(|service| !service.address.is_empty());
        service.is_some_and(|service| remote(name, &service.address, service.tls_settings.as_ref(), true))
    };
    service("envoy_accesslog_service", config.envoy_access_log_service.as_ref());
    if service("envoy_metrics_service", config.envoy_metrics_service.as_ref()) {
        telemetry.sinks.push(json!({
            "name": "envoy.stat_sinks.metrics_service",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig",
                "transport_api_version": "V3",
                "grpc_service": { "envoy_grpc": { "cluster_name": "envoy_metrics_service" } },
            },
        }));
    }
    if !config.statsd_udp_address.is_empty() {
        match config.statsd_udp_address.parse::<SocketAddr>() {
            Ok(address) => telemetry.sinks.push(json!({
                "name": "envoy.stat_sinks.statsd",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.metrics.v3.StatsdSink",
                    "address": { "socket_address": {
                        "protocol": "UDP", "address": address.ip().to_string(), "port_value": address.port() } },
                },
            })),
            Err(_) => warnings.push("ProxyConfig: statsdUdpAddress is ignored: it is not IP:PORT".to_owned()),
        }
    }
    warnings.extend(problems);
    telemetry
}

/// The address of a service cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("address {0:?} is not HOST:PORT")]
struct InvalidAddress(String);

/// The cluster for a server at `HOST:PORT`.
fn cluster(
    name: &str,
    address: &str,
    tls: Option<&ClientTlsSettings>,
    grpc: bool,
    hosts: &FamilyAddresses,
) -> Result<Value, InvalidAddress> {
    let Some((host, port)) = host_and_port(address) else { return Err(InvalidAddress(address.to_owned())) };
    let mut cluster = json!({
        "name": name,
        "alt_stat_name": format!("{name};"),
        "cluster_type": {
            "name": "envoy.cluster.dns",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster",
                "respect_dns_ttl": true,
                "dns_lookup_family": hosts.dns_lookup_family,
                "dns_refresh_rate": "30s",
            },
        },
        "connect_timeout": "1s",
        "load_assignment": load_assignment(name, super::socket_address(host, port)),
    });
    if grpc {
        cluster["typed_extension_protocol_options"] = http2();
    }
    if let Some(socket) = tls.and_then(|tls| transport_socket(tls, host, grpc)) {
        cluster["transport_socket"] = socket;
    }
    Ok(cluster)
}

fn transport_socket(tls: &ClientTlsSettings, host: &str, grpc: bool) -> Option<Value> {
    let sds = |name: String| {
        json!({ "name": name, "sds_config": {
            "resource_api_version": "V3",
            "api_config_source": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "sds-grpc" } }],
            },
        } })
    };
    let (certificate, roots) = match TlsMode::try_from(tls.mode).ok()? {
        TlsMode::Disable => return None,
        TlsMode::IstioMutual => (Some("default".to_owned()), Some("ROOTCA".to_owned())),
        mode => {
            let client_certificate = format!("file-cert:{}~{}", tls.client_certificate, tls.private_key);
            let roots = (!tls.ca_certificates.is_empty()).then(|| format!("file-root:{}", tls.ca_certificates));
            ((mode == TlsMode::Mutual).then_some(client_certificate), roots)
        }
    };
    let names: Vec<_> = tls.subject_alt_names.iter().map(|name| json!({ "exact": name })).collect();
    let matchers: Vec<_> = ["DNS", "URI"]
        .into_iter()
        .flat_map(|kind| names.iter().map(move |name| json!({ "san_type": kind, "matcher": name })))
        .collect();
    let mut common = json!({});
    if grpc {
        common["alpn_protocols"] = json!(["h2"]);
    }
    if let Some(name) = certificate {
        common["tls_certificate_sds_secret_configs"] = json!([sds(name)]);
    }
    if let Some(name) = roots {
        common["combined_validation_context"] = json!({
            "default_validation_context": { "match_typed_subject_alt_names": matchers },
            "validation_context_sds_secret_config": sds(name),
        });
    }
    Some(json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": if tls.sni.is_empty() { host } else { &tls.sni },
            "common_tls_context": common,
        },
    }))
}
