//! Names of the ports of Services (IST0118, IST0150).

use serde_json::Value;
use sluice_model::Protocol;
use sluice_parse::service_port_protocol;

use crate::codes::{EXTERNAL_NAME_PORT, PORT_NAME_CONVENTION};
use crate::resource::SERVICE;
use crate::value::{at, items, number, text};
use crate::{MeshObjects, MessageList};

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
    let number = number(port, "port").and_then(|number| u16::try_from(number).ok()).unwrap_or_default();
    let app_protocol = at(port, "appProtocol").as_str();
    service_port_protocol(number, text(port, "name"), text(port, "protocol"), app_protocol) != Protocol::Unsupported
}
