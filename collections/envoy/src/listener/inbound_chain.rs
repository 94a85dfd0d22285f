//! Filter chains of an inbound port, by mutual TLS mode and detected protocol (N34).

use super::chain::{RAW_BUFFER, TLS};
use super::mtls::MtlsMode;
use super::protocol_detection::{PortProtocol, plain_http};
use crate::alpn::{ISTIO, ISTIO_H2, ISTIO_HTTP_1_0, ISTIO_HTTP_1_1, PEER_EXCHANGE};
use crate::listener_settings::ListenerSwitches;

/// Match of a filter chain for a kind of inbound traffic.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TransportMatch {
    /// ALPN names that the client must offer; empty for any.
    pub(super) names: &'static [&'static str],
    /// Whether the traffic is TLS.
    pub(super) transport: &'static str,
    /// Whether the traffic is routed as HTTP.
    pub(super) http: bool,
    /// Whether the listener terminates TLS.
    pub(super) terminate: bool,
}

const MESH_HTTP: &[&str] = &[ISTIO_HTTP_1_0, ISTIO_HTTP_1_1, ISTIO_H2];
const MESH_TCP: &[&str] = &[PEER_EXCHANGE, ISTIO];
/// All ALPN names of clients in the mesh.
pub(super) const MESH_ALL: &[&str] = &[ISTIO, PEER_EXCHANGE, ISTIO_HTTP_1_0, ISTIO_HTTP_1_1, ISTIO_H2];
const ANY: &[&str] = &[];

const fn mesh(names: &'static [&'static str], http: bool) -> TransportMatch {
    TransportMatch { names, transport: TLS, http, terminate: true }
}

const fn plain(names: &'static [&'static str], http: bool) -> TransportMatch {
    TransportMatch { names, transport: RAW_BUFFER, http, terminate: false }
}

/// TLS that the application terminates.
const OPAQUE_TLS: TransportMatch = TransportMatch { names: ANY, transport: TLS, http: false, terminate: false };

const PERMISSIVE_HTTP: &[TransportMatch] = &[mesh(MESH_ALL, true), plain(ANY, true)];
const PERMISSIVE_TCP: &[TransportMatch] = &[mesh(MESH_ALL, false), OPAQUE_TLS, plain(ANY, false)];
const STRICT_AUTO: &[TransportMatch] = &[mesh(MESH_HTTP, true), mesh(ANY, false)];
const STRICT_HTTP: &[TransportMatch] = &[mesh(ANY, true)];
const STRICT_TCP: &[TransportMatch] = &[mesh(ANY, false)];
const DISABLED_HTTP: &[TransportMatch] = &[plain(ANY, true)];
const DISABLED_TCP: &[TransportMatch] = &[plain(ANY, false)];

/// TLS that the Sidecar of the workload declares.
pub(super) fn declared_tls(kind: PortProtocol) -> Vec<TransportMatch> {
    vec![mesh(ANY, kind == PortProtocol::Http)]
}

/// The chain matches of a port by mode and protocol.
pub(super) fn transport_matches(mode: MtlsMode, kind: PortProtocol, switches: ListenerSwitches) -> Vec<TransportMatch> {
    let sniffed = plain(plain_http(switches), true);
    let transport_matches = match (mode, kind) {
        (MtlsMode::Permissive, PortProtocol::Auto) => {
            return vec![mesh(MESH_HTTP, true), sniffed, mesh(MESH_TCP, false), plain(ANY, false), OPAQUE_TLS];
        }
        (MtlsMode::Permissive, PortProtocol::Http) => PERMISSIVE_HTTP,
        (MtlsMode::Permissive, PortProtocol::Tcp) => PERMISSIVE_TCP,
        (MtlsMode::Strict, PortProtocol::Auto) => STRICT_AUTO,
        (MtlsMode::Strict, PortProtocol::Http) => STRICT_HTTP,
        (MtlsMode::Strict, PortProtocol::Tcp) => STRICT_TCP,
        (MtlsMode::Disable, PortProtocol::Auto) => return vec![sniffed, plain(ANY, false)],
        (MtlsMode::Disable, PortProtocol::Http) => DISABLED_HTTP,
        (MtlsMode::Disable, PortProtocol::Tcp) => DISABLED_TCP,
    };
    transport_matches.to_vec()
}
