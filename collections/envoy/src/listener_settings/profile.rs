//! Properties of a proxy that change its listeners.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sluice_model::{
    InterceptionMode, IpFamilies, OtherNetworks, OutboundTraffic, Proxy, ProxyConfig, ProxyType, Text, Topology, label,
};
use sluice_proto::json::parse_duration;

use crate::metadata_exchange::METADATA_EXCHANGE;
use crate::proxy_metadata::{CertificateFiles, captured_dns, has_credential_socket, has_file_credential_socket};

/// The ALPN filter of istio-proxy.
pub(crate) const ISTIO_ALPN: &str = "istio.alpn";
/// The statistics filter of istio-proxy.
pub(crate) const ISTIO_STATS: &str = "istio.stats";
/// The HTTP filter of istio-proxy for metadata exchange, in [`ListenerProfile::has`].
pub(crate) const HTTP_METADATA_EXCHANGE: &str = "istio.metadata_exchange.http";
/// The network filter of istio-proxy for metadata exchange, in [`ListenerProfile::has`].
pub(crate) const NETWORK_METADATA_EXCHANGE: &str = "istio.metadata_exchange.network";

/// Extensions that only istio-proxy has: the names under which a node may list each of them. The first one is used here.
const ISTIO_EXTENSIONS: [&[&str]; 4] = [
    &[ISTIO_ALPN],
    &[ISTIO_STATS],
    &[HTTP_METADATA_EXCHANGE, "envoy.filters.http.peer_metadata", METADATA_EXCHANGE],
    &[NETWORK_METADATA_EXCHANGE, "envoy.filters.network.metadata_exchange", METADATA_EXCHANGE],
];

/// Annotation of a waypoint: whether it states the identity of the client.
const CLIENT_IDENTITY: &str = "ambient.istio.io/xfcc-include-client-identity";

/// The versions of istio-proxy from which on listeners differ. Others are not distinguished.
const VERSIONS: [(u32, u32); 4] = [(0, 0), (1, 28), (1, 29), (1, 30)];

/// Properties of a proxy that change its listeners, except its identity: its profile.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerProfile {
    /// Node type.
    pub proxy_type: ProxyType,
    /// Address families.
    pub families: IpFamilies,
    /// Interception mode of traffic.
    pub interception: InterceptionMode,
    /// Cluster, on which virtual addresses depend.
    pub cluster: Text,
    /// Missing extensions of istio-proxy (`istio.alpn`, `istio.stats`, `istio.metadata_exchange.http`, `….network`).
    pub missing: BTreeSet<Text>,
    /// Whether it accepts HTTP/1.0.
    pub http10: bool,
    /// Port of the HTTP proxy listener; 0 for the setting of the mesh.
    pub http_proxy_port: u16,
    /// Idle timeout of TCP connections (`IDLE_TIMEOUT`).
    pub idle_timeout: Option<Duration>,
    /// Whether outbound connections are balanced exactly over worker threads.
    pub outbound_exact_balance: bool,
    /// Whether inbound connections are balanced exactly over worker threads.
    pub inbound_exact_balance: bool,
    /// Whether it must not bind to ports below 1024.
    pub unprivileged: bool,
    /// Ports of its own static listeners.
    pub reserved_ports: Vec<u16>,
    /// The highest of `VERSIONS` that its istio-proxy has; `None` if it has all of them or its version is unknown.
    pub version: Option<(u32, u32)>,
    /// Address of the agent's DNS server if DNS is captured.
    pub dns_proxy: Option<(Text, u16)>,
    /// Whether it uses automatically allocated addresses.
    pub auto_allocated: bool,
    /// Certificate files that replace the mesh certificate of its servers.
    pub server_certificates: Option<CertificateFiles>,
    /// Whether an SDS server for credentials listens on a socket.
    pub credential_socket: bool,
    /// Whether an SDS server for files listens on a socket.
    pub file_credential_socket: bool,
    /// Name of its telemetry and extensions; empty for those that all proxies share by default.
    pub attached: Text,
    /// The fields of its `ProxyConfig` that listeners depend on, if it sent one that differs from that of the mesh in them.
    pub config: Option<Arc<ProxyConfig>>,
    /// Outbound traffic policy of its Sidecar, if that overrides the mesh.
    pub outbound: Option<OutboundTraffic>,
    /// Network of a waypoint, or of a gateway with `double_tunnel`, which it states to gateways of other networks. Empty
    /// for other proxies.
    pub network: Text,
    /// Whether it is a waypoint that states the identity of the client in `x-forwarded-client-cert`.
    pub states_client_identity: bool,
    /// Whether it is such a proxy before 1.29.2, which lacks texts in the filter state that can be hashed.
    pub no_hashable_text: bool,
    /// Whether it is a waypoint that is an east-west gateway.
    pub east_west: bool,
    /// Whether it is a gateway that sends to other networks by two tunnels. Waypoints have the listeners for these in any case.
    pub double_tunnel: bool,
    /// Whether it requests the clusters of routes when it needs them.
    pub on_demand_clusters: bool,
    /// It is a gRPC client or server without an Envoy.
    pub grpc: bool,
    /// It is a gRPC server whose label `security.istio.io/tlsMode` states that it accepts mutual TLS.
    pub grpc_mtls: bool,
}

impl ListenerProfile {
    /// The profile of a proxy. `mesh` is the default `ProxyConfig` of the mesh.
    #[must_use]
    pub fn of(proxy: &Proxy, mesh: &ProxyConfig) -> Self {
        if proxy.grpc {
            return Self::of_grpc(proxy);
        }
        let metadata = |name: &str| proxy.metadata.get(name).map(|json| json.trim_matches('"'));
        let flag = |name: &str| metadata(name).is_some_and(|value| value == "true" || value == "1");
        let port = |name: &str| metadata(name).and_then(|value| value.parse::<u16>().ok());
        let reserved = ["ENVOY_STATUS_PORT", "ENVOY_PROMETHEUS_PORT", "ENVOY_SECURE_METRICS_PORT"];
        let mut reserved_ports: Vec<u16> =
            reserved.iter().chain(["ENVOY_SECURE_MERGED_METRICS_PORT"].iter()).filter_map(|name| port(name)).collect();
        reserved_ports.retain(|port| *port != 0);
        reserved_ports.sort_unstable();
        reserved_ports.dedup();
        let missing = ISTIO_EXTENSIONS
            .iter()
            .filter(|names| !names.iter().any(|name| proxy.extensions.has(name)))
            .filter_map(|names| names.first().map(|name| Text::from(*name)))
            .collect();
        let waypoint = proxy.proxy_type == ProxyType::Waypoint;
        let double_tunnel = proxy.proxy_type == ProxyType::Router && proxy.other_networks == OtherNetworks::Tunnels;
        Self {
            proxy_type: proxy.proxy_type,
            families: proxy.ip_families,
            interception: proxy.interception_mode,
            cluster: proxy.shared_location().cluster,
            missing,
            http10: proxy.http10,
            http_proxy_port: proxy.http_proxy_port,
            idle_timeout: metadata("IDLE_TIMEOUT").filter(|text| *text != "0").and_then(parse_duration),
            outbound_exact_balance: flag("OUTBOUND_LISTENER_EXACT_BALANCE"),
            inbound_exact_balance: flag("INBOUND_LISTENER_EXACT_BALANCE"),
            unprivileged: flag("UNPRIVILEGED_POD"),
            reserved_ports,
            version: version(&proxy.istio_version),
            dns_proxy: captured_dns(proxy),
            auto_allocated: proxy.uses_allocated_addresses(),
            server_certificates: CertificateFiles::of(proxy, "TLS_SERVER"),
            credential_socket: has_credential_socket(proxy),
            file_credential_socket: has_file_credential_socket(proxy),
            attached: Text::default(),
            config: proxy.config.as_deref().and_then(|config| own_config(config, mesh, proxy.proxy_type)),
            outbound: proxy.sidecar.as_ref().and_then(|sidecar| sidecar.outbound.clone()),
            network: if waypoint || double_tunnel { proxy.network.clone() } else { Text::default() },
            states_client_identity: waypoint
                && proxy.annotations.get(CLIENT_IDENTITY).is_some_and(|value| value.eq_ignore_ascii_case("true")),
            no_hashable_text: (waypoint || double_tunnel) && lacks_hashable_text(&proxy.istio_version),
            east_west: waypoint && label::is_east_west(&proxy.labels),
            double_tunnel,
            on_demand_clusters: proxy.on_demand_clusters,
            grpc: false,
            grpc_mtls: false,
        }
    }

    /// The profile of a gRPC client or server without an Envoy, whose listeners depend on few properties.
    fn of_grpc(proxy: &Proxy) -> Self {
        Self {
            proxy_type: proxy.proxy_type,
            families: proxy.ip_families,
            cluster: proxy.shared_location().cluster,
            auto_allocated: proxy.uses_allocated_addresses(),
            grpc: true,
            grpc_mtls: proxy.labels.get(label::TLS_MODE).is_some_and(|mode| mode == "istio"),
            ..Self::default()
        }
    }

    /// Whether the proxy has an extension of istio-proxy, by its first name in [`ListenerProfile::missing`].
    #[must_use]
    pub fn has(&self, extension: &str) -> bool {
        !self.missing.contains(extension)
    }

    /// Whether its version is at least this one of [`VERSIONS`]. An unknown version is newer.
    #[must_use]
    pub(crate) fn at_least(&self, major: u32, minor: u32) -> bool {
        debug_assert!(VERSIONS.contains(&(major, minor)), "{major}.{minor} is not distinguished");
        self.version.is_none_or(|version| version >= (major, minor))
    }
}

/// The fields of a `ProxyConfig` that the listeners of a type of proxy depend on. The others have their defaults.
#[must_use]
pub fn config_of_listeners(config: &ProxyConfig, proxy_type: ProxyType) -> ProxyConfig {
    let topology = if proxy_type == ProxyType::Router { config.gateway_topology.clone() } else { Topology::default() };
    ProxyConfig { gateway_topology: topology, private_key_provider: None, ..config.of_resources() }
}

/// The fields that listeners depend on, if they differ from those of the mesh.
fn own_config(config: &ProxyConfig, mesh: &ProxyConfig, proxy_type: ProxyType) -> Option<Arc<ProxyConfig>> {
    let mesh = config_of_listeners(mesh, proxy_type);
    let mut own = config_of_listeners(config, proxy_type);
    own.connection_settings = own.connection_settings.or_else(|| mesh.connection_settings.clone());
    (own != mesh).then(|| Arc::new(own))
}

/// Whether a version is before 1.29.2. An unknown version is newer.
fn lacks_hashable_text(version: &str) -> bool {
    let parts: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    parts.len() >= 2 && parts.as_slice() < [1, 29, 2].as_slice()
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(['.', '-']);
    let version = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let known = VERSIONS.iter().rfind(|known| version >= **known).copied();
    known.filter(|known| VERSIONS.last() != Some(known))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluice_model::{ConnectionSettings, EnvoyExtensions, ProxyHeaders, Tracing};

    use super::*;

    fn profile(proxy: &Proxy) -> ListenerProfile {
        ListenerProfile::of(proxy, &ProxyConfig::default())
    }

    #[test]
    fn extensions_that_a_node_does_not_list_are_missing() {
        let listed = |names: &[&str]| EnvoyExtensions(Some(names.iter().map(|name| Text::from(*name)).collect()));
        let proxy = Proxy { extensions: listed(&["envoy.filters.http.router"]), ..Proxy::default() };
        assert_eq!(profile(&proxy).missing.len(), 4);
        let proxy = Proxy { extensions: listed(&["istio.alpn", "istio.metadata_exchange"]), ..Proxy::default() };
        assert_eq!(profile(&proxy).missing, ["istio.stats".into()].into());
        assert!(profile(&Proxy::default()).missing.is_empty());
    }

    #[test]
    fn versions_without_a_difference_share_a_profile() {
        let version = |text: &str| profile(&Proxy { istio_version: text.into(), ..Proxy::default() }).version;
        assert_eq!(["1.2.3", "1.27-dev", "0.1"].map(version), [Some((0, 0)); 3]);
        assert_eq!(["1.28.0", "1.28.7-x", "1.29.1"].map(version), [Some((1, 28)), Some((1, 28)), Some((1, 29))]);
        assert_eq!(["1.30", "1.31.0", "99.4", "", "made up", "1"].map(version), [None; 6]);
    }

    #[test]
    fn waypoints_before_1_29_2_lack_hashable_texts() {
        let lacks = |version: &str, proxy_type| {
            profile(&Proxy { istio_version: version.into(), proxy_type, ..Proxy::default() }).no_hashable_text
        };
        for old in ["1.29.1", "1.29", "1.28.9-x", "0.1"] {
            assert!(lacks(old, ProxyType::Waypoint) && !lacks(old, ProxyType::Sidecar), "{old}");
        }
        for new in ["1.29.2", "1.30.0", "2.0", "", "made up"] {
            assert!(!lacks(new, ProxyType::Waypoint), "{new}");
        }
    }

    #[test]
    fn only_waypoints_state_the_identity_of_clients() {
        let states = |value: &str, proxy_type| {
            let annotations = [(CLIENT_IDENTITY.into(), value.into())].into();
            profile(&Proxy { annotations, proxy_type, ..Proxy::default() }).states_client_identity
        };
        assert!(states("True", ProxyType::Waypoint));
        assert!(!states("no", ProxyType::Waypoint) && !states("true", ProxyType::Sidecar));
    }

    #[test]
    fn configs_without_a_difference_share_a_profile() {
        let mesh = ProxyConfig { stat_name_length: 7, ..ProxyConfig::default() };
        let of = |config: ProxyConfig| {
            ListenerProfile::of(&Proxy { config: Some(Arc::new(config)), ..Proxy::default() }, &mesh).config
        };
        let gateway = Topology { num_trusted_proxies: 2, ..Topology::default() };
        for same in [
            mesh.clone(),
            ProxyConfig { proxy_metadata: BTreeMap::from([("A".into(), "made up".into())]), ..mesh.clone() },
            ProxyConfig { concurrency: Some(9), discovery_address: "made.up".into(), ..ProxyConfig::default() },
            ProxyConfig {
                proxy_headers: Some(ProxyHeaders::default()),
                tracing: Some(Tracing::default()),
                ..mesh.clone()
            },
            // Sidecars do not read it.
            ProxyConfig { gateway_topology: gateway.clone(), ..mesh.clone() },
        ] {
            assert_eq!(of(same), None);
        }
        let edge = ConnectionSettings { edge: true, ..ConnectionSettings::default() };
        let own = of(ProxyConfig { connection_settings: Some(edge), ..mesh.clone() });
        assert!(own.is_some_and(|own| own.connection_settings.as_ref().is_some_and(|settings| settings.edge)));
        let config = Some(Arc::new(ProxyConfig { gateway_topology: gateway, ..mesh.clone() }));
        let router = Proxy { proxy_type: ProxyType::Router, config, ..Proxy::default() };
        assert!(ListenerProfile::of(&router, &mesh).config.is_some(), "gateways read the topology");
    }
}
