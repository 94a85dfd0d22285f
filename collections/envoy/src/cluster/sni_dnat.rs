//! Clusters of AUTO_PASSTHROUGH gateways, without TLS.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::DiscoveryType;
use sluice_model::{Protocol, Resolution, TrafficPolicy};

use super::draft::Draft;
use super::load_balancer::apply_load_balancer;
use super::metadata;
use super::outbound::{OutboundInputs, discovery_type, finish, start};
use super::outlier::apply_outlier_detection;
use super::traffic_policy::{apply_connection_pool, apply_h2_upgrade, with_defaults};
use crate::name::sni_cluster;

/// The clusters of a port, that of the whole service first; empty for services outside of the mesh.
#[must_use]
pub fn build_sni_dnat(inputs: &OutboundInputs<'_>) -> Vec<Cluster> {
    let (service, port) = (inputs.service, inputs.port);
    let host = service.host.as_str();
    if service.mesh_external || port.protocol == Protocol::Udp || service.resolution == Resolution::Alias {
        return Vec::new();
    }
    let kind = discovery_type(service, inputs.profile.proxy_type);
    let whole = with_defaults(inputs.settings, inputs.rule.and_then(|rule| rule.policy("", port.port)));
    let Some(mut draft) = start(inputs, &sni_cluster(u32::from(port.port), "", host), "", kind) else {
        return Vec::new();
    };
    apply_policy(inputs, &mut draft, &whole);
    if let Some(rule) = inputs.rule {
        metadata::add_rule(&mut draft.cluster, rule);
        metadata::add_alpn_override(&mut draft.cluster, whole.tls.as_ref());
    }
    let mut clusters = vec![draft.finish()];
    for (rule, subset) in inputs.rule.iter().flat_map(|rule| rule.subsets.iter().map(move |subset| (rule, subset))) {
        let declared = subset.traffic_policy.as_deref();
        let kind = if declared.is_some_and(TrafficPolicy::is_passthrough) { DiscoveryType::OriginalDst } else { kind };
        let name = sni_cluster(u32::from(port.port), &subset.name, host);
        let Some(mut draft) = start(inputs, &name, &subset.name, kind) else { continue };
        let policy = TrafficPolicy::merged(Some(&whole), declared, port.port).unwrap_or_default();
        apply_policy(inputs, &mut draft, &policy);
        metadata::add_rule(&mut draft.cluster, rule);
        metadata::add_subset(&mut draft.cluster, &subset.name);
        metadata::add_alpn_override(&mut draft.cluster, policy.tls.as_ref());
        clusters.push(draft.finish());
    }
    clusters
}

fn apply_policy(inputs: &OutboundInputs<'_>, draft: &mut Draft, policy: &TrafficPolicy) {
    let pool = policy.connection_pool.clone().unwrap_or_default();
    apply_h2_upgrade(draft, inputs.settings, pool.http.as_ref(), inputs.port.protocol);
    apply_connection_pool(draft, inputs.settings, &pool, policy.retry_budget.as_ref());
    apply_outlier_detection(draft, policy.outlier_detection.as_ref(), inputs.settings, inputs.service);
    apply_load_balancer(draft, inputs.settings, policy.load_balancer.as_ref(), inputs.service);
    finish(draft, inputs.profile, inputs.settings);
}
