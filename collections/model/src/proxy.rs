//! A proxy that connected: what its node says of it, and what the registry adds.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

use crate::{Identity, Labels, Locality, OutboundTraffic, ProxyConfig, SidecarScope, Text};

/// A proxy is known by its node id; two streams with one id are one proxy.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ProxyKey(pub Text);

/// First part of the node id (X04).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
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
}

/// How a sidecar gets its traffic.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
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
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum IpFamilies {
    /// IPv4 only, or unknown.
    #[default]
    V4,
    /// IPv6 only.
    V6,
    /// Both; IPv4 first unless the primary address is IPv6.
    Dual,
}

/// The Envoy extensions a node lists. A node that lists none is taken to have everything.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct EnvoyExtensions(pub Option<BTreeSet<Text>>);

impl EnvoyExtensions {
    /// Whether the proxy has the extension of that name, such as `istio.stats`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }
}

/// What the Sidecar of a proxy changes, its content apart.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ProxySidecar {
    /// The Sidecar.
    pub scope: SidecarScope,
    /// It says what the proxy sees; else that is what every proxy of the namespace sees.
    pub limits: bool,
    /// It has listeners for inbound traffic: those of services count no more.
    pub ingress: bool,
    /// It says something of inbound traffic.
    pub inbound: bool,
    /// What it says of inbound traffic depends on the proxy's own addresses.
    pub own_address: bool,
    /// What becomes of traffic to hosts nobody declared, where that is not as the mesh says.
    pub outbound: Option<OutboundTraffic>,
}

/// A connected proxy (X04, X05).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Proxy {
    /// Node id as sent.
    pub id: Text,
    /// `cluster` of the node as sent: the name of its service in traces.
    pub service_cluster: Text,
    /// What it is.
    pub proxy_type: ProxyType,
    /// Its addresses: `INSTANCE_IPS`, else the one of its id.
    pub ips: Vec<Text>,
    /// Families of those.
    pub ip_families: IpFamilies,
    /// Pod name.
    pub name: Text,
    /// Namespace whose configuration it gets.
    pub namespace: Text,
    /// DNS domain of its id, such as `orchard.svc.cluster.local`.
    pub dns_domain: Text,
    /// Labels of its workload.
    pub labels: Labels,
    /// Annotations of its workload.
    pub annotations: Labels,
    /// Cluster it runs in.
    pub cluster: Text,
    /// Network it is on.
    pub network: Text,
    /// Networks it may see; empty is all.
    pub network_view: Vec<Text>,
    /// Node it runs on.
    pub node_name: Text,
    /// Workload name.
    pub workload_name: Text,
    /// Service account.
    pub service_account: Text,
    /// Who its stream was proven to be of, if anyone vouched for it. It has the namespace and the service account above
    /// where the node says any.
    pub identity: Option<Identity>,
    /// Mesh id.
    pub mesh_id: Text,
    /// Revision asked for.
    pub revision: Text,
    /// Version of istio-proxy, empty for upstream Envoy.
    pub istio_version: Text,
    /// How traffic reaches it.
    pub interception_mode: InterceptionMode,
    /// From the node message, else from its pod's node.
    pub locality: Locality,
    /// What its Envoy can do.
    pub extensions: EnvoyExtensions,
    /// DNS is captured (`DNS_CAPTURE`).
    pub dns_capture: bool,
    /// Addresses that were allocated are used (`DNS_AUTO_ALLOCATE`), whether or not a status tells them.
    pub dns_auto_allocate: bool,
    /// HTTP/1.0 is accepted (`HTTP10`).
    pub http10: bool,
    /// It takes the virtual hosts of route tables one by one (`VHDS` of its metadata).
    pub virtual_hosts: bool,
    /// Port of the HTTP proxy listener (`HTTP_PROXY_PORT`), 0 if none.
    pub http_proxy_port: u16,
    /// Container ports by `POD_PORTS`: (name, number, protocol).
    pub pod_ports: Vec<(Text, u16, Text)>,
    /// Its own configuration (`PROXY_CONFIG`), already laid over the defaults by its agent; else the mesh's default holds.
    pub config: Option<Arc<ProxyConfig>>,
    /// Its Sidecar, once the registry knows.
    pub sidecar: Option<ProxySidecar>,
    /// All other metadata that builders read, as the canonical JSON text of each top-level key.
    pub metadata: Labels,
}

impl Proxy {
    /// Whether it reaches services without an address at addresses that were allocated.
    #[must_use]
    pub fn uses_allocated_addresses(&self) -> bool {
        self.dns_auto_allocate && (self.dns_capture || self.proxy_type == ProxyType::Waypoint)
    }
}
