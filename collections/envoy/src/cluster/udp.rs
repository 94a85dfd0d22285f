//! Clusters of UDP ports, for gateways with UDPRoutes (G02). The reference has none.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::DiscoveryType;
use sluice_model::{ConnectionPool, Resolution};

use super::load_balancer::apply_load_balancer;
use super::outbound::{OutboundInputs, discovery_type, eds, start};
use super::traffic_policy::{apply_connection_pool, with_defaults};
use crate::name::udp_cluster;

/// The cluster of a UDP port: without TLS and HTTP. Of a DestinationRule, the load balancer applies, and the maximum number of
/// connections, which is that of sessions. `None` if the service has no addresses of its own.
#[must_use]
pub fn build_udp(inputs: &OutboundInputs<'_>) -> Option<Cluster> {
    let (service, port, settings) = (inputs.service, inputs.port, inputs.settings);
    if service.resolution == Resolution::Alias || service.is_dynamic_dns() || service.is_inference_pool() {
        return None;
    }
    let name = udp_cluster(u32::from(port.port), service.host.as_str());
    let mut draft = start(inputs, &name, "", discovery_type(service, inputs.profile.proxy_type))?;
    let policy = with_defaults(settings, inputs.rule.and_then(|rule| rule.policy("", port.port)));
    let pool = ConnectionPool { http: None, ..policy.connection_pool.unwrap_or_default() };
    apply_connection_pool(&mut draft, settings, &pool, None);
    apply_load_balancer(&mut draft, settings, policy.load_balancer.as_ref(), service);
    if draft.is(DiscoveryType::Eds) {
        draft.cluster.eds_cluster_config = Some(eds(&name));
    }
    Some(draft.finish())
}
