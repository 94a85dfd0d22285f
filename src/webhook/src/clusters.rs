//! What the injector has to know about clusters, from the objects of the engine.

use std::collections::BTreeMap;

use sluice_engine::Snapshot;
use sluice_graph::Handles;
use sluice_inject::{ClusterView, supports_native_sidecars};
use sluice_model::ObjectKey;

/// `ENABLE_NATIVE_SIDECARS`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum NativeSidecars {
    /// The versions of the kubelets decide.
    #[default]
    Auto,
    /// Proxies are native sidecars.
    Enabled,
    /// Proxies are containers.
    Disabled,
}

/// The clusters at one epoch.
pub(crate) struct Clusters<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) handles: &'a Handles,
    pub(crate) native_sidecars: NativeSidecars,
}

impl ClusterView for Clusters<'_> {
    fn has_native_sidecars(&self, cluster: &str, node: Option<&str>) -> bool {
        match self.native_sidecars {
            NativeSidecars::Enabled => return true,
            NativeSidecars::Disabled => return false,
            NativeSidecars::Auto => {}
        }
        let named = node.and_then(|name| self.snapshot.get(&self.handles.nodes, &ObjectKey::new(cluster, "", name)));
        if let Some(node) = named {
            return supports_native_sidecars(&node.kubelet_version);
        }
        let versions = self.snapshot.get(&self.handles.kubelet_versions, &cluster.into());
        versions.is_some_and(|versions| versions.iter().all(|version| supports_native_sidecars(version)))
    }

    fn namespace_annotations(&self, cluster: &str, namespace: &str) -> Option<BTreeMap<String, String>> {
        let key = ObjectKey::new(cluster, "", namespace);
        let namespace = self.snapshot.get(&self.handles.namespaces, &key)?;
        Some(namespace.annotations.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }
}
