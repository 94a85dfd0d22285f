//! Root certificates that workloads trust (X23), in one message that all proxies share.

use sluice_engine::Collection;
use sluice_envoy::trust_bundle::build_trust_bundle;
use sluice_envoy::wire;
use sluice_model::{Layer, Resource, ResourceKey, ResourceType, Text};

use super::Outputs;
use crate::outputs::layers::LayerFacts;

pub(crate) fn layers(_: &LayerFacts<'_>) -> Vec<Layer> {
    vec![Layer::default()]
}

/// The root certificates, if workloads trust others than those that come with their certificates.
/// Key: one. From: `trust_bundle`.
/// Changes when: the roots do. Size: one. Rejects: none.
pub(crate) fn derive_trust_bundle<'s>(trust_bundle: &Collection<'s, (), Vec<Text>>, outputs: &mut Outputs<'s>) {
    outputs.resources.push(trust_bundle.derive_many("trust_bundle/encoded", |_| {
        move |_, (), roots: &Vec<Text>| {
            let key = ResourceKey {
                resource_type: ResourceType::ProxyConfig,
                layer: Layer::default(),
                name: Text::default(),
            };
            let encoded = Resource::Encoded(wire::encode(&build_trust_bundle(roots)));
            if roots.is_empty() { Vec::new() } else { vec![(key, encoded)] }
        }
    }));
}
