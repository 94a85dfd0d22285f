//! Deployments: their Services and the user of their containers (IST0116, IST0137, IST0144).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::codes::{DEPLOYMENT_CONFLICTING_PORTS, DEPLOYMENT_CONFLICTING_PROTOCOLS, INVALID_APPLICATION_UID};
use crate::resource::{DEPLOYMENT, POD};
use crate::value::{at, items, map, number, text};
use crate::{AnalyzedObject, MeshObjects, MessageList};

/// User ID of the sidecar, whose traffic is not redirected.
const SIDECAR_UID: i64 = 1337;

/// Containers of Istio itself.
const OWN_CONTAINERS: [&str; 2] = ["istio-proxy", "istio-operator"];

pub(crate) fn application_uid<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for (kind, path) in [(POD, "spec"), (DEPLOYMENT, "spec.template.spec")] {
        for resource in mesh.all(kind).iter().filter(|resource| !super::is_control_plane(resource)) {
            let spec = at(&resource.value, path);
            let uid = |value: &Value| number(value, "securityContext.runAsUser") == Some(SIDECAR_UID);
            let mut fields = Vec::new();
            if uid(spec) {
                fields.push(format!("{path}.securityContext.runAsUser"));
            }
            for (n, container) in items(spec, "containers").iter().enumerate() {
                if uid(container) && !OWN_CONTAINERS.contains(&text(container, "name")) {
                    fields.push(format!("{path}.containers[{n}].securityContext.runAsUser"));
                }
            }
            for field in fields {
                let text = format!(
                    "user ID {SIDECAR_UID} is the one of the sidecar: traffic of the application is not redirected to it"
                );
                report.add(&INVALID_APPLICATION_UID, resource, field, text);
            }
        }
    }
}

/// Deployments whose Services disagree about a port.
pub(crate) fn services<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for deployment in mesh.all(DEPLOYMENT) {
        let is_waypoint = deployment.label("gateway.istio.io/managed") == Some("istio.io-mesh-controller");
        if is_waypoint || !mesh.pods_have_sidecar(deployment) {
            continue;
        }
        let labels = map(deployment.spec(), "template.metadata.labels");
        let services = mesh.services_of(deployment.namespace(), &labels);
        protocols(deployment, &services, report);
        target_ports(deployment, &services, report);
    }
}

fn protocols<'m>(deployment: &'m AnalyzedObject, services: &[&AnalyzedObject], report: &mut MessageList<'m>) {
    let mut by_port: BTreeMap<i64, (BTreeSet<&str>, BTreeSet<String>)> = BTreeMap::new();
    for service in services {
        for port in items(service.spec(), "ports") {
            let Some(number) = number(port, "port") else { continue };
            let protocol = if text(port, "protocol").is_empty() { "TCP" } else { text(port, "protocol") };
            let (protocols, names) = by_port.entry(number).or_default();
            protocols.insert(protocol);
            names.insert(service.full_name());
        }
    }
    for (port, (_, names)) in by_port.into_iter().filter(|(_, (protocols, _))| protocols.len() > 1) {
        let text = format!(
            "Deployment {} has Services with different protocols of port {port}: {}",
            deployment.name(),
            super::join(&names)
        );
        report.add(&DEPLOYMENT_CONFLICTING_PROTOCOLS, deployment, "metadata.name", text);
    }
}

fn target_ports<'m>(deployment: &'m AnalyzedObject, services: &[&AnalyzedObject], report: &mut MessageList<'m>) {
    let mut by_target: BTreeMap<String, BTreeMap<i64, String>> = BTreeMap::new();
    for service in services {
        for port in items(service.spec(), "ports") {
            let Some(number) = number(port, "port") else { continue };
            let target = match at(port, "targetPort") {
                Value::String(name) if !name.is_empty() => name.clone(),
                Value::Number(target) if target.as_i64() != Some(0) => target.to_string(),
                _ => number.to_string(),
            };
            by_target.entry(target).or_default().insert(number, service.full_name());
        }
    }
    for (target, ports) in by_target.into_iter().filter(|(_, ports)| ports.len() > 1) {
        let numbers: Vec<String> = ports.keys().map(i64::to_string).collect();
        let text = format!(
            "Deployment {} has Services {} with target port {target} and different ports: {}",
            deployment.name(),
            super::join(&ports.into_values().collect()),
            numbers.join(", ")
        );
        report.add(&DEPLOYMENT_CONFLICTING_PORTS, deployment, "metadata.name", text);
    }
}
