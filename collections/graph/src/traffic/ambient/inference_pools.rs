//! InferencePools as services, for agentgateways.

use sluice_engine::Collection;
use sluice_model::gateway_api::InferencePool;
use sluice_model::{
    AmbientLoadBalancing, AmbientPort, AmbientService, Protocol, ServiceKey, ServiceSource, ServiceWaypoints, Text,
};

use super::{AmbientInputs, ClusterNetworks};
use crate::options::GraphOptions;
use crate::registry::services::pool_host;

/// InferencePools of the config cluster as services without an address. As in the reference, only the first port of a pool counts.
/// Key: `ServiceKey`. From: `inference_pools`, `networks`. Changes when: the pods or the first port of the pool do. Size:
/// InferencePools. Rejects: none.
pub(super) fn derive_pool_services<'s>(
    inputs: &AmbientInputs<'_, 's>,
    networks: &Collection<'s, (), ClusterNetworks>,
    options: &GraphOptions,
) -> Collection<'s, ServiceKey, AmbientService> {
    let (cluster, domain) = (options.cluster.clone(), options.domain.clone());
    inputs.objects.inference_pools.derive_many("ambient_services/pools", |deps| {
        let networks = deps.on(networks);
        move |cx, key, pool: &InferencePool| {
            let Some(port) = pool.target_ports.first().filter(|_| key.cluster == cluster) else { return Vec::new() };
            let port = u32::from(*port);
            let service = AmbientService {
                object: key.clone(),
                source: ServiceSource::Kubernetes,
                created: pool.meta.created,
                host: pool_host(&key.name, &key.namespace, &domain),
                addresses: Vec::new(),
                network: cx.get(&networks, &()).map(|networks| networks.of(&key.cluster).clone()).unwrap_or_default(),
                other_addresses: Vec::new(),
                global: false,
                ports: vec![AmbientPort {
                    port,
                    name: Text::default(),
                    protocol: Protocol::Http,
                    target: port,
                    target_name: Text::default(),
                }],
                selector: pool.selector.clone(),
                subject_alt_names: Vec::new(),
                waypoints: ServiceWaypoints::default(),
                balancing: AmbientLoadBalancing::Any,
                publish_not_ready: false,
                ip_families: None,
                canonical: false,
                private: false,
            };
            vec![(service.key(), service)]
        }
    })
}
