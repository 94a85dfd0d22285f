//! The pull secrets of extension images that each proxy may use (T05).
//!
//! The credentials are part of the extension's configuration: the proxy pulls the image itself. Only a proxy whose
//! identity is verified gets credentials: those of its extensions of the identity's namespace and of the root
//! namespace.

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{ExtensionCode, Layer, ObjectKey, Proxy, ProxyKey, Text, TrafficExtension, View};

use super::connected::cluster_of;
use crate::content_names::content_hash;
use crate::options::GraphOptions;

/// Extensions whose images proxies may pull with their pull secrets.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PullAccess {
    /// The cluster whose Secrets are looked up first.
    pub(crate) cluster: Text,
    /// The extensions.
    pub(crate) extensions: BTreeSet<ObjectKey>,
}

impl PullAccess {
    /// The layer of configurations with credentials: all proxies with the same access share it.
    pub(crate) fn layer(&self) -> Layer {
        let view = View::Workload(format!("pulls#{}", content_hash(self)).into());
        Layer { view, profile: Text::default() }
    }
}

/// The extensions whose pull secrets each proxy may use; a proxy without any is absent.
/// Key: `ProxyKey`. From: `proxies`, `extensions` with a pull secret, `mesh_config` (the root namespace).
/// Changes when: an extension of the proxy gains or loses its pull secret, or starts or stops selecting the proxy.
/// Size: proxies of such extensions. Rejects: none.
pub(crate) fn derive_pull_access<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    extensions: &Collection<'s, ObjectKey, TrafficExtension>,
    root: &Collection<'s, (), Text>,
    options: &GraphOptions,
) -> Collection<'s, ProxyKey, PullAccess> {
    let with_secret = extensions.index("extensions/with-pull-secret", |_, extension| {
        let named = matches!(&extension.code, ExtensionCode::Wasm(wasm) if !wasm.pull_secret.is_empty());
        named.then(|| (extension.namespace.clone(), extension.attachment.clone()))
    });
    let own = options.cluster.clone();
    proxies.derive("pull_access", |deps| {
        let (root, with_secret) = (deps.on(root), deps.by(&with_secret));
        move |cx, _, proxy| {
            let identity = proxy.identity.as_ref()?;
            let root = cx.get(&root, &())?;
            // The namespace in the node metadata counts only if the verified identity has the same.
            let own_namespace =
                (identity.namespace == proxy.namespace && proxy.namespace != *root).then_some(&proxy.namespace);
            let rows = own_namespace.into_iter().chain([&*root]).flat_map(|namespace| cx.by(&with_secret, namespace));
            let applicable = rows.filter(|(key, attachment)| attachment.is_for(key, &proxy.namespace, &proxy.labels));
            let extensions: BTreeSet<ObjectKey> = applicable.map(|(key, _)| key).collect();
            let cluster = cluster_of(proxy, &own).clone();
            (!extensions.is_empty()).then_some(PullAccess { cluster, extensions })
        }
    })
}
