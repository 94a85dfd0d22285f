//! Inbound clusters: one per port of a workload, independent of its services.

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{CommonLbConfig, DiscoveryType, LbPolicy};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use sluice_model::{ConnectionPool, DestinationRule, Service, ServicePort, Text};

use super::draft::Draft;
use super::fixed::inbound_bind;
use super::http_protocol::apply_protocol;
use super::traffic_policy::{apply_connection_pool, with_defaults};
use super::{ClusterProfile, ClusterSettings, metadata};
use crate::address::address;
use crate::name::{inbound_cluster, stat_prefix as delimited};
use crate::stat_name::StatNameValues;
use crate::wire::duration;

/// A practically infinite duration, which disables the cleanup of original destinations.
const NEVER: Duration = Duration::from_secs(9_223_372_035);

/// A service port whose target is the port of the workload.
#[derive(Clone, Copy)]
pub struct InboundTarget<'a> {
    /// The service.
    pub service: &'a Service,
    /// Its port.
    pub port: &'a ServicePort,
}

/// Inputs of an inbound cluster.
#[derive(Clone, Copy)]
pub struct InboundInputs<'a> {
    /// Settings of the mesh.
    pub settings: &'a ClusterSettings,
    /// Profile of the proxy.
    pub profile: &'a ClusterProfile,
    /// The port in the name of the cluster.
    pub port: u32,
    /// The address of the application; `None` for the original destination.
    pub endpoint: Option<(&'a str, u32)>,
    /// Services of the port; never empty. The settings of the first one apply.
    pub targets: &'a [InboundTarget<'a>],
    /// The DestinationRule of the first service for the workload itself.
    pub rule: Option<&'a DestinationRule>,
    /// Connection pool of a Sidecar, which has precedence over the rule.
    pub connection_pool: Option<&'a ConnectionPool>,
    /// Whether the first service is a placeholder for a port of a Sidecar.
    pub placeholder: bool,
}

/// Builds the cluster of a workload port; `None` without a service.
#[must_use]
pub fn build_inbound(inputs: &InboundInputs<'_>) -> Option<Cluster> {
    let first = inputs.targets.first()?;
    let (settings, profile) = (inputs.settings, inputs.profile);
    let name = inbound_cluster(inputs.port);
    let mut draft = Draft {
        cluster: Cluster {
            alt_stat_name: delimited(&name),
            common_lb_config: Some(CommonLbConfig::default()),
            load_assignment: inputs.endpoint.map(|endpoint| assignment(&name, endpoint)),
            name,
            ..Cluster::default()
        },
        ..Draft::default()
    };
    let pattern = &settings.inbound_stat_name;
    if !pattern.is_empty() {
        let filled = StatNameValues {
            target_port: Some(inputs.port),
            ..StatNameValues::outbound(first.service, "", u32::from(first.port.port), &first.port.name)
        }
        .expand(pattern);
        draft.cluster.alt_stat_name = delimited(&filled);
    }
    apply_protocol(&mut draft, first.port.protocol, profile, settings);
    if !inputs.placeholder && !first.service.mesh_external {
        metadata::add_services(&mut draft.cluster, same_port(inputs.targets, first.port.port));
    }
    if inputs.endpoint.is_some() {
        draft.set_type(DiscoveryType::Static);
    } else {
        draft.set_type(DiscoveryType::OriginalDst);
        draft.cluster.cleanup_interval = Some(duration(NEVER));
        draft.cluster.lb_policy = LbPolicy::ClusterProvided as i32;
    }

    let mut policy = None;
    if let Some(rule) = inputs.rule
        && let Some(declared) = &rule.traffic_policy
    {
        policy = Some(declared.for_port(first.port.port).0);
        if draft.cluster.metadata.is_some() {
            metadata::add_rule(&mut draft.cluster, rule);
        }
    }
    let mut policy = with_defaults(settings, policy);
    if let Some(pool) = inputs.connection_pool {
        policy.connection_pool = Some(pool.clone());
    }
    let pool = policy.connection_pool.unwrap_or_default();
    apply_connection_pool(&mut draft, settings, &pool, policy.retry_budget.as_ref());

    if !matches!(inputs.endpoint, Some(("127.0.0.1" | "::1", _))) {
        let both = settings.dual_stack && profile.ip_families == sluice_model::IpFamilies::Dual;
        draft.cluster.upstream_bind_config = Some(inbound_bind(profile.ip_families, both));
    }
    Some(draft.finish())
}

/// The services of the port, each host once.
fn same_port<'a>(targets: &'a [InboundTarget<'a>], port: u16) -> impl Iterator<Item = &'a Service> {
    let mut seen: Vec<&Text> = Vec::new();
    targets.iter().filter(move |target| target.port.port == port).map(|target| target.service).filter(move |service| {
        let new = !seen.contains(&&service.host.0);
        seen.push(&service.host.0);
        new
    })
}

fn assignment(name: &str, (host, port): (&str, u32)) -> ClusterLoadAssignment {
    let endpoint = Endpoint { address: Some(address(host, port)), ..Endpoint::default() };
    let endpoint = LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() };
    ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints: vec![LocalityLbEndpoints { lb_endpoints: vec![endpoint], ..LocalityLbEndpoints::default() }],
        ..ClusterLoadAssignment::default()
    }
}
