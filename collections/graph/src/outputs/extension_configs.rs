//! Extension configs (ECDS), which filters of listeners refer to by name.

use std::collections::BTreeMap;

use prost::Message;
use sluice_engine::{Collection, Index};
use sluice_envoy::extension::build_extension;
use sluice_envoy::wire;
use sluice_model::{
    ApplyTo, ExtensionCode, Layer, ObjectKey, PatchOperation, ProxyKey, ProxyType, Redacted, Resource, ResourceKey,
    ResourceType, Secret, Text, TrafficExtension, View,
};
use sluice_proto::envoy::config::core::v3::TypedExtensionConfig;

use super::Outputs;
use super::secrets::clusters;
use crate::outputs::layers::LayerFacts;
use crate::proxies::envoy_filters::{PatchProgram, PatchSetName};
use crate::traffic::gateways::routers::Router;
use crate::traffic::pull_secrets::PullAccess;
use crate::traffic::waypoints::{ServedKey, WaypointProxies};

/// The layer of its namespace, then that of the root namespace; of a waypoint first that of the namespaces of its
/// services. The layer with pull credentials comes before them, and the layers of patch sets come first.
pub(crate) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    let layer = |view| Layer { view, profile: Text::default() };
    let waypoint = client.proxy.proxy_type == ProxyType::Waypoint;
    let served = client.router_view().filter(|_| waypoint);
    let own = [View::Namespace(client.proxy.namespace.clone()), View::Base];
    served.into_iter().chain(own).map(layer).collect()
}

/// Inputs of the derivation of extension configs.
pub(crate) struct ExtensionConfigInputs<'a, 's> {
    /// Id of the cluster of the control plane.
    pub(crate) cluster: &'a Text,
    /// WasmPlugins and TrafficExtensions.
    pub(crate) extensions: &'a Collection<'s, ObjectKey, TrafficExtension>,
    /// Namespace whose extensions are for the whole mesh: one record.
    pub(crate) root_namespace: &'a Collection<'s, (), Text>,
    /// The pull secrets that each proxy may use.
    pub(crate) pull_access: &'a Collection<'s, ProxyKey, PullAccess>,
    /// Secrets that proxies can use.
    pub(crate) secrets: &'a Collection<'s, ObjectKey, Secret>,
    /// The patches of each set that apply to a resource type.
    pub(crate) programs: &'a Collection<'s, (PatchSetName, ResourceType), PatchProgram>,
    /// Connected waypoints, and what they serve, in ambient mode.
    pub(crate) waypoints: Option<&'a WaypointProxies<'s>>,
}

/// Extension configs.
pub(crate) fn derive_extension_configs<'s>(inputs: &ExtensionConfigInputs<'_, 's>, outputs: &mut Outputs<'s>) {
    outputs.resources.push(derive_patched(inputs));
    outputs.resources.push(derive_modules(inputs));
    outputs.resources.push(derive_pulled(inputs));
    if let Some(waypoints) = inputs.waypoints {
        outputs.resources.push(derive_of_waypoints(inputs, waypoints));
    }
}

/// Modules of extensions in the namespaces of the services of waypoints, other than the waypoint's own.
/// Key: layer and name. From: `waypoints/served`, `extensions`. Changes when: such an extension does, or a waypoint
/// gets its first service of a namespace. Size: extensions in namespaces of such services × waypoints. Rejects: none.
fn derive_of_waypoints<'s>(
    inputs: &ExtensionConfigInputs<'_, 's>,
    waypoints: &WaypointProxies<'s>,
) -> Collection<'s, ResourceKey, Resource> {
    let by_namespace: Index<'s, Text, ObjectKey, TrafficExtension> = inputs
        .extensions
        .index("extension_configs/by-namespace", |_, extension| [(extension.namespace.clone(), extension.clone())]);
    let namespaces: Index<'s, (Router, Text), ServedKey, ()> =
        waypoints.served.index("waypoints/namespaces-of-services", |(waypoint, service): &ServedKey, ()| {
            [((waypoint.clone(), service.namespace.clone()), ())]
        });
    let namespaces = namespaces.distinct("waypoints/service-namespaces");
    namespaces.derive_many("extension_configs/waypoints", |deps| {
        let (extensions, own) = (deps.by(&by_namespace), deps.on(&waypoints.namespaces));
        move |cx, (waypoint, namespace): &(Router, Text), ()| {
            if cx.get(&own, waypoint).is_none_or(|own| *own == *namespace) {
                return Vec::new();
            }
            let layer = Layer { view: waypoint.view(), profile: Text::default() };
            let row = |config: TypedExtensionConfig| {
                let name = config.name.as_str().into();
                let key = ResourceKey { resource_type: ResourceType::ExtensionConfig, layer: layer.clone(), name };
                (key, Resource::Encoded(wire::encode(&config)))
            };
            let found = cx.by(&extensions, namespace).into_iter();
            found.filter_map(|(_, extension)| build_extension(&extension, None)).map(row).collect()
        }
    })
}

/// Modules of extensions: an extension of the root namespace is for all proxies, another one for the proxies of its
/// namespace.
/// Key: layer and name. From: `extensions`, `mesh_config` (the root namespace). Changes when: they do.
/// Size: extensions, except scripts. Rejects: none.
fn derive_modules<'s>(inputs: &ExtensionConfigInputs<'_, 's>) -> Collection<'s, ResourceKey, Resource> {
    inputs.extensions.derive_many("extension_configs/modules", |deps| {
        let root = deps.on(inputs.root_namespace);
        move |cx, _, extension: &TrafficExtension| {
            let (Some(root), Some(config)) = (cx.get(&root, &()), build_extension(extension, None)) else {
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

/// Modules with pull credentials, for the proxies that may use them. Without credentials, the shared module of
/// [`derive_modules`] is served.
/// Key: layer and name. From: `pull_access`, `extensions`, `secrets`. Changes when: such an extension or its Secret does.
/// Size: extensions with pull secrets, for each combination of them that proxies may use. Rejects: none.
fn derive_pulled<'s>(inputs: &ExtensionConfigInputs<'_, 's>) -> Collection<'s, ResourceKey, Resource> {
    let each: Index<'s, (Layer, Text, ObjectKey), _, ()> =
        inputs.pull_access.index("pull_access/by-content", |_, access| {
            let layer = access.layer();
            let row = |key: &ObjectKey| ((layer.clone(), access.cluster.clone(), key.clone()), ());
            access.extensions.iter().map(row).collect::<Vec<_>>()
        });
    let own = inputs.cluster.clone();
    each.distinct("pull_access/extensions").derive_many("extension_configs/pulled", |deps| {
        let (extensions, secrets) = (deps.on(inputs.extensions), deps.on(inputs.secrets));
        move |cx, (layer, cluster, key), ()| {
            let Some(extension) = cx.get(&extensions, key) else { return Vec::new() };
            let ExtensionCode::Wasm(wasm) = &extension.code else { return Vec::new() };
            let credential = clusters(cluster, &own).into_iter().find_map(|cluster| -> Option<Redacted> {
                let name = ObjectKey::new(cluster.clone(), key.namespace.clone(), wasm.pull_secret.clone());
                cx.get(&secrets, &name)?.docker_config.clone()
            });
            let built = credential.and_then(|credential| build_extension(&extension, Some(&credential)));
            let row = |config: TypedExtensionConfig| {
                let name = config.name.as_str().into();
                let key = ResourceKey { resource_type: ResourceType::ExtensionConfig, layer: layer.clone(), name };
                (key, Resource::Encoded(wire::encode(&config)))
            };
            built.into_iter().map(row).collect()
        }
    })
}

/// Extension configs that patches add; of several with one name the first is used.
/// Key: layer and name. From: `patch_programs`. Changes when: an EnvoyFilter in use does.
/// Size: extension configs of EnvoyFilters. Rejects: none.
fn derive_patched<'s>(inputs: &ExtensionConfigInputs<'_, 's>) -> Collection<'s, ResourceKey, Resource> {
    inputs.programs.flat_map("extension_configs/patches", |(set, resource_type), program| {
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
        let layer = set.added_layer();
        let key = move |name| ResourceKey { resource_type: ResourceType::ExtensionConfig, layer: layer.clone(), name };
        added.into_iter().map(|(name, config)| (key(name), config)).collect::<Vec<_>>()
    })
}
