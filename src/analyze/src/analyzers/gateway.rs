//! Gateways: workloads, ports, certificates and conflicts (IST0101, IST0138, IST0145, IST0161, IST0162).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::Value;
use sluice_model::{Object, Secret, Text};
use sluice_parse::parse_object;
use x509_parser::pem::parse_x509_pem;
use x509_parser::time::ASN1Time;

use crate::codes::{
    CONFLICTING_GATEWAYS, DUPLICATE_CERTIFICATE, GATEWAY_PORT_NOT_ON_SERVICE, INVALID_GATEWAY_CREDENTIAL,
    REFERENCED_RESOURCE_NOT_FOUND,
};
use crate::resource::{GATEWAY, SECRET};
use crate::selector::{self, Labels, show};
use crate::value::{items, map, number, text, texts};
use crate::{AnalyzedObject, MeshObjects, MessageList};

/// No rule of Secrets depends on it.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// Gateways without pods, and ports that no Service of the pods has.
pub(crate) fn ports<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for gateway in mesh.all(GATEWAY) {
        let selector = map(gateway.spec(), "selector");
        let Some(pods) = pods_of(mesh, gateway, &selector, report) else { continue };
        let served = service_ports(mesh, &pods);
        for (n, server) in items(gateway.spec(), "servers").iter().enumerate() {
            let Some(port) = number(server, "port.number") else { continue };
            if !served.contains(&port) {
                let text = format!(
                    "no Service of the pods with labels {} has port or target port {port}; the port is not reachable through a Service",
                    show(&selector)
                );
                report.add(&GATEWAY_PORT_NOT_ON_SERVICE, gateway, format!("spec.servers[{n}].port.number"), text);
            }
        }
    }
}

/// The pods of a Gateway; without any, that is reported.
fn pods_of<'m>(
    mesh: &'m MeshObjects<'m>,
    gateway: &'m AnalyzedObject,
    selector: &Labels<'_>,
    report: &mut MessageList<'m>,
) -> Option<Vec<&'m AnalyzedObject>> {
    let pods = mesh.pods(selector);
    if pods.is_empty() {
        let text = super::not_found("selector", &show(selector));
        report.add(&REFERENCED_RESOURCE_NOT_FOUND, gateway, "spec.selector", text);
        return None;
    }
    Some(pods)
}

/// Ports and target ports of the Services of pods.
fn service_ports(mesh: &MeshObjects<'_>, pods: &[&AnalyzedObject]) -> BTreeSet<i64> {
    // The pods of a Deployment have equal labels.
    let groups: HashSet<(&str, Labels<'_>)> = pods.iter().map(|pod| (pod.namespace(), pod.labels())).collect();
    let services = groups.iter().flat_map(|(namespace, labels)| mesh.services_of(namespace, labels));
    let mut found = BTreeSet::new();
    for service in services {
        for port in items(service.spec(), "ports") {
            if matches!(text(port, "protocol"), "" | "TCP") {
                found.extend([number(port, "port"), number(port, "targetPort")].into_iter().flatten());
            }
        }
    }
    found
}

/// Secrets that do not exist or have no certificate.
pub(crate) fn credentials<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for gateway in mesh.all(GATEWAY) {
        let Some(pods) = pods_of(mesh, gateway, &map(gateway.spec(), "selector"), report) else { continue };
        for (n, server) in items(gateway.spec(), "servers").iter().enumerate() {
            let name = text(server, "tls.credentialName");
            if name.is_empty() {
                continue;
            }
            let field = format!("spec.servers[{n}].tls.credentialName");
            match mesh.find_reference(SECRET, pods[0].namespace(), name) {
                None => {
                    let text = super::not_found("credentialName", name);
                    report.add(&REFERENCED_RESOURCE_NOT_FOUND, gateway, field, text);
                }
                Some(secret) if !has_certificate(&secret.value, mesh.settings.now_unix_seconds) => {
                    let text = format!(
                        "Secret {}, which Gateway {} refers to, has no valid certificate and private key; its servers get no connections",
                        secret.full_name(),
                        gateway.full_name()
                    );
                    report.add(&INVALID_GATEWAY_CREDENTIAL, gateway, field, text);
                }
                Some(_) => {}
            }
        }
    }
}

/// Whether a Secret has a private key, and a certificate that is valid now.
fn has_certificate(secret: &Value, now_unix_seconds: Option<i64>) -> bool {
    let parsed = parse_object(&Text::default(), CLUSTER_DOMAIN, secret).ok().and_then(|parsed| parsed.object);
    let Some(Object::Secret(Secret { certificate: Some(pair), .. })) = parsed else { return false };
    let Ok((_, block)) = parse_x509_pem(&pair.chain.0) else { return false };
    let Ok(certificate) = block.parse_x509() else { return false };
    let is_current = |now| ASN1Time::from_timestamp(now).is_ok_and(|now| certificate.validity().is_valid_at(now));
    pair.problem.is_empty() && now_unix_seconds.is_none_or(is_current)
}

/// Gateways of the same workloads that have a certificate in common.
pub(crate) fn certificates<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut by_certificate: BTreeMap<Certificate<'_>, Vec<&'m AnalyzedObject>> = BTreeMap::new();
    for gateway in mesh.all(GATEWAY) {
        for certificate in certificates_of(gateway) {
            by_certificate.entry(certificate).or_default().push(gateway);
        }
    }
    for users in by_certificate.values() {
        for gateway in users {
            let selector = map(gateway.spec(), "selector");
            let others = users.iter().filter(|other| other.full_name() != gateway.full_name());
            for other in others.filter(|other| selector::matches(&selector, &map(other.spec(), "selector"))) {
                let text = format!(
                    "Gateways {} and {} have the same certificate; clients that reuse an HTTP/2 connection for both may get 404",
                    gateway.full_name(),
                    other.full_name()
                );
                report.add(&DUPLICATE_CERTIFICATE, gateway, "metadata.name", text);
            }
        }
    }
}

/// The certificate of a server.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
enum Certificate<'m> {
    Secret(&'m str),
    Files { certificate: &'m str, key: &'m str },
}

fn certificates_of(gateway: &AnalyzedObject) -> BTreeSet<Certificate<'_>> {
    let servers = items(gateway.spec(), "servers").iter();
    let found = servers.filter_map(|server| match text(server, "tls.credentialName") {
        "" => {
            let (certificate, key) = (text(server, "tls.serverCertificate"), text(server, "tls.privateKey"));
            (!certificate.is_empty() && !key.is_empty()).then_some(Certificate::Files { certificate, key })
        }
        name => Some(Certificate::Secret(name)),
    });
    found.collect()
}

/// Servers of different Gateways with the same workloads, port and host.
pub(crate) fn conflicts<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut by_port: HashMap<i64, Vec<(&'m AnalyzedObject, &'m Value)>> = HashMap::new();
    for gateway in mesh.all(GATEWAY) {
        for server in items(gateway.spec(), "servers") {
            if let Some(port) = number(server, "port.number") {
                by_port.entry(port).or_default().push((gateway, server));
            }
        }
    }
    for gateway in mesh.all(GATEWAY) {
        let selector = map(gateway.spec(), "selector");
        for (n, server) in items(gateway.spec(), "servers").iter().enumerate() {
            let Some(port) = number(server, "port.number") else { continue };
            let others = by_port.get(&port).into_iter().flatten();
            let conflicting: BTreeSet<String> = others
                .filter(|(other, theirs)| {
                    !std::ptr::eq(*other, *gateway)
                        && servers_overlap(server, theirs)
                        && have_common_pods(mesh, &selector, &map(other.spec(), "selector"))
                })
                .map(|(other, _)| other.full_name())
                .collect();
            if !conflicting.is_empty() {
                let text = format!(
                    "conflicts with Gateways {}: workloads {}, port {port} and hosts {} are the same",
                    super::join(&conflicting),
                    show(&selector),
                    texts(server, "hosts").join(",")
                );
                report.add(&CONFLICTING_GATEWAYS, gateway, format!("spec.servers[{n}]"), text);
            }
        }
    }
}

fn servers_overlap(one: &Value, other: &Value) -> bool {
    let others = texts(other, "hosts");
    text(one, "bind") == text(other, "bind") && texts(one, "hosts").iter().any(|host| others.contains(host))
}

fn have_common_pods(mesh: &MeshObjects<'_>, one: &Labels<'_>, other: &Labels<'_>) -> bool {
    if one == other {
        return true;
    }
    let is_part = one.iter().all(|(key, value)| other.get(key) == Some(value))
        || other.iter().all(|(key, value)| one.get(key) == Some(value));
    is_part && mesh.pods(one).iter().any(|pod| selector::matches(other, &pod.labels()))
}
