//! A connected proxy: the facts of its node message, and what the registry adds.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Identity, Labels, Locality, OutboundTraffic, ProxyConfig, SidecarScope, Text};

/// Maximum number of values in the metadata of a node, nested ones included: what is built from an empty value is much larger than
/// its bytes.
pub const MAX_NODE_VALUES: usize = 8192;

/// Key of a proxy: its node id. Two streams with the same id belong to one proxy.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ProxyKey(pub Text);

/// First part of the node id (X04).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyType {
    /// Beside an application.
    #[default]
    Sidecar,
    /// A gateway.
    Router,
    /// A waypoint of ambient mode.
    Waypoint,
    /// The node proxy of ambient mode.
    Ztunnel,
    /// An agentgateway, which serves one Gateway of the Gateway API. It has no Envoy.
    Agentgateway,
}

impl ProxyType {
    /// Whether it is a gateway or a waypoint.
    #[must_use]
    pub fn is_router_or_waypoint(self) -> bool {
        matches!(self, Self::Router | Self::Waypoint)
    }
}

/// How traffic is redirected to a sidecar.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum InterceptionMode {
    /// iptables REDIRECT.
    #[default]
    Redirect,
    /// iptables TPROXY.
    Tproxy,
    /// Not intercepted.
    None,
}

/// Address families of a proxy, from its instance addresses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum IpFamilies {
    /// IPv4 only, or unknown.
    #[default]
    V4,
    /// IPv6 only.
    V6,
    /// Both; IPv4 first unless the primary address is IPv6.
    Dual,
}

/// The Envoy extensions that a node lists, of those in [`EnvoyExtensions::READ`]. A node without a list is assumed to have
/// all extensions.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct EnvoyExtensions(pub Option<BTreeSet<Text>>);

impl EnvoyExtensions {
    /// The extensions that configuration depends on. An Envoy lists hundreds of others, which are not kept.
    pub const READ: [&str; 7] = [
        "istio.alpn",
        "istio.stats",
        "istio.metadata_exchange",
        "istio.metadata_exchange.http",
        "istio.metadata_exchange.network",
        "envoy.filters.http.peer_metadata",
        "envoy.filters.network.metadata_exchange",
    ];

    /// Whether the proxy has the extension of that name, one of [`EnvoyExtensions::READ`].
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        debug_assert!(Self::READ.contains(&name), "{name} is not kept");
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }
}

/// The cluster or network of a proxy without endpoints and services. All such proxies are sent the same.
pub const UNKNOWN_LOCATION: &str = "\u{0}unknown";

/// The cluster and network that the shared resources of a proxy are built for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ClientLocation {
    /// Its cluster, or [`UNKNOWN_LOCATION`].
    pub cluster: Text,
    /// Its network, or [`UNKNOWN_LOCATION`].
    pub network: Text,
}

/// The effect of the Sidecar of a proxy, without the hosts it imports.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ProxySidecar {
    /// The Sidecar.
    pub scope: SidecarScope,
    /// It limits the hosts that the proxy sees. Otherwise the proxy sees the same as others of its namespace.
    pub limits: bool,
    /// It declares inbound listeners, which replace those derived from services.
    pub ingress: bool,
    /// It configures inbound traffic.
    pub inbound: bool,
    /// Its inbound configuration depends on the addresses of the proxy.
    pub own_address: bool,
    /// The policy for traffic to unknown hosts, if it differs from that of the mesh.
    pub outbound: Option<OutboundTraffic>,
}

/// Hashes of what a proxy states about itself and that the resources it shares with others are built for. Each distinct
/// value may add a copy of what its clients see of the mesh.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub struct ClientProfile {
    /// Its properties besides its location.
    pub properties: [u64; 2],
    /// Its cluster, network and locality, and the networks that it sees.
    pub location: [u64; 2],
}

/// How a proxy sends to endpoints of other networks than its own.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum OtherNetworks {
    /// By mutual TLS through gateways that select the service by server name.
    #[default]
    MutualTls,
    /// By two HBONE tunnels, one in the other, through east-west gateways of ambient mode.
    Tunnels,
    /// Not at all.
    Unreachable,
}

/// A connected proxy (X04, X05).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Proxy {
    /// Node id as received.
    pub id: Text,
    /// `cluster` of the node as received: the service name in traces.
    pub service_cluster: Text,
    /// Its type.
    pub proxy_type: ProxyType,
    /// Its addresses: `INSTANCE_IPS`, or else the address in its id.
    pub ips: Vec<Text>,
    /// Families of these addresses.
    pub ip_families: IpFamilies,
    /// Pod name.
    pub name: Text,
    /// Namespace whose configuration it gets.
    pub namespace: Text,
    /// DNS domain of its id, such as `orchard.svc.cluster.local`.
    pub dns_domain: Text,
    /// Labels of its workload.
    pub labels: Labels,
    /// Labels that are set for it apart from those of its pod (`STATIC_LABELS`), which take precedence. Set in its metadata only.
    #[serde(default)]
    pub static_labels: Labels,
    /// Those annotations of its workload that builders read.
    pub annotations: Labels,
    /// Cluster it runs in, as its node states.
    pub cluster: Text,
    /// Cluster that has authenticated it, if its credentials prove that.
    pub proven_cluster: Option<Text>,
    /// Network it is on.
    pub network: Text,
    /// Networks whose endpoints it is sent; empty is all.
    pub network_view: Vec<Text>,
    /// Node it runs on.
    pub node_name: Text,
    /// Workload name.
    pub workload_name: Text,
    /// Service account.
    pub service_account: Text,
    /// The authenticated identity of its stream, if it is authenticated. It has the namespace and the service account
    /// above if the node states them.
    pub identity: Option<Identity>,
    /// Mesh id.
    pub mesh_id: Text,
    /// Requested revision.
    pub revision: Text,
    /// Version of istio-proxy, empty for upstream Envoy.
    pub istio_version: Text,
    /// How traffic reaches it.
    pub interception_mode: InterceptionMode,
    /// From the node message, else from its pod's node.
    pub locality: Locality,
    /// Extensions of its Envoy.
    pub extensions: EnvoyExtensions,
    /// DNS is captured (`DNS_CAPTURE`).
    pub dns_capture: bool,
    /// Automatically allocated addresses are used (`DNS_AUTO_ALLOCATE`), also if no status contains them.
    pub dns_auto_allocate: bool,
    /// HTTP/1.0 is accepted (`HTTP10`).
    pub http10: bool,
    /// It is a gRPC client or server without an Envoy (`GENERATOR` in its metadata is `grpc`, X28). Its type is that of a
    /// sidecar.
    #[serde(default)]
    pub grpc: bool,
    /// It subscribes to the endpoints of its own replicas (`ENABLE_SELF_DISCOVERY`, X30).
    #[serde(default)]
    pub self_discovery: bool,
    /// It subscribes to single virtual hosts of route tables (`VHDS` in its metadata).
    pub virtual_hosts: bool,
    /// It subscribes to the clusters of routes when it needs them (`ON_DEMAND_CLUSTERS` in its metadata).
    #[serde(default)]
    pub on_demand_clusters: bool,
    /// It gets the endpoints of each locality as resources of their own (`LEDS` in its metadata).
    #[serde(default)]
    pub endpoints_by_locality: bool,
    /// Port of the HTTP proxy listener (`HTTP_PROXY_PORT`), 0 if none.
    pub http_proxy_port: u16,
    /// Container ports by `POD_PORTS`: (name, number, protocol).
    pub pod_ports: Vec<(Text, u16, Text)>,
    /// The fields of its own configuration (`PROXY_CONFIG`) that resources depend on. Its agent has merged it over the
    /// defaults; `None` uses the mesh's default.
    pub config: Option<Arc<ProxyConfig>>,
    /// Its agent reports the health of its workload.
    pub health_checked: bool,
    /// Its Sidecar, set by the registry.
    pub sidecar: Option<ProxySidecar>,
    /// The cluster and network that its shared resources are built for, set by the registry; `None` is its own.
    pub location: Option<ClientLocation>,
    /// How it sends to other networks, set by the registry.
    #[serde(default)]
    pub other_networks: OtherNetworks,
    /// Strings, numbers and booleans of its metadata, as JSON text.
    pub metadata: Labels,
}

impl Proxy {
    /// Its cluster: the one that has authenticated it, else the one that its node states, which may be empty.
    #[must_use]
    pub fn home_cluster(&self) -> &Text {
        self.proven_cluster.as_ref().unwrap_or(&self.cluster)
    }

    /// The cluster and network that its shared resources are built for.
    #[must_use]
    pub fn shared_location(&self) -> ClientLocation {
        let own = || ClientLocation { cluster: self.home_cluster().clone(), network: self.network.clone() };
        self.location.clone().unwrap_or_else(own)
    }

    /// Whether it uses automatically allocated addresses for services without an address.
    #[must_use]
    pub fn uses_allocated_addresses(&self) -> bool {
        self.dns_auto_allocate && (self.dns_capture || self.proxy_type == ProxyType::Waypoint)
    }
}
