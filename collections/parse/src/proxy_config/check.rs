//! Validation of `ProxyConfig`.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;
use sluice_model::{ProxyConfig, Tracer};

use crate::admission::is_port;
use crate::{Fields, is_fqdn, parse_duration};

/// Placeholder for the address of the node.
const HOST_IP: &str = "$(HOST_IP)";

/// Checks the fields that are present.
pub(super) fn check(fields: &Fields<'_>, config: &ProxyConfig) {
    for name in ["configPath", "binaryPath", "serviceCluster"] {
        if fields.opt_text(name).is_some_and(|text| text.is_empty()) {
            fields.refuse(name, "the value must not be empty");
        }
    }
    if fields.has("drainDuration") {
        fields.check_timeout("drainDuration", config.drain_duration);
        if config.drain_duration.subsec_nanos() != 0 {
            fields.refuse("drainDuration", "a duration must be a whole number of seconds");
        }
    }
    for name in ["discoveryAddress", "statsdUdpAddress", "envoyMetricsServiceAddress"] {
        if let Some(address) = fields.opt_text(name)
            && (name == "discoveryAddress" || !address.is_empty())
        {
            check_address(fields, name, &address);
        }
    }
    for name in ["envoyMetricsService", "envoyAccessLogService"] {
        if let Some(address) = fields.value(name).and_then(|service| service.get("address")).and_then(Value::as_str)
            && !address.is_empty()
        {
            check_address(fields, &format!("{name}.address"), address);
        }
    }
    for name in ["proxyAdminPort", "statusPort"] {
        if fields.value(name).is_some_and(|port| !port.as_i64().is_some_and(is_port)) {
            fields.refuse(name, "expected a port from 1 to 65535");
        }
    }
    if fields.value("proxyMetadata").and_then(|metadata| metadata.get("ISTIO_META_DNS_AUTO_ALLOCATE")).is_some() {
        fields.warn("proxyMetadata[ISTIO_META_DNS_AUTO_ALLOCATE]", "no effect: addresses are always allocated");
    }
    check_tracer(fields, config);
    check_private_keys(fields);
    check_limits(fields);
}

/// Checks an address of the form `HOST:PORT`.
fn check_address(fields: &Fields<'_>, name: &str, address: &str) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(bare) => bare.parse::<IpAddr>().is_ok(),
        None => is_fqdn(host) || (!host.contains(':') && host.parse::<IpAddr>().is_ok()),
    };
    if !is_host {
        fields.refuse(name, format!("`{host}` is not a host name or an IP address"));
    }
    if !port.parse::<i64>().is_ok_and(is_port) {
        fields.refuse(name, format!("expected `HOST:PORT`, found `{address}`"));
    }
}

fn check_tracer(fields: &Fields<'_>, config: &ProxyConfig) {
    let Some(tracer) = config.tracing.as_ref().filter(|_| fields.has("tracing")).and_then(|t| t.tracer.as_ref()) else {
        return;
    };
    let known = |address: &str| address.replacen(HOST_IP, "127.0.0.1", 1);
    match tracer {
        Tracer::Zipkin(address) => check_address(fields, "tracing.zipkin.address", &known(address)),
        Tracer::Datadog(address) => check_address(fields, "tracing.datadog.address", &known(address)),
        Tracer::Lightstep(address, token) => {
            check_address(fields, "tracing.lightstep.address", address);
            if token.is_empty() {
                fields.refuse("tracing.lightstep.accessToken", "an access token is required");
            }
        }
        _ => {}
    }
}

fn check_private_keys(fields: &Fields<'_>) {
    let Some(provider) = fields.value("privateKeyProvider") else { return };
    let known = ["cryptomb", "qat"].into_iter().find_map(|name| Some((name, provider.get(name)?)));
    let Some((name, provider)) = known else {
        fields.refuse("privateKeyProvider", "`cryptomb` or `qat` is required");
        return;
    };
    let delay = provider.get("pollDelay").and_then(Value::as_str).and_then(parse_duration);
    if delay.unwrap_or_default() == Duration::ZERO {
        fields.refuse(&format!("privateKeyProvider.{name}.pollDelay"), "a duration above 0 is required");
    }
}

/// Minimum of each integer in `connectionSettings`.
const MINIMUMS: [(&str, i64); 7] = [
    ("listenerPerConnectionBufferLimitBytes", 0),
    ("clusterPerConnectionBufferLimitBytes", 0),
    ("httpMaxConcurrentStreams", 1),
    ("http2InitialStreamWindowSize", 65_535),
    ("http2InitialConnectionWindowSize", 65_535),
    ("listenerConnectionLimit", 1),
    ("globalDownstreamConnectionLimit", 1),
];

fn check_limits(fields: &Fields<'_>) {
    let Some(settings) = fields.value("connectionSettings") else { return };
    for (name, least) in MINIMUMS {
        if settings.get(name).and_then(Value::as_i64).is_some_and(|number| number < least) {
            fields.refuse(&format!("connectionSettings.{name}"), format!("expected an integer of at least {least}"));
        }
    }
}
