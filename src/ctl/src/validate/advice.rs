//! Advice about objects of Kubernetes: names of the ports of Services, and labels of Deployments.

use serde_json::Value;
use sluice_model::{Protocol, Severity};
use sluice_parse::service_port_protocol;

use super::{RuleFinding, finding};
use crate::answer_output::{list, text};

/// The labels of which one names the service of a workload in telemetry.
const NAME_LABELS: [&str; 3] = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];
/// The labels of which one names its revision.
const REVISION_LABELS: [&str; 3] = ["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"];

/// Ports whose protocol is not stated.
pub(super) fn of_service(service: &Value) -> Vec<RuleFinding> {
    let unstated = |port: &Value| {
        let number = port["port"].as_u64().and_then(|number| u16::try_from(number).ok()).unwrap_or_default();
        let protocol =
            service_port_protocol(number, text(port, "name"), text(port, "protocol"), port["appProtocol"].as_str());
        protocol == Protocol::Unsupported
    };
    let ports = list(&service["spec"], "ports").iter().enumerate().filter(|(_, port)| unstated(port));
    let note = |(n, port): (usize, &Value)| {
        let stated = match (port["appProtocol"].as_str(), text(port, "name")) {
            (Some(protocol), _) => format!("appProtocol {protocol:?} is no protocol that the mesh knows"),
            (None, "") => "the port has neither appProtocol nor a name".to_owned(),
            (None, name) => format!("name {name:?} does not begin with a protocol"),
        };
        let reason = format!("{stated}; the protocol of each connection is detected");
        finding(&format!("spec.ports[{n}]"), &reason, Severity::Warning)
    };
    ports.map(note).collect()
}

/// A pod template without the labels by which telemetry names a workload.
pub(super) fn of_deployment(deployment: &Value) -> Vec<RuleFinding> {
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let lacks = |names: &[&str]| names.iter().all(|name| labels[*name].is_null());
    let missing = [NAME_LABELS, REVISION_LABELS].into_iter().filter(|names| lacks(names));
    let note = |names: [&str; 3]| {
        let reason = format!("none of the labels {} is set, which telemetry reports", names.join(", "));
        finding("spec.template.metadata.labels", &reason, Severity::Warning)
    };
    missing.map(note).collect()
}
