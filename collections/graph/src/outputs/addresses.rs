//! Workloads, services and policies of node proxies (X26, X27): one layer that all node proxies share.

use sluice_engine::Collection;
use sluice_envoy::ztunnel::build_service;
use sluice_model::{Layer, Resource, ResourceKey, ResourceType, Text};

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

fn key(resource_type: ResourceType, name: Text) -> ResourceKey {
    ResourceKey { resource_type, layer: Layer::default(), name }
}
