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
/// Listener of a waypoint that terminates HBONE.
pub(crate) const CONNECT_TERMINATE: &str = "connect_terminate";
/// Cluster and internal listener of a waypoint that dispatch connections to services and workloads.
pub(crate) const MAIN_INTERNAL: &str = "main_internal";
/// Cluster of a waypoint for connections to workloads: it leads to [`CONNECT_ORIGINATE`].
pub(crate) const ENCAP: &str = "encap";
/// Cluster and internal listener of an east-west gateway that forward the inner of two HBONE tunnels.
pub(crate) const FORWARD_INNER_CONNECT: &str = "forward_inner_connect";
/// Cluster and internal listener that make the inner of two HBONE tunnels to another network.
pub(crate) const INNER_CONNECT_ORIGINATE: &str = "inner_connect_originate";
/// Cluster and internal listener that make the outer of two HBONE tunnels to another network.
pub(crate) const OUTER_CONNECT_ORIGINATE: &str = "outer_connect_originate";

/// Cluster of a backend that a route of the Gateway API may not refer to. It does not exist, so that requests fail.
pub(crate) const UNKNOWN_SERVICE: &str = "UnknownService";

/// Outbound cluster of a service port.
#[must_use]
pub fn outbound_cluster(port: u32, subset: &str, host: &str) -> String {
    format!("outbound|{port}|{subset}|{host}")
}

/// Cluster of a UDP port of a service, at gateways with routes for datagrams. A TCP port may have the same number.
#[must_use]
pub fn udp_cluster(port: u32, host: &str) -> String {
    format!("outbound_udp|{port}||{host}")
}

/// Cluster of a service port at an AUTO_PASSTHROUGH gateway.
#[must_use]
pub fn sni_cluster(port: u32, subset: &str, host: &str) -> String {
    format!("outbound_.{port}_.{subset}_.{host}")
}

/// Cluster of a service port at the waypoint of the service. The subset is `tcp` or `http`, and `/SUBSET` if it is that
/// of a DestinationRule.
#[must_use]
pub fn inbound_vip_cluster(port: u32, subset: &str, host: &str) -> String {
    format!("inbound-vip|{port}|{subset}|{host}")
}

/// The subset in the name of a cluster of a waypoint: the protocol, and the subset of the rule if there is one.
#[must_use]
pub(crate) fn vip_subset(kind: &str, subset: &str) -> String {
    if subset.is_empty() { kind.to_owned() } else { format!("{kind}/{subset}") }
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

/// Listener for UDP, HTTP/3 or other datagrams, on an address and port.
#[must_use]
pub fn udp_listener(bind: &str, port: u32) -> String {
    format!("udp_{}", listener(bind, port))
}

/// A statistics prefix with its final delimiter.
#[must_use]
pub fn stat_prefix(prefix: &str) -> String {
    format!("{prefix};")
}
