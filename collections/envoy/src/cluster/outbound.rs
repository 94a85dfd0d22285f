//! Clusters of a service port: one for the service and one per subset of its rule.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::common_lb_config::LocalityConfigSpecifier;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    CommonLbConfig, DiscoveryType, DnsLookupFamily, EdsClusterConfig, LbConfig, LbPolicy, OriginalDstLbConfig,
};
use envoy_types::pb::envoy::config::core::v3::{HealthStatus, HealthStatusSet, TypedExtensionConfig};
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use sluice_model::{
    DestinationRule, Protocol, ProxyType, Resolution, Service, ServicePort, ServiceSource, Text, TrafficPolicy,
};

use super::draft::Draft;
use super::http_protocol::apply_protocol;
use super::load_balancer::apply_load_balancer;
use super::outlier::apply_outlier_detection;
use super::tls::{IsServed, TlsInputs, apply_proxy_protocol, apply_tls};
use super::traffic_policy::{apply_connection_pool, apply_h2_upgrade, with_defaults};
use super::{ClusterProfile, ClusterSettings, dynamic_dns, metadata};
use crate::address::dns_family;
use crate::config_source::ads_source;
use crate::endpoint_picker::override_host_policy;
use crate::name::{outbound_cluster, sni_cluster, stat_prefix as delimited};
use crate::stat_name::StatNameValues;
use crate::wire::{any, duration, uint32};

/// Looks up the load assignment of a DNS cluster by subset, which is part of the cluster.
pub type DnsLoad<'a> = &'a dyn Fn(&str) -> Option<ClusterLoadAssignment>;

/// Inputs of the clusters of a service port.
#[derive(Clone, Copy)]
pub struct OutboundInputs<'a> {
    /// Settings of the mesh.
    pub settings: &'a ClusterSettings,
    /// Profile of the proxy.
    pub profile: &'a ClusterProfile,
    /// The service.
    pub service: &'a Service,
    /// One of its ports.
    pub port: &'a ServicePort,
    /// The DestinationRule for the clients.
    pub rule: Option<&'a DestinationRule>,
    /// Whether the PeerAuthentications of namespace and mesh allow mutual TLS.
    pub takes_mtls: bool,
    /// Whether there are endpoints and all accept mutual TLS. Used only if clients connect to endpoints directly.
    pub all_endpoints_mtls: bool,
    /// Whether there are endpoints and all accept HBONE. Used only if HBONE is sent.
    pub all_endpoints_hbone: bool,
    /// Identities of its workloads, sorted, with the trust domain aliases of the mesh.
    pub identities: &'a [Text],
    /// Endpoints of a DNS cluster by subset. The cluster name of the assignment is not set.
    pub dns_load: DnsLoad<'a>,
    /// Which Secrets the proxies are served.
    pub is_served: IsServed<'a>,
}

/// The discovery type of a service, without rules.
#[must_use]
pub(crate) fn discovery_type(service: &Service, proxy_type: ProxyType) -> DiscoveryType {
    match service.resolution {
        // Envoy tries the addresses of a single host in parallel, but not those of several hosts.
        Resolution::DnsLb if service.races_connects => DiscoveryType::LogicalDns,
        Resolution::DnsLb => DiscoveryType::StrictDns,
        Resolution::DnsRoundRobinLb => DiscoveryType::LogicalDns,
        // Traffic at a gateway has no original destination.
        Resolution::Passthrough if proxy_type != ProxyType::Router => DiscoveryType::OriginalDst,
        _ => DiscoveryType::Eds,
    }
}

/// Whether the endpoints of a service are part of its clusters, which resolve their names.
#[must_use]
pub fn uses_dns(service: &Service) -> bool {
    service.resolution.is_dns()
}

/// Whether the endpoints of a cluster are served by EDS.
#[must_use]
pub fn uses_eds(service: &Service, proxy_type: ProxyType, policy: Option<&TrafficPolicy>) -> bool {
    discovery_type(service, proxy_type) == DiscoveryType::Eds
        && service.resolution != Resolution::Alias
        && !service.is_dynamic_dns()
        && !policy.is_some_and(TrafficPolicy::is_passthrough)
}

/// Builds the clusters of a port, that of the whole service first; empty if the port has none.
#[must_use]
pub fn build_outbound(inputs: &OutboundInputs<'_>) -> Vec<Cluster> {
    let (service, port) = (inputs.service, inputs.port);
    if service.resolution == Resolution::Alias || port.protocol == Protocol::Udp {
        return Vec::new();
    }
    if service.is_inference_pool() && service.ports.first() != Some(port) {
        return Vec::new();
    }
    let name = outbound_cluster(u32::from(port.port), "", service.host.as_str());
    if service.is_dynamic_dns() {
        let draft = dynamic_dns::start(&name, service, port, inputs.profile, inputs.settings);
        return draft.map(|draft| finish_whole(inputs, draft, String::new())).into_iter().collect();
    }
    let kind = discovery_type(service, inputs.profile.proxy_type);
    let Some(mut draft) = start(inputs, &name, "", kind) else { return Vec::new() };
    if inputs.settings.sessions.enabled_for(&service.labels) {
        draft.cluster.common_lb_config.get_or_insert_default().override_host_status = Some(statuses_of_sessions());
    }
    let mut clusters = Vec::new();
    clusters.push(finish_whole(inputs, draft, sni_cluster(u32::from(port.port), "", service.host.as_str())));
    for subset in inputs.rule.iter().flat_map(|rule| &rule.subsets) {
        clusters.extend(build_subset(inputs, kind, &subset.name));
    }
    clusters
}

/// Finishes the cluster of the whole service: applies its policy and names its rule in the metadata.
fn finish_whole(inputs: &OutboundInputs<'_>, mut draft: Draft, sni: String) -> Cluster {
    let service = inputs.service;
    let policy = with_defaults(inputs.settings, inputs.rule.and_then(|rule| rule.policy("", inputs.port.port)));
    // The rule decides whether clients connect to endpoints directly, not its port-level settings.
    let declared = inputs.rule.and_then(|rule| rule.traffic_policy.as_ref());
    apply_policy(inputs, &mut draft, &policy, sni, declared);
    if inputs.all_endpoints_hbone {
        metadata::add_no_exchange(&mut draft.cluster);
    } else if service.mesh_external {
        metadata::add_external(&mut draft.cluster);
    }
    if let Some(rule) = inputs.rule {
        metadata::add_rule(&mut draft.cluster, rule);
        metadata::add_alpn_override(&mut draft.cluster, policy.tls.as_ref());
    }
    if service.is_inference_pool() && inputs.profile.proxy_type == ProxyType::Router {
        follow_picker(&mut draft.cluster);
    }
    draft.finish()
}

/// The endpoint picker decides, and not a policy.
fn follow_picker(cluster: &mut Cluster) {
    // Envoy rejects this field with a load balancing policy.
    let common = cluster.common_lb_config.as_mut();
    if let Some(common) = common
        && matches!(common.locality_config_specifier, Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(_)))
    {
        common.locality_config_specifier = None;
    }
    cluster.lb_policy = LbPolicy::ClusterProvided as i32;
    cluster.load_balancing_policy = Some(override_host_policy());
}

fn build_subset(inputs: &OutboundInputs<'_>, kind: DiscoveryType, subset: &str) -> Option<Cluster> {
    let (service, port) = (inputs.service, inputs.port);
    let rule = inputs.rule?;
    let declared = rule.subset(subset)?.traffic_policy.as_deref();
    let kind = if declared.is_some_and(TrafficPolicy::is_passthrough) { DiscoveryType::OriginalDst } else { kind };
    let name = outbound_cluster(u32::from(port.port), subset, service.host.as_str());
    let mut draft = start(inputs, &name, subset, kind)?;
    let whole = with_defaults(inputs.settings, rule.policy("", port.port));
    let policy = TrafficPolicy::merged(Some(&whole), declared, port.port).unwrap_or_default();
    let sni = sni_cluster(u32::from(port.port), subset, service.host.as_str());
    apply_policy(inputs, &mut draft, &policy, sni, declared);
    metadata::add_rule(&mut draft.cluster, rule);
    metadata::add_subset(&mut draft.cluster, subset);
    metadata::add_alpn_override(&mut draft.cluster, policy.tls.as_ref());
    Some(draft.finish())
}

/// A cluster without policy; `None` if it requires endpoints and has none.
pub(super) fn start(inputs: &OutboundInputs<'_>, name: &str, subset: &str, kind: DiscoveryType) -> Option<Draft> {
    let (service, port) = (inputs.service, inputs.port);
    let mut draft = Draft {
        cluster: Cluster {
            name: name.to_owned(),
            alt_stat_name: delimited(name),
            common_lb_config: Some(CommonLbConfig::default()),
            ..Cluster::default()
        },
        ..Draft::default()
    };
    draft.set_type(kind);
    match kind {
        DiscoveryType::StrictDns | DiscoveryType::LogicalDns => apply_dns(inputs, &mut draft, subset)?,
        DiscoveryType::OriginalDst => {
            if let Some(target) = dialled_port(service, port) {
                draft.cluster.lb_config = Some(LbConfig::OriginalDstLbConfig(OriginalDstLbConfig {
                    upstream_port_override: Some(uint32(target)),
                    ..OriginalDstLbConfig::default()
                }));
            }
        }
        _ => {}
    }
    apply_protocol(&mut draft, port.protocol, inputs.profile, inputs.settings);
    metadata::add_services(&mut draft.cluster, std::iter::once(service));
    let pattern = &inputs.settings.outbound_stat_name;
    if !pattern.is_empty() {
        let filled = StatNameValues::outbound(service, subset, u32::from(port.port), &port.name).expand(pattern);
        draft.cluster.alt_stat_name = delimited(&filled);
    }
    Some(draft)
}

/// The states of endpoints that persistent sessions use. Only existing sessions use draining endpoints.
pub(super) fn statuses_of_sessions() -> HealthStatusSet {
    let statuses = [HealthStatus::Healthy, HealthStatus::Draining, HealthStatus::Unknown, HealthStatus::Degraded];
    HealthStatusSet { statuses: statuses.map(|status| status as i32).to_vec() }
}

/// The target port of a ServiceEntry without endpoints, which replaces the original destination port.
fn dialled_port(service: &Service, port: &ServicePort) -> Option<u32> {
    let is_unresolved = service.source == ServiceSource::ServiceEntry && service.resolution == Resolution::Passthrough;
    is_unresolved.then(|| port.target_port.parse().ok()).flatten()
}

#[expect(deprecated, reason = "the reference uses these fields, not the typed DNS cluster")]
fn apply_dns(inputs: &OutboundInputs<'_>, draft: &mut Draft, subset: &str) -> Option<()> {
    let mut load = (inputs.dns_load)(subset)?;
    if load.endpoints.is_empty() {
        return None;
    }
    let cluster = &mut draft.cluster;
    cluster.dns_lookup_family = match inputs.service.races_connects {
        true => DnsLookupFamily::All,
        false => dns_family(inputs.profile.ip_families, inputs.settings.dual_stack),
    } as i32;
    cluster.typed_dns_resolver_config = Some(TypedExtensionConfig {
        name: "envoy.network.dns_resolver.cares".to_owned(),
        typed_config: Some(any(&CaresDnsResolverConfig {
            udp_max_queries: Some(uint32(inputs.settings.switches.dns_udp_queries)),
            ..CaresDnsResolverConfig::default()
        })),
    });
    cluster.dns_jitter = Some(duration(inputs.settings.switches.dns_jitter));
    cluster.dns_refresh_rate = Some(duration(inputs.settings.dns_refresh_rate));
    cluster.respect_dns_ttl = true;
    load.cluster_name.clone_from(&cluster.name);
    cluster.load_assignment = Some(load);
    Some(())
}

/// Applies the parts of a policy in order. `declared` decides whether clients connect to endpoints directly.
fn apply_policy(
    inputs: &OutboundInputs<'_>,
    draft: &mut Draft,
    policy: &TrafficPolicy,
    sni: String,
    declared: Option<&TrafficPolicy>,
) {
    let (service, port, settings) = (inputs.service, inputs.port, inputs.settings);
    let pool = policy.connection_pool.clone().unwrap_or_default();
    apply_h2_upgrade(draft, settings, pool.http.as_ref(), port.protocol);
    apply_connection_pool(draft, settings, &pool, policy.retry_budget.as_ref());
    apply_outlier_detection(draft, policy.outlier_detection.as_ref(), settings, service);
    apply_load_balancer(draft, settings, policy.load_balancer.as_ref(), service);
    let dialled = service.resolution == Resolution::Passthrough || declared.is_some_and(TrafficPolicy::is_passthrough);
    let tls = TlsInputs {
        settings,
        profile: inputs.profile,
        identities: inputs.identities,
        declared_names: (service.source == ServiceSource::ServiceEntry).then_some(inputs.identities),
        sni: if draft.dynamic_dns { String::new() } else { sni },
        external: service.mesh_external,
        takes_mtls: inputs.takes_mtls && (!dialled || inputs.all_endpoints_mtls),
        selected_clients: inputs.rule.is_some_and(|rule| rule.workload_selector.is_some()),
        is_served: inputs.is_served,
    };
    apply_tls(draft, &tls, policy.tls.as_ref());
    apply_proxy_protocol(draft, policy.proxy_protocol);
    if policy.proxy_protocol.is_some() && settings.reads_baggage() {
        metadata::add_no_baggage(&mut draft.cluster);
    }
    finish(draft, inputs.profile, settings);
}

/// Applies settings that depend on the discovery type, and adds the filters that exchange metadata.
pub(super) fn finish(draft: &mut Draft, profile: &ClusterProfile, settings: &ClusterSettings) {
    if draft.is(DiscoveryType::OriginalDst) {
        draft.cluster.lb_policy = LbPolicy::ClusterProvided as i32;
    }
    if draft.is(DiscoveryType::Eds) {
        draft.cluster.eds_cluster_config = Some(eds(&draft.cluster.name));
    }
    if !profile.no_metadata_exchange {
        draft.cluster.filters.push(metadata::metadata_exchange());
    }
    if settings.reads_baggage() && draft.is(DiscoveryType::Eds) {
        draft.cluster.filters.push(metadata::baggage());
    }
}

/// EDS over ADS. The proxy waits for the endpoints without a timeout.
pub(super) fn eds(name: &str) -> EdsClusterConfig {
    EdsClusterConfig { service_name: name.to_owned(), eds_config: Some(ads_source()) }
}
