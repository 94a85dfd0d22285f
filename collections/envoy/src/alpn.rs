//! ALPN names by which proxies recognize traffic of the mesh (N11, N34).

/// TCP with metadata exchange.
pub(crate) const PEER_EXCHANGE: &str = "istio-peer-exchange";
/// Any protocol.
pub(crate) const ISTIO: &str = "istio";
/// HTTP/1.0.
pub(crate) const ISTIO_HTTP_1_0: &str = "istio-http/1.0";
/// HTTP/1.1.
pub(crate) const ISTIO_HTTP_1_1: &str = "istio-http/1.1";
/// HTTP/2.
pub(crate) const ISTIO_H2: &str = "istio-h2";
