//! Protocols of ports, and the ALPN names by which HTTP is detected (N06).

use serde::Serialize;
use sluice_model::Protocol;

use crate::listener_settings::ListenerSwitches;

/// How the protocol of a port is determined.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum PortProtocol {
    /// Declared as HTTP.
    Http,
    /// Declared as TCP.
    Tcp,
    /// Detected from the first bytes.
    Auto,
}

/// How a protocol is handled; `None` if it is not proxied.
#[must_use]
pub fn port_protocol(protocol: Protocol) -> Option<PortProtocol> {
    match protocol {
        Protocol::Unsupported => Some(PortProtocol::Auto),
        Protocol::Udp | Protocol::Hbone => None,
        http if http.is_http() => Some(PortProtocol::Http),
        _ => Some(PortProtocol::Tcp),
    }
}

/// ALPN names of HTTP as the HTTP inspector sets them. HTTP/1.0 is included only if it is accepted (N06).
///
/// The HTTP/1.0 setting of a single proxy is not considered: it does not change what other proxies detect as HTTP.
pub(super) fn plain_http(switches: ListenerSwitches) -> &'static [&'static str] {
    const ALL: &[&str] = &["http/1.0", "http/1.1", "h2c"];
    if switches.http10 { ALL } else { &ALL[1..] }
}
