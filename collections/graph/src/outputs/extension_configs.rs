//! Extension configs (ECDS): what filters of listeners refer to by name.

use std::collections::BTreeMap;

use prost::Message;
use sluice_engine::Collection;
use sluice_model::{ApplyTo, Layer, PatchOperation, Resource, ResourceKey, ResourceType, Text, View};
use sluice_proto::envoy::config::core::v3::TypedExtensionConfig;

use super::Outputs;
use crate::{Client, Spine};

/// Those of its namespace, then those of the root namespace, which are everybody's. Patch sets put their own before them.
pub(crate) fn layers(client: &Client<'_>) -> Vec<Layer> {
    let layer = |view| Layer { view, profile: Text::default() };
    vec![layer(View::Namespace(client.proxy.namespace.clone())), layer(View::Base)]
}

/// Extension configs.
pub(crate) fn derive_extension_configs<'s>(spine: &Spine<'s>, outputs: &mut Outputs<'s>) {
    outputs.resources.push(derive_patched(spine));
}

/// Extension configs that patches add; of several with one name the first.
/// Key: layer and name. From: `patch_programs`. Changes when: an EnvoyFilter in use does.
/// Size: extension configs of EnvoyFilters. Rejects: none.
fn derive_patched<'s>(spine: &Spine<'s>) -> Collection<'s, ResourceKey, Resource> {
    spine.patches.programs.flat_map("extension_configs/patches", |(set, resource_type), program| {
        let mut added: BTreeMap<Text, Resource> = BTreeMap::new();
        let adds = program.patches.iter().filter(|patch| {
            *resource_type == ResourceType::ExtensionConfig
                && patch.apply_to == ApplyTo::ExtensionConfig
                && patch.operation == PatchOperation::Add
        });
        for patch in adds {
            if let Ok(config) = TypedExtensionConfig::decode(patch.value.0.clone()) {
                added.entry(config.name.into()).or_insert_with(|| Resource::Encoded(patch.value.0.clone()));
            }
        }
        let layer = set.added();
        let key = move |name| ResourceKey { resource_type: ResourceType::ExtensionConfig, layer: layer.clone(), name };
        added.into_iter().map(|(name, config)| (key(name), config)).collect::<Vec<_>>()
    })
}
