//! Workloads, services and policies of node proxies (X26, X27): one layer that all node proxies share.

use sluice_engine::Collection;
use sluice_envoy::ztunnel::{build_service, with_sidecar_mtls};
use sluice_model::{Layer, Resource, ResourceKey, ResourceType, Text, View};

use super::Outputs;
use crate::outputs::layers::LayerFacts;
use crate::traffic::ambient::Ambient;

/// Every client gets all of them.
pub(crate) fn layers(_: &LayerFacts<'_>) -> Vec<Layer> {
    vec![Layer::default()]
}

/// Addresses by uid, or by `NAMESPACE/HOST` for services; workloads by uid, in the same bytes without the wrapping
/// message; and policies by `NAMESPACE/NAME`.
/// Key: `ResourceKey`. From: `ambient_services`, `ambient_workloads`, `ambient_policies`.
/// Changes when: the named object does.
/// Size: pods, addresses of entries and slices, services and policies. Rejects: none.
pub(crate) fn derive_addresses<'s>(ambient: &Ambient<'s>, outputs: &mut Outputs<'s>) {
    outputs.resources.push(ambient.services.flat_map("addresses/services", |_, service| {
        [(key(ResourceType::Address, service.resource_name()), Resource::Encoded(build_service(service)))]
    }));
    for workloads in &ambient.workloads {
        let name = workloads.name().trim_start_matches("ambient_workloads/");
        outputs.resources.push(workloads.flat_map(&format!("addresses/{name}"), |uid, workload| {
            [(key(ResourceType::Address, uid.clone()), workload.address.clone())]
        }));
        outputs.resources.push(workloads.flat_map(&format!("workloads/{name}"), |uid, workload| {
            [(key(ResourceType::Workload, uid.clone()), workload.workload.clone())]
        }));
    }
    let policies: Collection<'s, ResourceKey, Resource> =
        ambient.policies.flat_map("addresses/policies", |name, policy| {
            [(key(ResourceType::Authorization, name.clone()), policy.clone())]
        });
    outputs.resources.push(policies);
}

/// The layers of addresses for agentgateways: they reach workloads with sidecars by the mutual TLS of these.
pub(crate) fn agentgateway_layers() -> Vec<Layer> {
    vec![agentgateway_layer(), Layer::default()]
}

/// The layer of what is sent to agentgateways only.
fn agentgateway_layer() -> Layer {
    Layer { view: View::Workload("agentgateway".into()), profile: Text::default() }
}

/// Addresses that only agentgateways get: those of InferencePools, and of workloads with sidecars in another form.
/// Key: `ResourceKey`. From: `ambient_services/pools`, `ambient_workloads`. Changes when: the named object does. Size: workloads with
/// sidecars and InferencePools. Rejects: none.
pub(crate) fn derive_agentgateway_addresses<'s>(ambient: &Ambient<'s>, outputs: &mut Outputs<'s>) {
    outputs.resources.extend(ambient.pools.as_ref().map(|pools| {
        pools.flat_map("agentgateway/addresses/pools", |_, pool| {
            let name = pool.resource_name();
            let key = ResourceKey { resource_type: ResourceType::Address, layer: agentgateway_layer(), name };
            [(key, Resource::Encoded(build_service(pool)))]
        })
    }));
    for workloads in &ambient.workloads {
        let name = workloads.name().trim_start_matches("ambient_workloads/");
        outputs.resources.push(workloads.flat_map(&format!("agentgateway/addresses/{name}"), |uid, workload| {
            let Resource::Encoded(bytes) = &workload.workload else { return None };
            let address = workload.has_sidecar.then(|| with_sidecar_mtls(bytes)).flatten()?;
            let key =
                ResourceKey { resource_type: ResourceType::Address, layer: agentgateway_layer(), name: uid.clone() };
            Some((key, Resource::Encoded(address)))
        }));
    }
}

fn key(resource_type: ResourceType, name: Text) -> ResourceKey {
    ResourceKey { resource_type, layer: Layer::default(), name }
}
