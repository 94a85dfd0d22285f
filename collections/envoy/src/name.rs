//! Names of clusters, listeners and routes (N01). They are wire facts: dashboards and EnvoyFilters know them.

/// Cluster that refuses everything.
pub const BLACK_HOLE: &str = "BlackHoleCluster";
/// Cluster that goes to the original destination.
pub const PASSTHROUGH: &str = "PassthroughCluster";
/// Cluster that hands unclaimed inbound traffic to the application.
pub const INBOUND_PASSTHROUGH: &str = "InboundPassthroughCluster";
/// Cluster, route and virtual host of unknown hosts that are resolved by DNS.
pub const ALLOW_ANY_DYNAMIC_DNS: &str = "allow_any_dynamic_dns";
/// Cluster of unknown hosts that are resolved by DNS.
pub const ALLOW_ANY_DYNAMIC_DNS_CLUSTER: &str = "AllowAnyDynamicDNSCluster";
/// Cluster of the SDS server on a proxy's credential socket.
pub const SDS_EXTERNAL_CLUSTER: &str = "sds-external";
/// Listener outbound traffic is redirected to.
pub const VIRTUAL_OUTBOUND: &str = "virtualOutbound";
/// Listener inbound traffic is redirected to.
pub const VIRTUAL_INBOUND: &str = "virtualInbound";
/// Route table of the HTTP proxy listener.
pub const HTTP_PROXY_ROUTE: &str = "http_proxy";

/// Cluster and internal listener that carry connections over HBONE.
pub const CONNECT_ORIGINATE: &str = "connect_originate";

/// Cluster of a service's port, as clients see it.
#[must_use]
pub fn outbound_cluster(port: u32, subset: &str, host: &str) -> String {
    format!("outbound|{port}|{subset}|{host}")
}

/// Cluster of a service's port behind a gateway that routes by server name.
#[must_use]
pub fn sni_cluster(port: u32, subset: &str, host: &str) -> String {
    format!("outbound_.{port}_.{subset}_.{host}")
}

/// Cluster of a port of the proxy's own application.
#[must_use]
pub fn inbound_cluster(port: u32) -> String {
    format!("inbound|{port}||")
}

/// Listener on an address (an IP or `unix://` path) and port.
#[must_use]
pub fn listener(bind: &str, port: u32) -> String {
    format!("{bind}_{port}")
}

/// Listener for HTTP/3 on an address and port.
#[must_use]
pub fn quic_listener(bind: &str, port: u32) -> String {
    format!("udp_{}", listener(bind, port))
}

/// A prefix of statistics with the delimiter that ends it.
#[must_use]
pub fn stat_prefix(prefix: &str) -> String {
    format!("{prefix};")
}
