//! Settings of the control plane: addresses of webhooks and of key servers (IST0163, IST0164, IST0175).

use std::net::IpAddr;

use serde_json::Value;

use crate::codes::{EXTERNAL_CONTROL_PLANE_IP, INVALID_EXTERNAL_CONTROL_PLANE, UNRESTRICTED_JWKS_FETCH};
use crate::resource::{DEPLOYMENT, MUTATING_WEBHOOKS, REQUEST_AUTHENTICATION, VALIDATING_WEBHOOKS};
use crate::value::{has, items, text};
use crate::{AnalyzedObject, MeshObjects, MessageList};

/// Number of objects that a message names.
const MAX_NAMES: usize = 5;

/// Control planes that fetch keys from any address.
pub(crate) fn blocked_addresses<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let policies = mesh.all(REQUEST_AUTHENTICATION);
    if policies.is_empty() {
        return;
    }
    let mut names: Vec<String> = policies.iter().take(MAX_NAMES).map(|policy| policy.full_name()).collect();
    if policies.len() > MAX_NAMES {
        names.push(format!("and {} more", policies.len() - MAX_NAMES));
    }
    for deployment in mesh.all(DEPLOYMENT).iter().filter(|deployment| deployment.label("app") == Some("istiod")) {
        let containers = items(deployment.spec(), "template.spec.containers").iter();
        let mut variables = containers.flat_map(|container| items(container, "env"));
        let is_set = |variable: &Value| {
            text(variable, "name") == "BLOCKED_CIDRS_IN_JWKS_URIS" && !text(variable, "value").is_empty()
        };
        if !variables.any(is_set) {
            let text = format!(
                "BLOCKED_CIDRS_IN_JWKS_URIS is not set, and {} RequestAuthentications exist ({}): their JWKS may be read from any address",
                policies.len(),
                names.join(", ")
            );
            report.add(&UNRESTRICTED_JWKS_FETCH, deployment, "spec.template.spec.containers", text);
        }
    }
}

/// Webhooks that refer to a control plane outside of the cluster.
pub(crate) fn external_address<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let validating = mesh.all(VALIDATING_WEBHOOKS).iter().filter(|webhooks| {
        webhooks.name() == "istiod-default-validator" || webhooks.name().starts_with("istio-validator")
    });
    let mutating =
        mesh.all(MUTATING_WEBHOOKS).iter().filter(|webhooks| webhooks.name().starts_with("istio-sidecar-injector"));
    for webhooks in validating.chain(mutating) {
        for (n, hook) in items(&webhooks.value, "webhooks").iter().enumerate() {
            check_address(webhooks, n, hook, report);
        }
    }
}

fn check_address<'m>(webhooks: &'m AnalyzedObject, n: usize, hook: &Value, report: &mut MessageList<'m>) {
    let (name, field) = (text(hook, "name"), format!("webhooks[{n}].clientConfig"));
    if !has(hook, "clientConfig.url") {
        if !has(hook, "clientConfig.service") {
            let text = format!("webhook {name} has neither a URL nor a Service of the control plane");
            report.add(&INVALID_EXTERNAL_CONTROL_PLANE, webhooks, field, text);
        }
        return;
    }
    let url = text(hook, "clientConfig.url");
    match host(url) {
        None => {
            let text = format!("URL {url:?} of webhook {name} is invalid; https://HOST:PORT/PATH is expected");
            report.add(&INVALID_EXTERNAL_CONTROL_PLANE, webhooks, field, text);
        }
        Some(host) if host.parse::<IpAddr>().is_ok() => {
            let text = format!("URL {url:?} of webhook {name} has an IP address; use a host name in production");
            report.add(&EXTERNAL_CONTROL_PLANE_IP, webhooks, field, text);
        }
        Some(_) => {}
    }
}

fn host(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let is_valid = !scheme.is_empty() && url.chars().all(|c| !c.is_whitespace() && !c.is_control());
    let host = match authority.strip_prefix('[') {
        Some(address) => address.split_once(']')?.0,
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    (is_valid && !host.is_empty()).then_some(host)
}
