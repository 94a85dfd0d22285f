//! Sidecar (N21).

use std::collections::BTreeSet;

use sluice_model::{
    CaptureMode, Destination, Host, LocalEndpoint, Object, OutboundPolicy, OutboundTraffic, Protocol, ServerTlsMode,
    Sidecar, SidecarEgress, SidecarIngress, SidecarPort, Text, UNIX_PREFIX,
};

use crate::destination_rule::checked_pool;
use crate::gateway::server_tls;
use crate::names::is_socket_path;
use crate::{Fields, Findings, Item, is_dns_label, is_wildcard_domain, protocol};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let sidecar = Sidecar {
        workload_selector: fields.read("workloadSelector", |selector| {
            let labels = selector.labels("labels");
            if labels.is_empty() {
                selector.warn("labels", "a selector without labels selects every workload of the namespace");
            }
            if labels.keys().any(|key| key.is_empty()) {
                selector.refuse("labels", "a label key must not be empty");
            }
            if labels.iter().any(|(key, value)| key.contains('*') || value.contains('*')) {
                selector.refuse("labels", "wildcards are not supported in selectors");
            }
            labels
        }),
        ingress: fields.list("ingress", ingress),
        egress: fields.list("egress", |listener| egress(listener, &meta.namespace)),
        inbound_connection_pool: fields.read("inboundConnectionPool", checked_pool),
        outbound: fields.read("outboundTrafficPolicy", outbound),
        namespace: meta.namespace.clone(),
        name: meta.name,
        created: meta.created,
    };
    check(&fields, &sidecar);
    drop(fields);
    (!findings.has_errors()).then_some(Object::Sidecar(sidecar))
}

/// Checks that need more than one listener.
fn check(fields: &Fields<'_>, sidecar: &Sidecar) {
    let says_something = sidecar.inbound_connection_pool.is_some() || sidecar.outbound.is_some();
    if sidecar.ingress.is_empty() && sidecar.egress.is_empty() && !says_something {
        fields.refuse("", "the spec is empty: the Sidecar has no effect");
    }
    let mut ports = BTreeSet::new();
    for (n, listener) in sidecar.ingress.iter().enumerate() {
        if !ports.insert(listener.port.number) {
            fields.refuse(&format!("ingress[{n}].port.number"), "the port is used by another listener");
        }
    }
    let mut places: BTreeSet<(u16, &str)> = BTreeSet::new();
    for (n, listener) in sidecar.egress.iter().enumerate() {
        match &listener.port {
            None if n + 1 < sidecar.egress.len() => {
                fields.refuse(&format!("egress[{n}].port"), "only the last listener may omit the port");
            }
            None => {}
            Some(port) => {
                let bind = if port.number == 0 { listener.bind.as_str() } else { "" };
                if !places.insert((port.number, bind)) {
                    fields
                        .refuse(&format!("egress[{n}].port.number"), "the port or socket is used by another listener");
                }
            }
        }
    }
}

fn capture(fields: &Fields<'_>) -> CaptureMode {
    let modes = [("DEFAULT", CaptureMode::Default), ("IPTABLES", CaptureMode::Iptables), ("NONE", CaptureMode::None)];
    fields.choice("captureMode", &modes).unwrap_or_default()
}

fn port(fields: &Fields<'_>) -> SidecarPort {
    let name = fields.text("name");
    if !name.is_empty() && !is_dns_label(&name) {
        fields.refuse("name", format!("`{name}` is not a valid port name: expected a DNS label"));
    }
    let word = fields.text("protocol");
    let protocol = protocol::named(&word);
    if !word.is_empty() && protocol == Protocol::Unsupported {
        fields.refuse("protocol", protocol::unknown(&word));
    }
    if fields.has("targetPort") {
        fields.refuse("targetPort", "`targetPort` is not supported in a Sidecar");
    }
    SidecarPort { number: fields.integer("number"), protocol, name }
}

fn ingress(fields: &Fields<'_>) -> SidecarIngress {
    let port = fields.read("port", port);
    match &port {
        None => fields.reject("port", "`port` is required"),
        Some(port) if port.number == 0 => fields.reject("port.number", "expected a port from 1 to 65535, found 0"),
        Some(_) => {}
    }
    let listener = SidecarIngress {
        port: port.unwrap_or_default(),
        bind: fields.text("bind"),
        capture: capture(fields),
        endpoint: default_endpoint(fields),
        tls: fields.read("tls", |tls| {
            for name in ["subjectAltNames", "credentialName", "credentialNames", "tlsCertificates"] {
                if tls.has(name) {
                    tls.refuse(name, "not supported for the listeners of a Sidecar");
                }
            }
            if tls.bool("httpsRedirect") {
                tls.refuse("httpsRedirect", "not supported for the listeners of a Sidecar");
            }
            let settings = server_tls(tls);
            if matches!(settings.mode, ServerTlsMode::IstioMutual | ServerTlsMode::AutoPassthrough) {
                tls.refuse("mode", "not supported for the listeners of a Sidecar");
            }
            settings
        }),
        connection_pool: fields.read("connectionPool", checked_pool),
    };
    check_address(fields, &listener.bind);
    let protocol = listener.port.protocol;
    if listener.tls.is_some() && !protocol.is_tls() {
        fields.refuse("tls", "`tls` requires protocol HTTPS or TLS");
    }
    if listener.connection_pool.as_ref().is_some_and(|pool| pool.http.is_some()) && !protocol.is_http() {
        fields.warn("connectionPool.http", "no effect: the protocol of the port is not HTTP");
    }
    listener
}

fn check_address(fields: &Fields<'_>, bind: &str) {
    if !bind.is_empty() && bind.parse::<std::net::IpAddr>().is_err() {
        fields.reject("bind", format!("`{bind}` is not an IP address"));
    }
}

fn default_endpoint(fields: &Fields<'_>) -> LocalEndpoint {
    const NAME: &str = "defaultEndpoint";
    let text = fields.text(NAME);
    if text.is_empty() {
        return LocalEndpoint::Original;
    }
    if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
        if !is_socket_path(path) {
            fields.reject(NAME, format!("`{path}` is not the absolute path of a file: expected `unix:///PATH`"));
        }
        return LocalEndpoint::Socket(text);
    }
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    let Some((host, number)) = bracketed.or_else(|| text.split_once(':')) else {
        fields.reject(NAME, "expected `ADDRESS:PORT` or `unix://PATH`");
        return LocalEndpoint::Original;
    };
    let Some(port) = number.parse::<u16>().ok().filter(|port| *port > 0) else {
        fields.reject(NAME, format!("expected a port from 1 to 65535, found `{number}`"));
        return LocalEndpoint::Original;
    };
    match host {
        "" => LocalEndpoint::Original,
        "127.0.0.1" => LocalEndpoint::Loopback { v6: false, port },
        "::1" => LocalEndpoint::Loopback { v6: true, port },
        "0.0.0.0" => LocalEndpoint::Instance { v6: false, port },
        "::" => LocalEndpoint::Instance { v6: true, port },
        _ => {
            fields.reject(NAME, "expected 127.0.0.1, [::1], 0.0.0.0, [::] or `unix://PATH`");
            LocalEndpoint::Original
        }
    }
}

fn egress(fields: &Fields<'_>, namespace: &str) -> SidecarEgress {
    let listener = SidecarEgress {
        port: fields.read("port", port),
        bind: fields.text("bind"),
        capture: capture(fields),
        hosts: fields.texts("hosts"),
    };
    match &listener.port {
        Some(port) if port.number == 0 => {
            match listener.bind.strip_prefix(UNIX_PREFIX) {
                None => fields.reject("bind", "port 0 requires a Unix domain socket: expected `unix://PATH`"),
                Some(path) if !is_socket_path(path) => {
                    let reason = format!("`{path}` is not the absolute path of a file: expected `unix:///PATH`");
                    fields.refuse("bind", reason);
                }
                Some(_) => {}
            }
            if listener.capture == CaptureMode::Iptables {
                fields.refuse("captureMode", "mode IPTABLES is not supported for a Unix domain socket");
            }
        }
        Some(_) => check_address(fields, &listener.bind),
        None => {}
    }
    if listener.hosts.is_empty() {
        fields.refuse("hosts", "at least one host is required");
    }
    check_hosts(fields, &listener.hosts, namespace);
    listener
}

fn check_hosts(fields: &Fields<'_>, hosts: &[Text], own: &str) {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut namespaces: BTreeSet<&str> = BTreeSet::new();
    for (n, entry) in hosts.iter().enumerate() {
        let path = format!("hosts[{n}]");
        let Some((namespace, host)) = entry.split_once('/') else {
            fields.refuse(&path, format!("expected `NAMESPACE/HOST`, found `{entry}`"));
            continue;
        };
        let bare = namespace.strip_prefix('~').unwrap_or(namespace);
        let known = matches!(bare, "*" | ".") || is_dns_label(bare) || (bare.is_empty() && !namespace.is_empty());
        if !known {
            fields.refuse(&path, format!("`{namespace}` is not a namespace: expected a DNS label, `.`, `~` or `*`"));
        }
        if !is_wildcard_domain(host) || (host != "*" && !host.contains('.')) {
            fields.refuse(&path, format!("`{host}` is not a fully qualified host name or a wildcard"));
        }
        if namespace.starts_with('~') {
            continue;
        }
        let of = if namespace == "." { own } else { namespace };
        let covered = match host {
            "*" => namespaces.contains(of),
            _ => seen.contains(&(of, host)) || seen.contains(&(of, "*")),
        };
        if covered {
            fields.warn(&path, format!("`{entry}` overlaps another host"));
        }
        seen.insert((of, host));
        namespaces.insert(of);
    }
    if seen.contains(&("*", "*")) && namespaces.len() > 1 {
        fields.warn("hosts", "`*/*` selects every host: it must be the only entry");
    }
}

fn outbound(fields: &Fields<'_>) -> OutboundTraffic {
    let modes = [("REGISTRY_ONLY", OutboundPolicy::RegistryOnly), ("ALLOW_ANY", OutboundPolicy::AllowAny)];
    let policy = fields.choice("mode", &modes).unwrap_or(OutboundPolicy::RegistryOnly);
    let egress_proxy = fields.read("egressProxy", |proxy| {
        let host = proxy.text("host");
        if host.is_empty() || host.starts_with('*') || !is_wildcard_domain(&host) {
            proxy.refuse("host", "at least one host is required");
        }
        let subset = proxy.text("subset");
        if !subset.is_empty() && !is_dns_label(&subset) {
            proxy.refuse("subset", format!("`{subset}` is not a valid subset name: expected a DNS label"));
        }
        let port = proxy.read("port", |port| port.integer::<u16>("number"));
        if port.is_none_or(|port| port == 0) {
            proxy.reject("port", "`port` is required");
        }
        Destination { host: Host::new(&host), subset, port: port.map(u32::from) }
    });
    if egress_proxy.is_some() && policy != OutboundPolicy::AllowAny {
        fields.reject("egressProxy", "`egressProxy` requires mode ALLOW_ANY");
    }
    OutboundTraffic { policy, egress_proxy }
}

#[cfg(test)]
mod tests;
