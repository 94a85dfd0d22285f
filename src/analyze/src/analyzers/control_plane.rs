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

/// The host of a URL, empty if it has none. `None` for a text that is no URL by the rules of Go, with which the API server
/// reads it.
fn host(url: &str) -> Option<&str> {
    if url.chars().any(char::is_control) {
        return None;
    }
    let url = url.split_once('#').map_or(url, |(url, _)| url);
    let scheme =
        url.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).filter(|end| url[*end..].starts_with(':'));
    let rest = match scheme {
        Some(0) => return None,
        Some(end) if url.starts_with(|c: char| c.is_ascii_alphabetic()) => &url[end + 1..],
        // The first part of a relative path has no colon.
        _ if url.split('/').next().is_some_and(|part| part.contains(':')) => return None,
        _ => url,
    };
    let Some(rest) = rest.strip_prefix("//") else { return Some("") };
    let authority = rest.split(['/', '?']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, authority)| authority);
    if authority.contains([' ', '<', '>', '"']) {
        return None;
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(address) => address.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let has_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    has_port.then_some(host)
}
