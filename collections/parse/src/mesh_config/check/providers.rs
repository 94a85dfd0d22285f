//! Warnings for extension providers that cannot work. They are not errors: an unused provider has no effect.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use crate::admission::is_port;
use crate::{Fields, is_admitted_host, is_any_case_label, is_fqdn};

/// Provider types that name a service.
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
            fields.warn(&format!("{path}.name"), "the name of the provider is required: policies refer to it");
        } else if !names.insert(name) {
            fields.warn(
                &format!("{path}.name"),
                format!("provider `{name}` is defined twice; the last definition is used"),
            );
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
        fields.warn(&format!("{path}.service"), format!("`{service}` is not a service: expected a host name"));
    }
    if !settings.get("port").and_then(Value::as_i64).is_some_and(is_port) {
        fields.warn(&format!("{path}.port"), "expected a port from 1 to 65535");
    }
    let status = text("statusOnError");
    if !status.is_empty() && !status.parse::<u16>().is_ok_and(|status| (100..600).contains(&status)) {
        fields.warn(&format!("{path}.statusOnError"), format!("`{status}` is not an HTTP status: expected 100 to 599"));
    }
    let prefix = text("pathPrefix");
    if !prefix.is_empty() && !prefix.starts_with('/') {
        fields.warn(&format!("{path}.pathPrefix"), "a path must begin with `/`");
    }
    if kind == "lightstep" && text("accessToken").is_empty() {
        fields.warn(&format!("{path}.accessToken"), "an access token is required");
    }
    if kind == "opentelemetry" && settings.get("grpc").is_some() && settings.get("http").is_some() {
        fields.warn(&format!("{path}.grpc"), "this field and `http` are mutually exclusive");
    }
}
