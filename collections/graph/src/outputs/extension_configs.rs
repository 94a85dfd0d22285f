//! Extension configs (ECDS): what filters of listeners refer to by name.

use std::collections::BTreeMap;

use prost::Message;
use sluice_engine::Collection;
use sluice_envoy::extension::build_extension;
use sluice_envoy::wire;
use sluice_model::{ApplyTo, Layer, PatchOperation, Resource, ResourceKey, ResourceType, Text, TrafficExtension, View};
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
    outputs.resources.push(derive_modules(spine));
}

/// Modules that extensions run: by name everybody of the extension's namespace may have them, of the root namespace
/// everybody.
/// Key: layer and name. From: `extensions`, `mesh_config` (the root namespace). Changes when: they do.
/// Size: extensions, scripts apart. Rejects: none.
fn derive_modules<'s>(spine: &Spine<'s>) -> Collection<'s, ResourceKey, Resource> {
    spine.attached.extensions.derive_many("extension_configs/modules", |deps| {
        let root = deps.on(&spine.attached.root);
        move |cx, _, extension: &TrafficExtension| {
            let (Some(root), Some(config)) = (cx.get(&root, &()), build_extension(extension)) else {
                return Vec::new();
            };
            let everyone = extension.namespace == *root;
            let view = if everyone { View::Base } else { View::Namespace(extension.namespace.clone()) };
            let layer = Layer { view, profile: Text::default() };
            let key =
                ResourceKey { resource_type: ResourceType::ExtensionConfig, layer, name: config.name.as_str().into() };
            vec![(key, Resource::Encoded(wire::encode(&config)))]
        }
    })
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
