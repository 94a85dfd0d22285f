//! Clusters that resolve the host of each request (dynamic forward proxy, N13).

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, CustomClusterType, LbPolicy};
use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::extensions::clusters::dynamic_forward_proxy::v3::ClusterConfig;
use envoy_types::pb::envoy::extensions::clusters::dynamic_forward_proxy::v3::cluster_config::ClusterImplementationSpecifier;
use envoy_types::pb::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use envoy_types::pb::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use sluice_model::{ClientTlsMode, ConnectionPool, CredentialKind, Protocol, Service, ServicePort};

use super::draft::Draft;
use super::http_protocol::{apply_protocol, passthrough_options};
use super::tls::{TlsInputs, socket};
use super::traffic_policy::apply_connection_pool;
use super::{ClusterProfile, ClusterSettings, metadata};
use crate::address::{address, dns_family};
use crate::name::{ALLOW_ANY_DYNAMIC_DNS_CLUSTER, stat_prefix};
use crate::wire::{any, duration, uint32};

/// Name of the DNS cache of unknown hosts.
const ALLOW_ANY_DNS_CACHE: &str = "allow_any_dfp_dns_cache";

/// The cluster of a wildcard host's port, before its policy is applied; `None` for protocols without a host name.
pub(super) fn start(
    name: &str,
    service: &Service,
    port: &ServicePort,
    profile: &ClusterProfile,
    settings: &ClusterSettings,
) -> Option<Draft> {
    if !matches!(port.protocol, Protocol::Http | Protocol::Tls | Protocol::Grpc | Protocol::Http2) {
        return None;
    }
    let cache = DnsCacheConfig {
        name: dns_cache(service.host.as_str()),
        dns_lookup_family: dns_family(profile.ip_families, settings.dual_stack) as i32,
        ..DnsCacheConfig::default()
    };
    let mut draft = resolving(name, cache, false);
    apply_protocol(&mut draft, port.protocol, profile, settings);
    Some(draft)
}

/// The cluster of unknown hosts, if the mesh resolves them.
#[must_use]
pub fn build_allow_any_dynamic_dns(settings: &ClusterSettings, profile: &ClusterProfile) -> Cluster {
    let cache = allow_any_dns_cache(profile, settings.dual_stack, settings.switches.dns_cache_hosts);
    let tls = settings.outbound_tls.as_ref().filter(|tls| tls.mode != ClientTlsMode::Disable);
    let mut draft = resolving(ALLOW_ANY_DYNAMIC_DNS_CLUSTER, cache, tls.is_none());
    draft.cluster.connect_timeout = Some(duration(settings.connect_timeout));
    // The SNI of the request is used only with TLS, without other options.
    draft.http = tls.is_none().then(|| passthrough_options(profile, settings));
    apply_connection_pool(&mut draft, settings, &ConnectionPool::default(), None);
    if let Some(tls) = tls {
        let inputs = TlsInputs {
            settings,
            profile,
            identities: &[],
            declared_names: None,
            sni: String::new(),
            external: true,
            takes_mtls: false,
            // Sidecars are served root certificates in ConfigMaps only. With others, connections must not be plain text.
            selected_clients: true,
            is_served: &|name| name.starts_with(CredentialKind::ConfigMap.prefix()),
        };
        draft.cluster.transport_socket = socket(&mut draft, &inputs, tls);
    }
    if !profile.no_metadata_exchange {
        draft.cluster.filters.push(metadata::metadata_exchange());
    }
    draft.finish()
}

/// The DNS cache of this number of unknown hosts. The cluster and the listener's filter must have equal configurations.
#[must_use]
pub(crate) fn allow_any_dns_cache(profile: &ClusterProfile, dual_stack: bool, max_hosts: u32) -> DnsCacheConfig {
    let resolver = profile.dns_proxy.as_ref().map(|(host, port)| TypedExtensionConfig {
        name: "envoy.network.dns_resolver.cares".to_owned(),
        typed_config: Some(any(&CaresDnsResolverConfig {
            resolvers: vec![address(host, u32::from(*port))],
            ..CaresDnsResolverConfig::default()
        })),
    });
    DnsCacheConfig {
        name: ALLOW_ANY_DNS_CACHE.to_owned(),
        dns_lookup_family: dns_family(profile.ip_families, dual_stack) as i32,
        max_hosts: Some(uint32(max_hosts)),
        typed_dns_resolver_config: resolver,
        ..DnsCacheConfig::default()
    }
}

/// The DNS cache that a host's cluster and its listener's filter share.
#[must_use]
pub(crate) fn dns_cache(host: &str) -> String {
    format!("{host}_dfp_dns_cache")
}

/// A cluster that resolves the host of each request with this cache.
fn resolving(name: &str, cache: DnsCacheConfig, insecure: bool) -> Draft {
    let config = ClusterConfig {
        cluster_implementation_specifier: Some(ClusterImplementationSpecifier::DnsCacheConfig(cache)),
        allow_insecure_cluster_options: insecure,
        ..ClusterConfig::default()
    };
    Draft {
        cluster: Cluster {
            name: name.to_owned(),
            alt_stat_name: stat_prefix(name),
            lb_policy: LbPolicy::ClusterProvided as i32,
            cluster_discovery_type: Some(ClusterDiscoveryType::ClusterType(CustomClusterType {
                name: "envoy.clusters.dynamic_forward_proxy".to_owned(),
                typed_config: Some(any(&config)),
            })),
            ..Cluster::default()
        },
        dynamic_dns: true,
        ..Draft::default()
    }
}
