//! The mesh config and the networks (C12, C17).

use sluice_engine::Collection;
use sluice_model::{MeshConfig, MeshNetworks, MeshSettings, ObjectKey, Text};

use crate::options::GraphOptions;

/// The content of ConfigMap `istio` (`istio-REVISION` for a revision) of the system namespace, or the defaults.
/// Key: none, one record. From: `config_maps`.
/// Changes when: that ConfigMap does.
/// Size: 1. Rejects: none; a ConfigMap that does not parse is not written to the input.
pub(crate) fn derive_mesh_settings<'s>(
    one: &Collection<'s, (), ()>,
    config_maps: &Collection<'s, ObjectKey, MeshSettings>,
    options: &GraphOptions,
) -> Collection<'s, (), MeshSettings> {
    let name = match options.revision.as_str() {
        "" | "default" => "istio".to_owned(),
        revision => format!("istio-{revision}"),
    };
    let key = ObjectKey::new(options.cluster.clone(), options.system_namespace.clone(), name);
    one.derive("mesh_settings", |deps| {
        let config_maps = deps.on(config_maps);
        move |cx, (), ()| Some(cx.get(&config_maps, &key).map(|found| (*found).clone()).unwrap_or_default())
    })
}

/// The mesh config.
/// Key: none, one record. From: `mesh_settings`.
/// Changes when: any of its fields does; a collection that reads few fields should read a projection.
/// Size: 1. Rejects: none.
pub(crate) fn derive_mesh_config<'s>(settings: &Collection<'s, (), MeshSettings>) -> Collection<'s, (), MeshConfig> {
    settings.map("mesh_config", |(), settings| settings.mesh.clone())
}

/// The networks as configured.
/// Key: none, one record. From: `mesh_settings`.
/// Changes when: key `meshNetworks` of the ConfigMap does.
/// Size: 1. Rejects: none.
pub(crate) fn derive_mesh_networks<'s>(
    settings: &Collection<'s, (), MeshSettings>,
) -> Collection<'s, (), MeshNetworks> {
    settings.map("mesh_networks", |(), settings| settings.networks.clone().unwrap_or_default())
}

/// Namespace whose policies are for the whole mesh.
/// Key: none, one record. From: `mesh_config`. Changes when: the root namespace does. Size: 1. Rejects: none.
pub(crate) fn derive_root_namespace<'s>(mesh: &Collection<'s, (), MeshConfig>) -> Collection<'s, (), Text> {
    mesh.map("root_namespace", |(), mesh| mesh.root_namespace.clone())
}
