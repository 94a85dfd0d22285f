//! Destinations of VirtualServices (IST0101, IST0112, IST0140).

use std::collections::HashMap;

use serde_json::Value;

use crate::codes::{DESTINATION_PORT_REQUIRED, REFERENCED_RESOURCE_NOT_FOUND, ROUTE_RULES_WITHOUT_EFFECT};
use crate::resource::{DESTINATION_RULE, VIRTUAL_SERVICE};
use crate::value::{at, has, items, number, text, texts};
use crate::{AnalyzedObject, MeshObjects, MessageList};

use super::hosts::{Hosts, short_name};

/// A destination of a route or of a mirror.
struct Destination<'v> {
    value: &'v Value,
    field: String,
    is_mirror: bool,
}

fn destinations(spec: &Value) -> Vec<Destination<'_>> {
    let mut found = Vec::new();
    for protocol in ["tcp", "tls", "http"] {
        for (n, rule) in items(spec, protocol).iter().enumerate() {
            for (of, route) in items(rule, "route").iter().enumerate() {
                let field = format!("spec.{protocol}[{n}].route[{of}].destination");
                found.push(Destination { value: at(route, "destination"), field, is_mirror: false });
            }
            if protocol == "http" {
                mirrors(rule, n, &mut found);
            }
        }
    }
    found
}

fn mirrors<'v>(rule: &'v Value, n: usize, found: &mut Vec<Destination<'v>>) {
    if has(rule, "mirror") {
        found.push(Destination { value: at(rule, "mirror"), field: format!("spec.http[{n}].mirror"), is_mirror: true });
    }
    for (of, mirror) in items(rule, "mirrors").iter().enumerate() {
        let field = format!("spec.http[{n}].mirrors[{of}].destination");
        found.push(Destination { value: at(mirror, "destination"), field, is_mirror: true });
    }
}

/// Hosts and ports that do not exist, ports that are ambiguous, and subsets that have no effect.
pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    hosts(mesh, report);
    gateway_subsets(mesh, report);
}

fn hosts<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let hosts = Hosts::new(mesh);
    for vs in mesh.all(VIRTUAL_SERVICE) {
        let export_to = texts(vs.spec(), "exportTo");
        for destination in destinations(vs.spec()) {
            let host = text(destination.value, "host");
            let field = format!("{}.host", destination.field);
            let Some(service) = hosts.find(vs.namespace(), &export_to, host) else {
                let what = if destination.is_mirror { "mirror host" } else { "host" };
                report.add(&REFERENCED_RESOURCE_NOT_FOUND, vs, field, super::not_found(what, host));
                continue;
            };
            let ports = service.ports();
            if has(destination.value, "port") {
                let port = number(destination.value, "port.number").unwrap_or_default();
                if !ports.contains(&port) {
                    let reference = format!("{host}:{port}");
                    report.add(&REFERENCED_RESOURCE_NOT_FOUND, vs, field, super::not_found("host:port", &reference));
                }
            } else if ports.len() > 1 {
                let text =
                    format!("service {host:?} has several ports {ports:?}; the destination has to name one of them");
                report.add(&DESTINATION_PORT_REQUIRED, vs, field, text);
            }
        }
    }
}

/// Subsets that no DestinationRule defines.
pub(crate) fn subsets<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut known: HashMap<(&str, &str), Vec<&str>> = HashMap::new();
    for rule in mesh.all(DESTINATION_RULE) {
        let host = short_name(rule.namespace(), text(rule.spec(), "host"));
        let names = items(rule.spec(), "subsets").iter().map(|subset| text(subset, "name"));
        known.entry(host).or_default().extend(names);
    }
    for vs in mesh.all(VIRTUAL_SERVICE) {
        for destination in destinations(vs.spec()) {
            let (host, subset) = (text(destination.value, "host"), text(destination.value, "subset"));
            let names = known.get(&short_name(vs.namespace(), host));
            if subset.is_empty() || names.is_some_and(|names| names.contains(&subset)) {
                continue;
            }
            let what = if destination.is_mirror { "mirror" } else { "host" };
            let text = super::not_found(&format!("{what}+subset in destinationrule"), &format!("{host}+{subset}"));
            report.add(&REFERENCED_RESOURCE_NOT_FOUND, vs, format!("{}.host", destination.field), text);
        }
    }
}

/// Rules of a gateway's VirtualService whose host is split into subsets by a VirtualService of that host: the latter applies
/// to clients in the mesh and not to the gateway.
fn gateway_subsets<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut split: HashMap<&str, Vec<&AnalyzedObject>> = HashMap::new();
    for vs in mesh.all(VIRTUAL_SERVICE) {
        let own = texts(vs.spec(), "hosts");
        for rule in items(vs.spec(), "http") {
            for route in items(rule, "route") {
                let host = text(route, "destination.host");
                if !text(route, "destination.subset").is_empty() && own.contains(&host) {
                    split.entry(host).or_default().push(vs);
                }
            }
        }
    }
    for vs in mesh.all(VIRTUAL_SERVICE) {
        if items(vs.spec(), "gateways").is_empty() {
            continue;
        }
        for destination in destinations(vs.spec()) {
            let is_http_route = destination.field.starts_with("spec.http") && !destination.is_mirror;
            if !is_http_route || !text(destination.value, "subset").is_empty() {
                continue;
            }
            for other in split.get(text(destination.value, "host")).into_iter().flatten() {
                let text = format!(
                    "the subsets that VirtualService {} routes to have no effect on requests through the gateways of {}",
                    other.full_name(),
                    vs.full_name()
                );
                report.add(&ROUTE_RULES_WITHOUT_EFFECT, vs, format!("{}.host", destination.field), text);
            }
        }
    }
}
