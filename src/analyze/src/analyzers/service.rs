//! Names of the ports of Services (IST0118, IST0150).

use serde_json::Value;

use crate::codes::{EXTERNAL_NAME_PORT, PORT_NAME_CONVENTION};
use crate::resource::SERVICE;
use crate::value::{at, items, number, text};
use crate::{MeshObjects, MessageList};

/// Protocols that the name of a port can begin with.
const PROTOCOLS: [&str; 13] = [
    "tcp",
    "udp",
    "grpc",
    "grpc-web",
    "http",
    "http_proxy",
    "http2",
    "https",
    "tls",
    "mongo",
    "redis",
    "mysql",
    "hbone",
];

/// Ports where servers often speak first, so that detection of the protocol is not used.
const TCP_PORTS: [i64; 4] = [25, 53, 3306, 27017];

/// Controllers whose Services are generated.
const CONTROLLERS: [&str; 3] =
    ["istio.io-gateway-controller", "istio.io-mesh-controller", "istio.io-eastwest-controller"];

pub(crate) fn port_names<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for service in mesh.all(SERVICE) {
        let controller = service.label("gateway.istio.io/managed").unwrap_or_default();
        if super::is_control_plane(service) || CONTROLLERS.contains(&controller) {
            continue;
        }
        let is_external_name = text(service.spec(), "type") == "ExternalName";
        for (n, port) in items(service.spec(), "ports").iter().enumerate() {
            let name = text(port, "name");
            let field = format!("spec.ports[{n}]");
            if has_protocol(port) && !(is_external_name && name == "tcp") {
                continue;
            }
            if is_external_name {
                let text = format!(
                    "port name {name:?} of a Service of type ExternalName makes it a TCP port, which may take traffic of other hosts; name the protocol"
                );
                report.add(&EXTERNAL_NAME_PORT, service, field, text);
            } else {
                let target = match at(port, "targetPort") {
                    Value::Null => "none".to_owned(),
                    target => target.as_str().map_or_else(|| target.to_string(), str::to_owned),
                };
                let text = format!(
                    "name {name:?} of port {} (targetPort {target}) does not begin with a protocol, which is then detected",
                    number(port, "port").unwrap_or_default()
                );
                report.add(&PORT_NAME_CONVENTION, service, field, text);
            }
        }
    }
}

/// Whether the port has a protocol by its transport, `appProtocol`, name or number.
fn has_protocol(port: &Value) -> bool {
    let app_protocol = at(port, "appProtocol").as_str();
    let name = app_protocol.unwrap_or_else(|| text(port, "name")).to_ascii_lowercase();
    let is_of_kubernetes = app_protocol
        .is_some_and(|_| matches!(name.as_str(), "kubernetes.io/h2c" | "kubernetes.io/ws" | "kubernetes.io/wss"));
    text(port, "protocol") == "UDP"
        || is_of_kubernetes
        || name.starts_with("grpc-web")
        || PROTOCOLS.contains(&name.split('-').next().unwrap_or_default())
        || number(port, "port").is_some_and(|number| TCP_PORTS.contains(&number))
}
