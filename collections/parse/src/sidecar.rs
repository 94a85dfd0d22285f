//! Sidecar (N21).

use std::collections::BTreeSet;

use sluice_model::{
    CaptureMode, Destination, Host, LocalEndpoint, Object, OutboundPolicy, OutboundTraffic, Protocol, ServerTlsMode,
    Sidecar, SidecarEgress, SidecarIngress, SidecarPort, Text,
};

use crate::destination_rule::checked_pool;
use crate::gateway::server_tls;
use crate::{Fields, Findings, Item, is_dns_label, is_wildcard_domain, protocol};

/// How sockets in the file system are written.
const SOCKET: &str = "unix://";

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let sidecar = Sidecar {
        workload_selector: fields.read("workloadSelector", |selector| {
            let labels = selector.labels("labels");
            if labels.is_empty() {
                selector.warn("labels", "without labels every workload of the namespace is selected");
            }
            if labels.keys().any(|key| key.is_empty()) {
                selector.refuse("labels", "a label needs a key");
            }
            if labels.iter().any(|(key, value)| key.contains('*') || value.contains('*')) {
                selector.refuse("labels", "labels have no wildcards");
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

/// What no listener can tell of itself.
fn check(fields: &Fields<'_>, sidecar: &Sidecar) {
    let says_something = sidecar.inbound_connection_pool.is_some() || sidecar.outbound.is_some();
    if sidecar.ingress.is_empty() && sidecar.egress.is_empty() && !says_something {
        fields.refuse("", "a Sidecar that says nothing");
    }
    let mut ports = BTreeSet::new();
    for (n, listener) in sidecar.ingress.iter().enumerate() {
        if !ports.insert(listener.port.number) {
            fields.refuse(&format!("ingress[{n}].port.number"), "another listener has this port");
        }
    }
    let mut places: BTreeSet<(u16, &str)> = BTreeSet::new();
    for (n, listener) in sidecar.egress.iter().enumerate() {
        match &listener.port {
            None if n + 1 < sidecar.egress.len() => {
                fields.refuse(&format!("egress[{n}].port"), "only the last listener may be for every port");
            }
            None => {}
            Some(port) => {
                let bind = if port.number == 0 { listener.bind.as_str() } else { "" };
                if !places.insert((port.number, bind)) {
                    fields.refuse(&format!("egress[{n}].port.number"), "another listener has this port or socket");
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
        fields.refuse("name", format!("`{name}` is no port name"));
    }
    let word = fields.text("protocol");
    let protocol = protocol::named(&word);
    if !word.is_empty() && protocol == Protocol::Unsupported {
        fields.refuse("protocol", format!("`{word}` is no protocol"));
    }
    if fields.has("targetPort") {
        fields.refuse("targetPort", "has no meaning in a Sidecar");
    }
    SidecarPort { number: fields.integer("number"), protocol, name }
}

fn ingress(fields: &Fields<'_>) -> SidecarIngress {
    let port = fields.read("port", port);
    match &port {
        None => fields.reject("port", "an inbound listener needs a port"),
        Some(port) if port.number == 0 => fields.reject("port.number", "0 is no port"),
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
                    tls.refuse(name, "is not for the listeners of a Sidecar");
                }
            }
            if tls.bool("httpsRedirect") {
                tls.refuse("httpsRedirect", "is not for the listeners of a Sidecar");
            }
            let settings = server_tls(tls);
            if matches!(settings.mode, ServerTlsMode::IstioMutual | ServerTlsMode::AutoPassthrough) {
                tls.refuse("mode", "is not for the listeners of a Sidecar");
            }
            settings
        }),
        connection_pool: fields.read("connectionPool", checked_pool),
    };
    check_address(fields, &listener.bind);
    let protocol = listener.port.protocol;
    if listener.tls.is_some() && !protocol.is_tls() {
        fields.refuse("tls", "only HTTPS and TLS have TLS settings");
    }
    if listener.connection_pool.as_ref().is_some_and(|pool| pool.http.is_some()) && !protocol.is_http() {
        fields.warn("connectionPool.http", "the protocol of the port is not HTTP");
    }
    listener
}

fn check_address(fields: &Fields<'_>, bind: &str) {
    if !bind.is_empty() && bind.parse::<std::net::IpAddr>().is_err() {
        fields.reject("bind", format!("`{bind}` is no address"));
    }
}

fn is_socket_path(path: &str) -> bool {
    path.starts_with('@') || (path.starts_with('/') && !path.ends_with('/'))
}

fn default_endpoint(fields: &Fields<'_>) -> LocalEndpoint {
    const NAME: &str = "defaultEndpoint";
    let text = fields.text(NAME);
    if text.is_empty() {
        return LocalEndpoint::Original;
    }
    if let Some(path) = text.strip_prefix(SOCKET) {
        if !is_socket_path(path) {
            fields.reject(NAME, format!("`{path}` is no absolute path of a file"));
        }
        return LocalEndpoint::Socket(text);
    }
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    let Some((host, number)) = bracketed.or_else(|| text.split_once(':')) else {
        fields.reject(NAME, "an address with a port is expected");
        return LocalEndpoint::Original;
    };
    let Some(port) = number.parse::<u16>().ok().filter(|port| *port > 0) else {
        fields.reject(NAME, format!("`{number}` is no port"));
        return LocalEndpoint::Original;
    };
    match host {
        "" => LocalEndpoint::Original,
        "127.0.0.1" => LocalEndpoint::Loopback { v6: false, port },
        "::1" => LocalEndpoint::Loopback { v6: true, port },
        "0.0.0.0" => LocalEndpoint::Instance { v6: false, port },
        "::" => LocalEndpoint::Instance { v6: true, port },
        _ => {
            fields.reject(NAME, "the loopback address, the pod's own as 0.0.0.0 or [::], or unix:// is expected");
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
            match listener.bind.strip_prefix(SOCKET) {
                None => fields.reject("bind", "port 0 stands for a socket: unix:// is expected"),
                Some(path) if !is_socket_path(path) => {
                    fields.refuse("bind", format!("`{path}` is no absolute path of a file"));
                }
                Some(_) => {}
            }
            if listener.capture == CaptureMode::Iptables {
                fields.refuse("captureMode", "traffic is not redirected to a socket");
            }
        }
        Some(_) => check_address(fields, &listener.bind),
        None => {}
    }
    if listener.hosts.is_empty() {
        fields.refuse("hosts", "a listener needs a host");
    }
    check_hosts(fields, &listener.hosts, namespace);
    listener
}

fn check_hosts(fields: &Fields<'_>, hosts: &[Text], own: &str) {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (n, entry) in hosts.iter().enumerate() {
        let path = format!("hosts[{n}]");
        let Some((namespace, host)) = entry.split_once('/') else {
            fields.refuse(&path, format!("`{entry}` is not of the form namespace/host"));
            continue;
        };
        let bare = namespace.strip_prefix('~').unwrap_or(namespace);
        let known = matches!(bare, "*" | ".") || is_dns_label(bare) || (bare.is_empty() && !namespace.is_empty());
        if !known {
            fields.refuse(&path, format!("`{namespace}` is no namespace"));
        }
        if !is_wildcard_domain(host) || (host != "*" && !host.contains('.')) {
            fields.refuse(&path, format!("`{host}` is no full host name"));
        }
        if namespace.starts_with('~') {
            continue;
        }
        let of = if namespace == "." { own } else { namespace };
        let covered = match host {
            "*" => seen.iter().any(|(namespace, _)| *namespace == of),
            _ => seen.contains(&(of, host)) || seen.contains(&(of, "*")),
        };
        if covered {
            fields.warn(&path, format!("`{entry}` overlaps another host"));
        }
        seen.insert((of, host));
    }
    if seen.contains(&("*", "*")) && seen.iter().any(|(namespace, _)| *namespace != "*") {
        fields.warn("hosts", "`*/*` is every host, so no other is needed");
    }
}

fn outbound(fields: &Fields<'_>) -> OutboundTraffic {
    let modes = [("REGISTRY_ONLY", OutboundPolicy::RegistryOnly), ("ALLOW_ANY", OutboundPolicy::AllowAny)];
    let policy = fields.choice("mode", &modes).unwrap_or(OutboundPolicy::RegistryOnly);
    let egress_proxy = fields.read("egressProxy", |proxy| {
        let host = proxy.text("host");
        if host.is_empty() || host.starts_with('*') || !is_wildcard_domain(&host) {
            proxy.refuse("host", "a host is needed");
        }
        let subset = proxy.text("subset");
        if !subset.is_empty() && !is_dns_label(&subset) {
            proxy.refuse("subset", format!("`{subset}` is no name of a subset"));
        }
        let port = proxy.read("port", |port| port.integer::<u16>("number"));
        if port.is_none_or(|port| port == 0) {
            proxy.reject("port", "a port is needed");
        }
        Destination { host: Host::new(&host), subset, port: port.map(u32::from) }
    });
    if egress_proxy.is_some() && policy != OutboundPolicy::AllowAny {
        fields.reject("egressProxy", "only traffic that may pass can pass through a proxy");
    }
    OutboundTraffic { policy, egress_proxy }
}

#[cfg(test)]
mod tests;
