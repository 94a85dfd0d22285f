//! Clusters of services, of inbound ports, and fixed ones (N01, N04, N12 to N14).

mod draft;
mod dynamic_dns;
mod fixed;
mod grpc;
mod hbone;
mod http_protocol;
mod inbound;
mod load_balancer;
mod metadata;
mod outbound;
mod outlier;
mod sni_dnat;
mod tls;
mod traffic_policy;
mod transport_socket;
mod udp;
mod waypoint;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_model::{
    ClientTls, CompliancePolicy, ConnectionPool, InboundPolicy, IpFamilies, LocalityLb, MeshConfig, OtherNetworks,
    OutlierDetection, Proxy, ProxyType, SessionLabels, TcpKeepalive, Text, TlsSettings, TunnelSwitches, ZoneAwareLb,
    label,
};

pub use dynamic_dns::build_allow_any_dynamic_dns;
pub(crate) use dynamic_dns::{allow_any_dns_cache, dns_cache};
pub use fixed::{build_black_hole, build_inbound_passthrough, build_passthrough, build_sds_external};
pub use grpc::{GrpcClusterInputs, build_grpc_clusters};
pub use hbone::{HboneSettings, build_connect_originate};
pub(crate) use hbone::{ORIGINAL_DST, mutual_tls, tunnel_trust_domains};
pub use inbound::{InboundInputs, InboundTarget, build_inbound};
pub(crate) use load_balancer::{LocalityMode, locality_mode, near_first};
pub use outbound::{DnsLoad, OutboundInputs, build_outbound, uses_dns, uses_eds};
pub(crate) use outlier::sends_unhealthy;
pub use sni_dnat::build_sni_dnat;
pub use tls::{IsServed, all_served};
pub use udp::build_udp;
pub use waypoint::{
    WaypointInputs, build_double_tunnel, build_east_west, build_east_west_fixed, build_main_internal, build_waypoint,
    build_waypoint_connect_originate, build_waypoint_fixed, east_west_cluster_name, vip_cluster_names,
};

use crate::metadata_exchange::METADATA_EXCHANGE;
use crate::proxy_metadata::{
    CertificateFiles, captured_dns, has_credential_socket, has_file_credential_socket, receives_hbone, sends_no_hbone,
};

/// Settings of the mesh and of the server that change clusters.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ClusterSettings {
    /// Connect timeout.
    pub connect_timeout: Duration,
    /// TCP keepalive of all connections.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// Whether HTTP/1.1 is upgraded to HTTP/2.
    pub h2_upgrade: bool,
    /// Pattern of the statistics name of inbound clusters; empty for the cluster name.
    pub inbound_stat_name: Text,
    /// Pattern of the statistics name of outbound clusters; empty for the cluster name.
    pub outbound_stat_name: Text,
    /// Interval of DNS queries.
    pub dns_refresh_rate: Duration,
    /// Locality load balancing.
    pub locality_lb: LocalityLb,
    /// Zone-aware load balancing.
    pub zone_aware_lb: Option<ZoneAwareLb>,
    /// Default connection pool.
    pub connection_pool: Option<ConnectionPool>,
    /// Default outlier detection.
    pub outlier_detection: Option<OutlierDetection>,
    /// TLS parameters outside of mesh mTLS.
    pub tls_defaults: Option<TlsSettings>,
    /// Automatic mutual TLS.
    pub auto_mtls: bool,
    /// Destination of inbound traffic.
    pub inbound_policy: InboundPolicy,
    /// TLS to hosts that are resolved by name.
    pub outbound_tls: Option<ClientTls>,
    /// The case of HTTP/1.1 header names is preserved unless the proxy overrides it.
    pub preserve_header_case: bool,
    /// Addresses of both families are used.
    pub dual_stack: bool,
    /// HBONE is sent to endpoints that accept it.
    pub sends_hbone: bool,
    /// HBONE is preferred over mutual TLS.
    pub prefers_hbone: bool,
    /// Labels by which services request persistent sessions.
    pub sessions: SessionLabels,
    /// Compliance policy, which limits all TLS settings.
    pub compliance: Option<CompliancePolicy>,
    /// Server options.
    pub switches: ClusterSwitches,
}

/// Options of the server that change clusters and endpoints.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ClusterSwitches {
    /// Circuit breakers count what remains before they open (not `DISABLE_TRACK_REMAINING_CB_METRICS`).
    pub tracks_remaining: bool,
    /// Maximum number of DNS queries of a socket, 0 for no limit (`PILOT_DNS_CARES_UDP_MAX_QUERIES`).
    pub dns_udp_queries: u32,
    /// Jitter of DNS queries (`PILOT_DNS_JITTER_DURATION`).
    pub dns_jitter: Duration,
    /// All services have endpoints that are not ready (`PILOT_SEND_UNHEALTHY_ENDPOINTS`).
    pub sends_unhealthy: bool,
    /// So do those without a minimum health percentage (`PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS`).
    pub sends_unhealthy_by_default: bool,
    /// TCP of the mesh exchanges metadata of peers by ALPN (not `PILOT_DISABLE_MX_ALPN`).
    pub peer_exchange: bool,
    /// Number of hosts in the DNS cache of sidecars that resolve unknown hosts (`PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS`).
    pub dns_cache_hosts: u32,
    /// Initial windows in bytes of the streams of HBONE connections, 0 for the default of Envoy
    /// (`PILOT_HBONE_INITIAL_STREAM_WINDOW_SIZE`).
    pub hbone_stream_window: u32,
    /// The same of the connections themselves (`PILOT_HBONE_INITIAL_CONNECTION_WINDOW_SIZE`).
    pub hbone_connection_window: u32,
    /// Tunnels between networks.
    pub tunnels: TunnelSwitches,
}

impl Default for ClusterSwitches {
    fn default() -> Self {
        Self {
            tracks_remaining: false,
            // Enough for 200,000 queries a second, and few enough that a dead DNS server is given up.
            dns_udp_queries: 100,
            dns_jitter: Duration::from_millis(100),
            sends_unhealthy: false,
            sends_unhealthy_by_default: true,
            peer_exchange: true,
            dns_cache_hosts: 1024,
            hbone_stream_window: 0,
            hbone_connection_window: 0,
            tunnels: TunnelSwitches::default(),
        }
    }
}

impl ClusterSettings {
    /// Whether the proxy reads the metadata of peers from the baggage of tunnels.
    pub(crate) fn reads_baggage(&self) -> bool {
        self.sends_hbone && self.switches.tunnels.baggage
    }

    /// Settings from `MeshConfig` and the option `ISTIO_DUAL_STACK`.
    #[must_use]
    pub fn new(mesh: &MeshConfig, dual_stack: bool) -> Self {
        Self {
            connect_timeout: mesh.connect_timeout,
            tcp_keepalive: mesh.tcp_keepalive.clone(),
            h2_upgrade: mesh.h2_upgrade,
            inbound_stat_name: mesh.inbound_cluster_stat_name.clone(),
            outbound_stat_name: mesh.outbound_cluster_stat_name.clone(),
            dns_refresh_rate: mesh.dns_refresh_rate,
            locality_lb: mesh.locality_lb.clone(),
            zone_aware_lb: mesh.zone_aware_lb.clone(),
            connection_pool: mesh.default_connection_pool.clone(),
            outlier_detection: mesh.default_outlier_detection.clone(),
            tls_defaults: mesh.tls_defaults.clone(),
            auto_mtls: mesh.enable_auto_mtls,
            inbound_policy: mesh.inbound_policy,
            outbound_tls: mesh.outbound_tls.clone(),
            preserve_header_case: mesh
                .default_config
                .proxy_headers
                .as_ref()
                .and_then(|headers| headers.preserve_http1_header_case)
                .unwrap_or_default(),
            dual_stack,
            sends_hbone: false,
            prefers_hbone: false,
            sessions: SessionLabels::default(),
            compliance: None,
            switches: ClusterSwitches::default(),
        }
    }

    /// Sets the server options.
    #[must_use]
    pub fn with_switches(self, switches: ClusterSwitches) -> Self {
        Self { switches, ..self }
    }

    /// Sets the labels that request persistent sessions.
    #[must_use]
    pub fn with_sessions(self, sessions: &SessionLabels) -> Self {
        Self { sessions: sessions.clone(), ..self }
    }

    /// Sets the compliance policy.
    #[must_use]
    pub fn with_compliance(self, compliance: Option<CompliancePolicy>) -> Self {
        Self { compliance, ..self }
    }

    /// Enables HBONE, optionally in preference to mutual TLS.
    #[must_use]
    pub fn with_hbone(self, sends_hbone: bool, prefers_hbone: bool) -> Self {
        Self { sends_hbone, prefers_hbone: sends_hbone && prefers_hbone, ..self }
    }
}

/// Properties of a proxy that change its clusters.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ClusterProfile {
    /// Sidecar or gateway.
    pub proxy_type: ProxyType,
    /// Its address families.
    pub ip_families: IpFamilies,
    /// Certificate files that replace the mesh certificate.
    pub certificates: Option<CertificateFiles>,
    /// Whether the case of HTTP/1.1 header names is preserved, if its ProxyConfig sets it.
    pub preserve_header_case: Option<bool>,
    /// An SDS server for credentials listens on a socket.
    pub credential_socket: bool,
    /// An SDS server for files listens on a socket.
    pub file_credential_socket: bool,
    /// Address of the agent's DNS server if DNS is captured.
    pub dns_proxy: Option<(Text, u16)>,
    /// Its Envoy lacks the filter `istio.metadata_exchange`.
    pub no_metadata_exchange: bool,
    /// It does not send HBONE (`DISABLE_HBONE_SEND`).
    pub no_hbone: bool,
    /// It is a sidecar that accepts HBONE (`ENABLE_HBONE`).
    pub receives_hbone: bool,
    /// It is a waypoint that is an east-west gateway.
    pub east_west: bool,
    /// It is a gateway that sends to other networks by two tunnels. Waypoints have the clusters for these in any case.
    pub double_tunnel: bool,
    /// Its identity is not verified, so that it is served no Secrets.
    pub anonymous: bool,
}

impl ClusterProfile {
    /// The profile of a proxy.
    #[must_use]
    pub fn of(proxy: &Proxy) -> Self {
        let headers = proxy.config.as_deref().map(|config| config.proxy_headers.as_ref());
        Self {
            proxy_type: proxy.proxy_type,
            ip_families: proxy.ip_families,
            certificates: CertificateFiles::of(proxy, "TLS_CLIENT").filter(|files| !files.chain.is_empty()),
            // The ProxyConfig that a proxy sends already includes the defaults of the mesh.
            preserve_header_case: headers
                .map(|headers| headers.is_some_and(|headers| headers.preserve_http1_header_case == Some(true))),
            credential_socket: has_credential_socket(proxy),
            file_credential_socket: has_file_credential_socket(proxy),
            dns_proxy: captured_dns(proxy),
            no_metadata_exchange: !proxy.extensions.has(METADATA_EXCHANGE),
            no_hbone: sends_no_hbone(proxy),
            receives_hbone: receives_hbone(proxy),
            east_west: proxy.proxy_type == ProxyType::Waypoint && label::is_east_west(&proxy.labels),
            double_tunnel: proxy.proxy_type == ProxyType::Router && proxy.other_networks == OtherNetworks::Tunnels,
            anonymous: proxy.identity.is_none(),
        }
    }

    /// Whether the case of header names is preserved.
    fn preserves_header_case(&self, settings: &ClusterSettings) -> bool {
        self.preserve_header_case.unwrap_or(settings.preserve_header_case)
    }

    /// Whether it may use the protocol of the downstream client upstream.
    fn follows_downstream_protocol(&self) -> bool {
        matches!(self.proxy_type, ProxyType::Sidecar | ProxyType::Waypoint)
    }
}

#[cfg(test)]
mod tests;
