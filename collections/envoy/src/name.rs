//! Names of clusters, listeners and routes (N01). Dashboards and EnvoyFilters depend on them.

pub(crate) use sluice_model::{VIRTUAL_INBOUND, VIRTUAL_OUTBOUND};

/// Cluster that blocks traffic.
pub(crate) const BLACK_HOLE: &str = "BlackHoleCluster";
/// Cluster for the original destination of outbound traffic.
pub const PASSTHROUGH: &str = "PassthroughCluster";
/// Cluster for the original destination of inbound traffic.
pub(crate) const INBOUND_PASSTHROUGH: &str = "InboundPassthroughCluster";
/// Route table, virtual host and route of unknown hosts that are resolved by DNS.
pub(crate) const ALLOW_ANY_DYNAMIC_DNS: &str = "allow_any_dynamic_dns";
/// Cluster of unknown hosts that are resolved by DNS.
pub(crate) const ALLOW_ANY_DYNAMIC_DNS_CLUSTER: &str = "AllowAnyDynamicDNSCluster";
/// Cluster of the SDS server on the credential socket of a proxy.
pub(crate) const SDS_EXTERNAL_CLUSTER: &str = "sds-external";
/// Route table of the HTTP proxy listener, which has the hosts of all ports.
pub const HTTP_PROXY_ROUTES: &str = "http_proxy";

/// Cluster and internal listener that tunnel connections over HBONE.
pub(crate) const CONNECT_ORIGINATE: &str = "connect_originate";

/// Cluster of a backend that a route of the Gateway API may not refer to. It does not exist, so that requests fail.
pub(crate) const UNKNOWN_SERVICE: &str = "UnknownService";

/// Outbound cluster of a service port.
#[must_use]
pub fn outbound_cluster(port: u32, subset: &str, host: &str) -> String {
    format!("outbound|{port}|{subset}|{host}")
}

/// Cluster of a service port at an AUTO_PASSTHROUGH gateway.
#[must_use]
pub fn sni_cluster(port: u32, subset: &str, host: &str) -> String {
    format!("outbound_.{port}_.{subset}_.{host}")
}

/// Inbound cluster of a workload port.
#[must_use]
pub(crate) fn inbound_cluster(port: u32) -> String {
    format!("inbound|{port}||")
}

/// Listener on an address (an IP address or `unix://` path) and port.
#[must_use]
pub fn listener(bind: &str, port: u32) -> String {
    format!("{bind}_{port}")
}

/// Listener for HTTP/3 on an address and port.
#[must_use]
pub fn quic_listener(bind: &str, port: u32) -> String {
    format!("udp_{}", listener(bind, port))
}

/// A statistics prefix with its final delimiter.
#[must_use]
pub fn stat_prefix(prefix: &str) -> String {
    format!("{prefix};")
}
