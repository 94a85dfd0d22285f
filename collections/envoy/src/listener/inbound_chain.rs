//! The filter chains of an inbound port: by mutual TLS and by what the first bytes tell (N34).

use super::chain::{RAW_BUFFER, TLS};
use super::mtls::MtlsMode;
use super::outbound::{Kind, plain_http};
use super::settings::ListenerSwitches;

/// One way traffic may arrive at a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Arrival {
    /// Protocol names a client must offer; empty is any.
    pub(super) names: &'static [&'static str],
    /// TLS or not.
    pub(super) transport: &'static str,
    /// It is routed as HTTP.
    pub(super) http: bool,
    /// TLS ends here.
    pub(super) terminate: bool,
}

const MESH_HTTP: &[&str] = &["istio-http/1.0", "istio-http/1.1", "istio-h2"];
const MESH_TCP: &[&str] = &["istio-peer-exchange", "istio"];
/// All that clients of the mesh offer.
pub(super) const MESH_ALL: &[&str] = &["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"];
const ANY: &[&str] = &[];

const fn mesh(names: &'static [&'static str], http: bool) -> Arrival {
    Arrival { names, transport: TLS, http, terminate: true }
}

const fn plain(names: &'static [&'static str], http: bool) -> Arrival {
    Arrival { names, transport: RAW_BUFFER, http, terminate: false }
}

/// TLS of the application's own.
const OPAQUE_TLS: Arrival = Arrival { names: ANY, transport: TLS, http: false, terminate: false };

const PERMISSIVE_HTTP: &[Arrival] = &[mesh(MESH_ALL, true), plain(ANY, true)];
const PERMISSIVE_TCP: &[Arrival] = &[mesh(MESH_ALL, false), OPAQUE_TLS, plain(ANY, false)];
const STRICT_AUTO: &[Arrival] = &[mesh(MESH_HTTP, true), mesh(ANY, false)];
const STRICT_HTTP: &[Arrival] = &[mesh(ANY, true)];
const STRICT_TCP: &[Arrival] = &[mesh(ANY, false)];
const DISABLED_HTTP: &[Arrival] = &[plain(ANY, true)];
const DISABLED_TCP: &[Arrival] = &[plain(ANY, false)];

/// TLS that the workload's Sidecar asks for.
pub(super) fn declared_tls(kind: Kind) -> Vec<Arrival> {
    vec![mesh(ANY, kind == Kind::Http)]
}

/// The ways traffic may arrive at a port of that kind.
pub(super) fn arrivals(mode: MtlsMode, kind: Kind, switches: ListenerSwitches) -> Vec<Arrival> {
    let sniffed = plain(plain_http(switches), true);
    let arrivals = match (mode, kind) {
        (MtlsMode::Permissive, Kind::Auto) => {
            return vec![mesh(MESH_HTTP, true), sniffed, mesh(MESH_TCP, false), plain(ANY, false), OPAQUE_TLS];
        }
        (MtlsMode::Permissive, Kind::Http) => PERMISSIVE_HTTP,
        (MtlsMode::Permissive, Kind::Tcp) => PERMISSIVE_TCP,
        (MtlsMode::Strict, Kind::Auto) => STRICT_AUTO,
        (MtlsMode::Strict, Kind::Http) => STRICT_HTTP,
        (MtlsMode::Strict, Kind::Tcp) => STRICT_TCP,
        (MtlsMode::Disable, Kind::Auto) => return vec![sniffed, plain(ANY, false)],
        (MtlsMode::Disable, Kind::Http) => DISABLED_HTTP,
        (MtlsMode::Disable, Kind::Tcp) => DISABLED_TCP,
    };
    arrivals.to_vec()
}
