//! Settings of listeners and of their filters besides services and policies: `MeshConfig`, `ProxyConfig`, Telemetry and
//! the properties of the proxy.

mod collectors;
mod extension;
mod listener_class;
mod profile;
mod telemetry;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::google::protobuf::{self, UInt32Value};
use serde::{Deserialize, Serialize};
use sluice_model::{
    CompliancePolicy, Decimal, ExtensionProvider, IpFamilies, MeshConfig, OutboundPolicy, OutboundTraffic,
    ProviderService, ProxyConfig, TunnelSwitches,
};

pub(crate) use collectors::authorizer_service;
pub use collectors::{Collector, collector_services};
pub use extension::ListenerExtension;
pub(crate) use listener_class::ListenerClass;
pub(crate) use profile::{HTTP_METADATA_EXCHANGE, ISTIO_ALPN, ISTIO_STATS, NETWORK_METADATA_EXCHANGE};
pub use profile::{ListenerProfile, config_of_listeners};
pub(crate) use telemetry::METRICS;
pub use telemetry::{LogSpec, MetricSpec, MetricsSpec, Observation, ObservedSide, TracingSpec};

use crate::alpn::PEER_EXCHANGE;
use crate::name;
use crate::wire::{duration, uint32};

/// Inputs of listeners besides services and policies.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerSettings {
    /// Configuration of the mesh.
    pub mesh: Arc<MeshConfig>,
    /// Profile of the proxy.
    pub profile: ListenerProfile,
    /// Services of extension providers. A service that does not exist has no entry.
    pub collectors: BTreeMap<ProviderService, Collector>,
    /// Telemetry and extensions of the proxy.
    pub attached: Arc<ListenerAttachments>,
    /// Server options.
    pub switches: ListenerSwitches,
    /// Options of security policies.
    pub security: SecurityOptions,
    /// Virtual listeners of dual-stack proxies also bind to the second address family.
    pub dual_stack: bool,
    /// The chains are behind the listener `connect_terminate` of a sidecar: their peers are in tunnels (HBONE).
    pub in_tunnel: bool,
}

impl ListenerSettings {
    /// Whether the proxy is an east-west gateway of a mesh of several networks.
    pub(crate) fn is_east_west(&self) -> bool {
        self.switches.tunnels.multi_network && self.profile.east_west
    }

    /// The `ProxyConfig` of the proxy, or the default of the mesh.
    #[must_use]
    pub fn config(&self) -> &ProxyConfig {
        self.profile.config.as_deref().unwrap_or(&self.mesh.default_config)
    }

    /// Whether HTTP/1.0 is accepted.
    #[must_use]
    pub(crate) fn accepts_http10(&self) -> bool {
        self.switches.http10 || self.profile.http10
    }

    /// Outbound traffic policy for unknown hosts.
    #[must_use]
    pub fn outbound_policy(&self) -> OutboundPolicy {
        self.profile.outbound.as_ref().map_or(self.mesh.outbound_policy, |outbound| outbound.policy)
    }

    /// The cluster of unknown hosts that replaces the original destination.
    #[must_use]
    pub fn egress_proxy(&self) -> Option<String> {
        self.profile.outbound.as_ref().and_then(egress_cluster)
    }

    /// Whether the proxy uses IPv4.
    #[must_use]
    pub(crate) fn ipv4(&self) -> bool {
        self.profile.families != IpFamilies::V6
    }

    /// Whether the proxy uses IPv6.
    #[must_use]
    pub(crate) fn ipv6(&self) -> bool {
        self.profile.families != IpFamilies::V4
    }

    /// The provider with this name, case-insensitive.
    pub(crate) fn provider(&self, name: &str) -> Option<&ExtensionProvider> {
        self.mesh.extension_providers.iter().find(|provider| provider.name.eq_ignore_ascii_case(name))
    }

    /// The effective telemetry of a traffic direction.
    pub(crate) fn observed(&self, class: ListenerClass) -> &ObservedSide {
        match class {
            ListenerClass::Inbound => &self.attached.observation.server,
            ListenerClass::Outbound | ListenerClass::Gateway => &self.attached.observation.client,
        }
    }
}

/// Server options that change listeners.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "switches are independent")]
pub struct ListenerSwitches {
    /// Default percentage of traced requests (`PILOT_TRACE_SAMPLING`).
    pub trace_sampling: Decimal,
    /// The MongoDB filter is added (`PILOT_ENABLE_MONGO_FILTER`).
    pub mongo: bool,
    /// The Redis filter is added (`PILOT_ENABLE_REDIS_FILTER`).
    pub redis: bool,
    /// The MySQL filter is added (`PILOT_ENABLE_MYSQL_FILTER`).
    pub mysql: bool,
    /// HTTP/1.0 is accepted and detected as HTTP (`PILOT_HTTP10`).
    pub http10: bool,
    /// Persistent sessions are enabled (`PILOT_ENABLE_PERSISTENT_SESSION_FILTER`).
    pub persistent_sessions: bool,
    /// Ingress listeners of Sidecars terminate the TLS that they declare (`ENABLE_TLS_ON_SIDECAR_INGRESS`).
    pub sidecar_ingress_tls: bool,
    /// Responses with status 100 are forwarded (`ENABLE_100_CONTINUE_HEADERS`).
    pub continue_responses: bool,
    /// Sidecars append the address of the application to `X-Forwarded-For` (`PILOT_SIDECAR_USE_REMOTE_ADDRESS`).
    pub sidecar_remote_address: bool,
    /// TCP of the mesh exchanges metadata of peers by ALPN (not `PILOT_DISABLE_MX_ALPN`).
    pub peer_exchange: bool,
    /// Number of hosts in the DNS cache of sidecars that resolve unknown hosts (`PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS`).
    pub dns_cache_hosts: u32,
    /// Connections that are accepted for each socket event, 0 for no limit (`MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP`).
    pub connections_per_event: u32,
    /// Time limit of TLS handshakes at gateways, 0 for no limit (`PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT`).
    pub gateway_handshake_timeout: Duration,
    /// Tunnels between networks.
    pub tunnels: TunnelSwitches,
}

impl ListenerSwitches {
    /// The protocols that servers of TCP in the mesh accept.
    pub(crate) fn tcp_protocols(self) -> &'static [&'static str] {
        if self.peer_exchange { &[PEER_EXCHANGE, "h2", "http/1.1"] } else { &["h2", "http/1.1"] }
    }

    pub(crate) fn connections_per_event(self) -> Option<UInt32Value> {
        (self.connections_per_event > 0).then(|| uint32(self.connections_per_event))
    }

    pub(crate) fn gateway_handshake_timeout(self) -> Option<protobuf::Duration> {
        (!self.gateway_handshake_timeout.is_zero()).then(|| duration(self.gateway_handshake_timeout))
    }
}

impl Default for ListenerSwitches {
    fn default() -> Self {
        Self {
            trace_sampling: Decimal::from_f64(1.0),
            mongo: true,
            redis: false,
            mysql: false,
            http10: false,
            persistent_sessions: false,
            sidecar_ingress_tls: false,
            continue_responses: true,
            sidecar_remote_address: false,
            peer_exchange: true,
            dns_cache_hosts: 1024,
            connections_per_event: 1,
            gateway_handshake_timeout: Duration::from_secs(15),
            tunnels: TunnelSwitches::default(),
        }
    }
}

/// Server options that change how policies are translated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SecurityOptions {
    /// A workload may have `CUSTOM` policies of several providers.
    pub multiple_custom_providers: bool,
    /// Only policies with a `targetRef` apply to gateways of the Gateway API, not those that select them by label.
    pub gateways_by_target_only: bool,
    /// Clients of any trust domain are accepted.
    pub any_trust_domain: bool,
    /// Limits of all TLS settings (`COMPLIANCE_POLICY`).
    pub compliance: Option<CompliancePolicy>,
}

/// Telemetry and extensions of a proxy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerAttachments {
    /// Effective telemetry.
    pub observation: Observation,
    /// Extensions, ordered within each phase.
    pub extensions: Vec<ListenerExtension>,
}

/// The cluster of an egress proxy.
#[must_use]
pub fn egress_cluster(outbound: &OutboundTraffic) -> Option<String> {
    let proxy = outbound.egress_proxy.as_ref()?;
    Some(name::outbound_cluster(proxy.port.unwrap_or_default(), &proxy.subset, proxy.host.as_str()))
}
