//! The protocol of a port (S02).

use sluice_model::Protocol;

use crate::fields::one_of;

/// Ports of protocols in which the server sends first, so that protocol detection would time out. They are TCP unless the
/// port declares another protocol.
const SERVER_FIRST: [u16; 4] = [25, 53, 3306, 27017];

/// The protocols by name.
const NAMES: [(&str, Protocol); 12] = [
    ("HTTP", Protocol::Http),
    ("HTTPS", Protocol::Https),
    ("HTTP2", Protocol::Http2),
    ("HTTP_PROXY", Protocol::HttpProxy),
    ("GRPC", Protocol::Grpc),
    ("GRPC-WEB", Protocol::GrpcWeb),
    ("TCP", Protocol::Tcp),
    ("TLS", Protocol::Tls),
    ("UDP", Protocol::Udp),
    ("MONGO", Protocol::Mongo),
    ("REDIS", Protocol::Redis),
    ("MYSQL", Protocol::Mysql),
];

/// The protocol with this name, case-insensitive.
pub(crate) fn named(name: &str) -> Protocol {
    let found = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map_or(Protocol::Unsupported, |(_, protocol)| *protocol)
}

/// The name of a protocol. `None` if none is declared, and for HBONE, which no object can declare.
#[must_use]
pub fn protocol_name(protocol: Protocol) -> Option<&'static str> {
    NAMES.iter().find(|(_, known)| *known == protocol).map(|(name, _)| *name)
}

/// The reason why a name without a protocol is invalid.
pub(crate) fn unknown(name: &str) -> String {
    format!("`{name}` is not a protocol: expected {}", one_of(NAMES.iter().map(|(known, _)| *known)))
}

/// The protocol of a Kubernetes Service port: from the transport, then `appProtocol`, then the name up to its first `-`.
#[must_use]
pub fn service_port_protocol(port: u16, name: &str, transport: &str, app_protocol: Option<&str>) -> Protocol {
    if transport == "UDP" {
        return Protocol::Udp;
    }
    let declared = app_protocol.unwrap_or(name);
    match app_protocol {
        Some("kubernetes.io/h2c") => return Protocol::Http2,
        Some("kubernetes.io/ws") => return Protocol::Http,
        Some("kubernetes.io/wss") => return Protocol::Https,
        _ => {}
    }
    if declared.get(..8).is_some_and(|prefix| prefix.eq_ignore_ascii_case("grpc-web")) {
        return Protocol::GrpcWeb;
    }
    let protocol = named(declared.split('-').next().unwrap_or_default());
    if protocol == Protocol::Unsupported && SERVER_FIRST.contains(&port) { Protocol::Tcp } else { protocol }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_is_from_app_protocol_then_name_then_port() {
        let check = |port, name, transport, app, expected| {
            assert_eq!(
                service_port_protocol(port, name, transport, app),
                expected,
                "{port} {name} {transport} {app:?}"
            );
        };
        check(80, "http-web", "TCP", None, Protocol::Http);
        check(80, "HTTP", "TCP", None, Protocol::Http);
        check(80, "grpc-web-ui", "TCP", None, Protocol::GrpcWeb);
        check(80, "grpc-api", "TCP", None, Protocol::Grpc);
        check(80, "web", "TCP", None, Protocol::Unsupported);
        check(80, "", "TCP", None, Protocol::Unsupported);
        check(3306, "db", "TCP", None, Protocol::Tcp);
        check(3306, "http", "TCP", None, Protocol::Http);
        check(80, "http", "UDP", Some("http"), Protocol::Udp);
        check(80, "tcp", "TCP", Some("kubernetes.io/h2c"), Protocol::Http2);
        check(80, "tcp", "TCP", Some("kubernetes.io/wss"), Protocol::Https);
        check(80, "kubernetes.io/ws", "TCP", None, Protocol::Unsupported);
        check(80, "http", "TCP", Some("redis"), Protocol::Redis);
        check(80, "http", "TCP", Some("nonsense"), Protocol::Unsupported);
    }
}
