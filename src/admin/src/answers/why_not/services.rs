//! Why the clusters of a host are absent.

use sluice_model::{DestinationRule, Host, Kind, ObjectKey, ProxyType, Resolution, Service, ServiceEntry};

use super::super::names::{did_you_mean, similar};
use super::facts::Facts;
use super::reach::{exported, followed_rule, reached, rules_of_host};
use super::rules::check_rule;
use super::{AbsenceReason, ReasonCode};

/// Adds the reasons why the proxy has no cluster of a host.
pub(super) fn check(
    facts: &Facts<'_>,
    host: &Host,
    port: Option<u16>,
    subset: Option<&str>,
    findings: &mut Vec<AbsenceReason>,
) {
    let services = facts.services(host);
    if services.is_empty() {
        check_declaration(facts, host, findings);
        return;
    }
    let reached = reached(facts, &services);
    for service in &services {
        match &reached {
            Some(reached) if reached.key() == service.key() => check_reached(facts, service, port, subset, findings),
            reached => check_unreached(facts, service, reached.as_deref(), findings),
        }
    }
}

/// No service has the host: why no object declares it.
fn check_declaration(facts: &Facts<'_>, host: &Host, findings: &mut Vec<AbsenceReason>) {
    let before = findings.len();
    if let Some((namespace, name)) = facts.service_of_host(host) {
        for cluster in facts.state.cluster_ids() {
            check_object(facts, Kind::Service, &ObjectKey::new(cluster, namespace.clone(), name.clone()), findings);
        }
    }
    for (key, entry) in facts.all::<ServiceEntry>(Kind::ServiceEntry) {
        if entry.hosts.iter().any(|declared| declared.contains(host)) {
            check_object(facts, Kind::ServiceEntry, &key, findings);
        }
    }
    if findings.len() > before {
        return;
    }
    let known: Vec<String> =
        facts.snapshot.iter(&facts.state.handles.services).map(|(key, _)| key.host.to_string()).collect();
    let similar = similar(host.as_str(), known.iter().map(String::as_str));
    let text = format!("no Service and no ServiceEntry declares host {host}{}", did_you_mean(&similar));
    findings.push(AbsenceReason::new(ReasonCode::NotDeclared, text));
}

/// Why an object that declares a host makes no service.
fn check_object(facts: &Facts<'_>, kind: Kind, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) {
    facts.add_rejects(kind, key, findings);
    if let Some(object) = facts.read(kind, key).filter(|_| !facts.is_discovered(key)) {
        findings.push(facts.not_discovered(object, key));
    }
}

/// Why the proxy does not reach a service.
fn check_unreached(facts: &Facts<'_>, service: &Service, reached: Option<&Service>, findings: &mut Vec<AbsenceReason>) {
    let namespace = facts.namespace();
    let object = facts.declaring(service);
    if !service.export_to.allows(namespace) {
        let text =
            format!("it is exported to {}, not to namespace {namespace} of the proxy", exported(&service.export_to));
        findings.push(AbsenceReason::of(ReasonCode::NotExported, object, text));
    } else if facts.imports.as_ref().is_some_and(|imports| !imports.lists(service)) {
        let sidecar = facts.sidecar();
        let name = sidecar.as_ref().map_or("the Sidecar", |sidecar| &sidecar.object).to_owned();
        let text =
            format!("{name} of the proxy lists no egress host that covers {}/{}", service.namespace, service.host);
        findings.push(AbsenceReason { reason: ReasonCode::NotImported, object: sidecar, text });
    } else if let Some(reached) = reached {
        let text = format!(
            "the proxy reaches host {} in namespace {} instead: the service of its own namespace, else one of Kubernetes, else the oldest has precedence",
            reached.host, reached.namespace
        );
        findings.push(AbsenceReason::of(ReasonCode::Shadowed, object, text));
    }
}

/// The proxy reaches the service: why it has no such cluster of it.
fn check_reached(
    facts: &Facts<'_>,
    service: &Service,
    port: Option<u16>,
    subset: Option<&str>,
    findings: &mut Vec<AbsenceReason>,
) {
    if service.resolution == Resolution::Alias {
        let target = service.external_name.as_ref().map_or("another host", |host| host.as_str());
        let text = format!("it is an alias of {target} and has no clusters of its own");
        findings.push(AbsenceReason::of(ReasonCode::Mismatch, facts.declaring(service), text));
    }
    if let Some(number) = port {
        check_port(facts, service, number, findings);
    }
    if let Some(subset) = subset {
        check_subset(facts, service, subset, findings);
    }
    if facts.proxy.proxy_type == ProxyType::Ztunnel {
        let text = "ztunnel has no clusters: it is sent workloads and services";
        findings.push(AbsenceReason::new(ReasonCode::Mismatch, text.to_owned()));
    }
}

fn check_port(facts: &Facts<'_>, service: &Service, number: u16, findings: &mut Vec<AbsenceReason>) {
    let Some(port) = service.port(number) else {
        let ports: Vec<String> = service.ports.iter().map(|port| port.port.to_string()).collect();
        let text = format!("it has no port {number}; its ports are {}", ports.join(", "));
        findings.push(AbsenceReason::of(ReasonCode::Mismatch, facts.declaring(service), text));
        return;
    };
    if port.protocol == sluice_model::Protocol::Udp {
        let text = format!("port {number} is UDP, which is not proxied");
        findings.push(AbsenceReason::of(ReasonCode::Mismatch, facts.declaring(service), text));
    }
    if facts.imports.as_ref().is_some_and(|imports| !imports.lists_port(service, number)) {
        let text = format!("no egress listener that lists the host has port {number}");
        findings.push(AbsenceReason { reason: ReasonCode::NotImported, object: facts.sidecar(), text });
    }
}

fn check_subset(facts: &Facts<'_>, service: &Service, subset: &str, findings: &mut Vec<AbsenceReason>) {
    let rules = rules_of_host(facts, &service.host);
    let declares = |rule: &DestinationRule| rule.subsets.iter().any(|declared| *declared.name == *subset);
    let followed = followed_rule(facts, service);
    if followed.as_ref().is_some_and(declares) {
        return;
    }
    let before = findings.len();
    for (key, rule) in rules.iter().filter(|(_, rule)| declares(rule)) {
        check_rule(facts, key, rule, service, findings);
    }
    for (kind, key) in rejected_rules(facts, &service.namespace) {
        facts.add_rejects(kind, &key, findings);
    }
    if findings.len() > before {
        return;
    }
    let text = match followed {
        None => format!("no DestinationRule for {} declares subset {subset:?}", service.host),
        Some(rule) => {
            let names: Vec<&str> = rule.subsets.iter().map(|declared| declared.name.as_str()).collect();
            let names =
                if names.is_empty() { "no subsets".to_owned() } else { format!("the subsets {}", names.join(", ")) };
            format!("the DestinationRule for {} that the proxy follows has {names}, not {subset:?}", service.host)
        }
    };
    findings.push(AbsenceReason::new(ReasonCode::NotDeclared, text));
}

/// The DestinationRules with findings in a namespace or in that of the proxy: their hosts are not known.
fn rejected_rules(facts: &Facts<'_>, namespace: &str) -> Vec<(Kind, ObjectKey)> {
    let rejects = facts.snapshot.iter(&facts.state.handles.rejects);
    let of = rejects.filter(|(key, _)| {
        let of_namespace = *key.object.namespace == *namespace || *key.object.namespace == *facts.namespace();
        key.kind == Kind::DestinationRule && of_namespace
    });
    of.map(|(key, _)| (key.kind, key.object.clone())).filter(|(kind, key)| facts.read(*kind, key).is_none()).collect()
}
