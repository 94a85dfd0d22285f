//! Extension providers that cannot work. Only advice: one that nobody uses does no harm.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use crate::admission::is_port;
use crate::{Fields, is_admitted_host, is_any_case_label, is_fqdn};

/// Kinds that are reached as a service.
const SERVICES: [&str; 11] = [
    "envoyExtAuthzHttp",
    "envoyExtAuthzGrpc",
    "zipkin",
    "lightstep",
    "datadog",
    "opencensus",
    "skywalking",
    "envoyOtelAls",
    "opentelemetry",
    "envoyHttpAls",
    "envoyTcpAls",
];

pub(super) fn check(fields: &Fields<'_>) {
    let providers = fields.value("extensionProviders").and_then(Value::as_array);
    let mut names = BTreeSet::new();
    for (n, provider) in providers.into_iter().flatten().enumerate() {
        let path = format!("extensionProviders[{n}]");
        let name = provider.get("name").and_then(Value::as_str).unwrap_or_default();
        if name.is_empty() {
            fields.warn(&format!("{path}.name"), "without a name nobody can use it");
        } else if !names.insert(name) {
            fields.warn(&format!("{path}.name"), format!("`{name}` stands twice; the last counts"));
        }
        let kind = SERVICES.iter().find_map(|kind| Some((*kind, provider.get(kind)?)));
        if let Some((kind, settings)) = kind {
            check_service(fields, &format!("{path}.{kind}"), kind, settings);
        }
    }
}

fn check_service(fields: &Fields<'_>, path: &str, kind: &str, settings: &Value) {
    let text = |name: &str| settings.get(name).and_then(Value::as_str).unwrap_or_default();
    let service = text("service");
    let known = match service.split_once('/') {
        Some((namespace, host)) => {
            is_any_case_label(namespace) && is_admitted_host(host) && (host == "*" || host.contains('.'))
        }
        None => is_fqdn(service) || service.parse::<IpAddr>().is_ok(),
    };
    if !known {
        fields.warn(&format!("{path}.service"), format!("`{service}` is no service"));
    }
    if !settings.get("port").and_then(Value::as_i64).is_some_and(is_port) {
        fields.warn(&format!("{path}.port"), "a port number is 1 to 65535");
    }
    let status = text("statusOnError");
    if !status.is_empty() && !status.parse::<u16>().is_ok_and(|status| (100..600).contains(&status)) {
        fields.warn(&format!("{path}.statusOnError"), format!("`{status}` is no HTTP status"));
    }
    let prefix = text("pathPrefix");
    if !prefix.is_empty() && !prefix.starts_with('/') {
        fields.warn(&format!("{path}.pathPrefix"), "a path begins with `/`");
    }
    if kind == "lightstep" && text("accessToken").is_empty() {
        fields.warn(&format!("{path}.accessToken"), "a token is needed");
    }
    if kind == "opentelemetry" && settings.get("grpc").is_some() && settings.get("http").is_some() {
        fields.warn(&format!("{path}.grpc"), "cannot be set beside http");
    }
}
