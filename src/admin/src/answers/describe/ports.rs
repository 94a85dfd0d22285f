//! Ports of pods and services, and how their protocol is selected.

use serde::Serialize;
use sluice_model::{Pod, Protocol, Service, ServicePort, Text};

use crate::services::protocol;

/// A port of a container.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PodPort {
    port: u16,
    protocol: Text,
    name: Text,
}

/// A port of a service.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PortDescription {
    port: u16,
    name: Text,
    /// The protocol of S02; `auto-detect` if none is declared.
    protocol: &'static str,
    /// Port of the pod, if the pod has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_port: Option<u16>,
    /// The target as declared.
    target: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

/// The ports of a pod.
pub(super) fn of_pod(pod: &Pod) -> Vec<PodPort> {
    let port = |(name, port, protocol): &(Text, u16, Text)| PodPort {
        port: *port,
        protocol: protocol.clone(),
        name: name.clone(),
    };
    pod.ports.iter().map(port).collect()
}

/// The ports of a service, with their targets in a pod.
pub(super) fn of_service(service: &Service, pod: Option<&Pod>) -> Vec<PortDescription> {
    service.ports.iter().map(|port| describe(port, pod)).collect()
}

fn describe(port: &ServicePort, pod: Option<&Pod>) -> PortDescription {
    let target_port = pod.and_then(|pod| target_port(port, pod));
    let lost = pod.filter(|_| target_port.is_none());
    let warning = match (lost, port.protocol) {
        (Some(pod), _) => Some(format!(
            "no container port of pod {} has the name {}, so the pod is no endpoint of the port",
            pod.name, port.target_port
        )),
        (None, Protocol::Unsupported) => Some(
            "neither its name nor appProtocol declares a protocol: it is detected for each connection, which takes effort and fails for protocols in which the server speaks first"
                .to_owned(),
        ),
        (None, Protocol::Udp) => Some("UDP is not proxied".to_owned()),
        (None, _) => None,
    };
    PortDescription {
        port: port.port,
        name: port.name.clone(),
        protocol: if port.protocol.is_unsupported() { "auto-detect" } else { protocol(port.protocol) },
        target_port,
        target: port.target_port.clone(),
        warning,
    }
}

/// The port of a pod that serves a port of its service.
pub(crate) fn target_port(port: &ServicePort, pod: &Pod) -> Option<u16> {
    match port.target_port.as_str() {
        "" => Some(port.port),
        text => text.parse().ok().or_else(|| {
            let named = pod.ports.iter().find(|(name, _, transport)| *name == *text && *transport == *"TCP");
            named.map(|(_, number, _)| *number)
        }),
    }
}
