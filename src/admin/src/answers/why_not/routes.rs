//! Why a route, a VirtualService or a Gateway has no effect at a proxy.

use std::collections::BTreeSet;

use sluice_graph::{sort_by_precedence, with_visibility};
use sluice_model::{Gateway, Host, Kind, MESH_GATEWAY, ObjectKey, ProxyType, VirtualService, match_labels};

use super::facts::Facts;
use super::reach::{exported, reached};
use super::{AbsenceReason, ReasonCode};

/// Adds the reasons why the proxy has no virtual host of a host, besides those of its service.
pub(super) fn check(facts: &Facts<'_>, host: &Host, port: Option<u16>, findings: &mut Vec<AbsenceReason>) {
    let services = facts.services(host);
    if let Some((service, port)) = reached(facts, &services).zip(port) {
        let is_routed = service.port(port).is_none_or(|port| port.protocol.is_http() || port.protocol.is_unsupported());
        if !is_routed {
            let text = format!("port {port} is not HTTP, so it has no route table");
            findings.push(AbsenceReason::of(ReasonCode::Mismatch, facts.declaring(&service), text));
        }
    }
    for (key, _) in virtual_services(facts).into_iter().filter(|(_, vs)| vs.hosts.contains(host)) {
        check_virtual_service(facts, &key, findings);
    }
    for (kind, key) in rejected(facts) {
        facts.add_rejects(kind, &key, findings);
    }
}

/// The VirtualServices with findings in the namespace of the proxy that do not apply at all: their hosts are not known.
fn rejected(facts: &Facts<'_>) -> Vec<(Kind, ObjectKey)> {
    let rejects = facts.snapshot.iter(&facts.state.handles.rejects);
    let of = rejects.filter(|(key, _)| key.kind == Kind::VirtualService && *key.object.namespace == *facts.namespace());
    of.map(|(key, _)| (key.kind, key.object.clone())).filter(|(kind, key)| facts.read(*kind, key).is_none()).collect()
}

/// The VirtualServices of discovered namespaces, with their visibility resolved.
fn virtual_services(facts: &Facts<'_>) -> Vec<(ObjectKey, VirtualService)> {
    let declared = facts.snapshot.iter(&facts.state.handles.virtual_services);
    declared.map(|(key, vs)| (key.clone(), with_visibility(vs, &facts.mesh))).collect()
}

/// Adds the reasons why a VirtualService has no effect at the proxy.
pub(super) fn check_virtual_service(facts: &Facts<'_>, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) {
    let all = virtual_services(facts);
    let Some((_, vs)) = all.iter().find(|(known, _)| known == key) else { return };
    let object = || facts.object(Kind::VirtualService, key);
    let add = |reason, text| AbsenceReason::of(reason, object(), text);
    if vs.is_delegate() {
        check_delegate(facts, key, &all, findings);
        return;
    }
    if facts.proxy.proxy_type == ProxyType::Router {
        check_gateways(facts, key, vs, findings);
    } else if !vs.is_mesh() {
        let gateways: Vec<&str> = vs.gateways.iter().map(|gateway| gateway.as_str()).collect();
        let text = format!(
            "it is for the gateways {}, not for sidecars: gateways has no {MESH_GATEWAY:?}",
            gateways.join(", ")
        );
        findings.push(add(ReasonCode::NotSelected, text));
        return;
    }
    let export_to = vs.export_to.clone().unwrap_or_default();
    if !export_to.allows(facts.namespace()) {
        let text =
            format!("it is exported to {}, not to namespace {} of the proxy", exported(&export_to), facts.namespace());
        findings.push(add(ReasonCode::NotExported, text));
        return;
    }
    if facts.imports.as_ref().is_some_and(|imports| !imports.imports_route(vs)) {
        let sidecar = facts.sidecar();
        let name = sidecar.as_ref().map_or("the Sidecar", |sidecar| &sidecar.object).to_owned();
        let hosts: Vec<&str> = vs.hosts.iter().map(Host::as_str).collect();
        let text =
            format!("{name} of the proxy lists no egress host that covers {}/{}", key.namespace, hosts.join(", "));
        findings.push(AbsenceReason { reason: ReasonCode::NotImported, object: sidecar, text });
        return;
    }
    check_sources(facts, vs, &add, findings);
    if facts.proxy.proxy_type != ProxyType::Router {
        check_precedence(facts, key, vs, &all, findings);
        check_ports(facts, vs, &add, findings);
    }
}

/// Adds the older VirtualServices of the same hosts.
fn check_precedence(
    facts: &Facts<'_>,
    key: &ObjectKey,
    vs: &VirtualService,
    all: &[(ObjectKey, VirtualService)],
    findings: &mut Vec<AbsenceReason>,
) {
    for host in &vs.hosts {
        let applies = |(_, other): &&(ObjectKey, VirtualService)| {
            other.is_mesh()
                && !other.is_delegate()
                && other.hosts.contains(host)
                && other.export_to.as_ref().is_none_or(|export_to| export_to.allows(facts.namespace()))
                && facts.imports.as_ref().is_none_or(|imports| imports.imports_route(other))
        };
        let mut candidates: Vec<(ObjectKey, VirtualService)> = all.iter().filter(applies).cloned().collect();
        sort_by_precedence(&mut candidates, facts.namespace());
        let Some((first, _)) = candidates.first().filter(|(first, _)| first != key) else { continue };
        let older = facts.object(Kind::VirtualService, first);
        let text = format!(
            "{} has precedence for host {host}: of several VirtualServices only the first that has routes applies, by visibility, then by age",
            older.object
        );
        findings.push(AbsenceReason::of(ReasonCode::Shadowed, facts.object(Kind::VirtualService, key), text));
    }
}

/// Adds conditions on the source that the proxy does not meet, if no HTTP route is without them.
fn check_sources(
    facts: &Facts<'_>,
    vs: &VirtualService,
    add: &dyn Fn(ReasonCode, String) -> AbsenceReason,
    findings: &mut Vec<AbsenceReason>,
) {
    if vs.http.is_empty() {
        return;
    }
    let matches = |route: &sluice_model::HttpRoute| {
        route.matches.is_empty()
            || route.matches.iter().any(|condition| {
                let namespace = &condition.source_namespace;
                (namespace.is_empty() || **namespace == *facts.namespace())
                    && match_labels(&condition.source_labels, &facts.proxy.labels)
            })
    };
    let excluded: Vec<String> =
        vs.http.iter().enumerate().filter(|(_, route)| !matches(route)).map(|(at, _)| format!("http[{at}]")).collect();
    if !excluded.is_empty() {
        let text = format!("sourceNamespace or sourceLabels of {} do not match the proxy", excluded.join(", "));
        findings.push(add(ReasonCode::NotSelected, text));
    }
}

/// Adds hosts whose ports are not routed as HTTP.
fn check_ports(
    facts: &Facts<'_>,
    vs: &VirtualService,
    add: &dyn Fn(ReasonCode, String) -> AbsenceReason,
    findings: &mut Vec<AbsenceReason>,
) {
    if vs.http.is_empty() || !vs.tcp.is_empty() || !vs.tls.is_empty() {
        return;
    }
    for host in vs.hosts.iter().filter(|host| !host.is_wildcard()) {
        let services = facts.services(host);
        let Some(service) = reached(facts, &services) else { continue };
        if !service.ports.iter().any(|port| port.protocol.is_http() || port.protocol.is_unsupported()) {
            let text = format!("no port of {host} is HTTP, by its name or appProtocol, so http routes have no effect");
            findings.push(add(ReasonCode::Mismatch, text));
        }
    }
}

/// Adds the reasons why a delegate has no effect: its roots.
fn check_delegate(
    facts: &Facts<'_>,
    key: &ObjectKey,
    all: &[(ObjectKey, VirtualService)],
    findings: &mut Vec<AbsenceReason>,
) {
    let refers = |vs: &VirtualService| {
        vs.http
            .iter()
            .filter_map(|route| route.delegate.as_ref())
            .any(|(namespace, name)| *namespace == key.namespace && *name == key.name)
    };
    let roots: Vec<&ObjectKey> = all.iter().filter(|(_, vs)| refers(vs)).map(|(root, _)| root).collect();
    if roots.is_empty() {
        let text = "it has no hosts, so it is a delegate, and no VirtualService refers to it".to_owned();
        findings.push(AbsenceReason::of(ReasonCode::NotSelected, facts.object(Kind::VirtualService, key), text));
    }
    for root in roots {
        check_virtual_service(facts, root, findings);
    }
}

/// The Gateways that select the router.
fn selecting(facts: &Facts<'_>) -> BTreeSet<ObjectKey> {
    let gateways = facts.snapshot.iter(&facts.state.handles.gateways);
    gateways.filter(|(_, gateway)| selects(facts, gateway)).map(|(key, _)| key.clone()).collect()
}

fn selects(facts: &Facts<'_>, gateway: &Gateway) -> bool {
    let in_scope = !facts.state.graph.scope_gateways || *gateway.namespace == *facts.namespace();
    in_scope && match_labels(&gateway.selector, &facts.proxy.labels)
}

/// Adds the reasons why a VirtualService is bound to no Gateway of the router.
fn check_gateways(facts: &Facts<'_>, key: &ObjectKey, vs: &VirtualService, findings: &mut Vec<AbsenceReason>) {
    let selecting: BTreeSet<String> =
        selecting(facts).into_iter().map(|gateway| format!("{}/{}", gateway.namespace, gateway.name)).collect();
    if vs.gateways.iter().any(|gateway| selecting.contains(gateway.as_str())) {
        return;
    }
    let named: Vec<&str> = vs.gateways.iter().map(|gateway| gateway.as_str()).collect();
    for gateway in &named {
        if let Some((namespace, name)) = gateway.split_once('/') {
            let gateway = ObjectKey::new(key.cluster.clone(), namespace, name);
            if facts.check_read(Kind::Gateway, &gateway, findings) {
                check_gateway(facts, &gateway, findings);
            }
        }
    }
    let of = |names: Vec<String>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let named = of(named.into_iter().map(str::to_owned).collect());
    let text = format!(
        "its gateways ({named}) do not select the proxy; those that do: {}",
        of(selecting.into_iter().collect())
    );
    findings.push(AbsenceReason::of(ReasonCode::NotSelected, facts.object(Kind::VirtualService, key), text));
}

/// Adds the reasons why a Gateway does not select the proxy.
pub(super) fn check_gateway(facts: &Facts<'_>, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) {
    let Some(gateway) = facts.snapshot.get(&facts.state.handles.gateways, key) else { return };
    let object = facts.object(Kind::Gateway, key);
    if facts.proxy.proxy_type != ProxyType::Router {
        let text = format!(
            "the proxy is a {:?}: a Gateway selects gateway proxies (type router) only",
            facts.proxy.proxy_type
        );
        findings.push(AbsenceReason::of(ReasonCode::NotSelected, object, text));
    } else if !match_labels(&gateway.selector, &facts.proxy.labels) {
        let labels: Vec<String> = gateway.selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let text = format!("its selector {} does not match the labels of the proxy", labels.join(","));
        findings.push(AbsenceReason::of(ReasonCode::NotSelected, object, text));
    } else if !selects(facts, &gateway) {
        let text = "PILOT_SCOPE_GATEWAY_TO_NAMESPACE limits Gateways to proxies of their namespace".to_owned();
        findings.push(AbsenceReason::of(ReasonCode::NotSelected, object, text));
    }
}

/// Adds why a router has no cluster of a host that it reaches.
pub(super) fn check_router(facts: &Facts<'_>, host: &Host, findings: &mut Vec<AbsenceReason>) {
    if findings.is_empty() && facts.state.graph.filter_gateway_clusters {
        let text = format!(
            "no route of the gateway sends to {host}, and PILOT_FILTER_GATEWAY_CLUSTER_CONFIG leaves out other clusters"
        );
        findings.push(AbsenceReason::new(ReasonCode::NotSelected, text));
    }
    for (key, vs) in virtual_services(facts) {
        let sends = vs.http.iter().flat_map(|route| &route.route).any(|to| to.destination.host == *host);
        if sends {
            check_virtual_service(facts, &key, findings);
        }
    }
}
