//! Who may have the credentials that images of extensions are pulled with (T05).
//!
//! They are part of the extension's configuration, so whoever has it pulls for itself. Only a proxy whose identity is
//! verified has any: of the extensions that are for it, those of its identity's namespace and of the root namespace.

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{ExtensionCode, Layer, ObjectKey, Proxy, ProxyKey, Text, TrafficExtension, View};

use crate::content_names::content_hash;
use crate::options::GraphOptions;

/// Extensions whose images proxies may pull.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PullAccess {
    /// The cluster whose Secrets count first.
    pub(crate) cluster: Text,
    /// The extensions.
    pub(crate) extensions: BTreeSet<ObjectKey>,
}

impl PullAccess {
    /// Where configurations with credentials are: shared by all that may have the same.
    pub(crate) fn layer(&self) -> Layer {
        let view = View::Workload(format!("pulls#{}", content_hash(self)).into());
        Layer { view, profile: Text::default() }
    }
}

/// The credentials each proxy may have; nothing for one that none of its extensions has a secret for.
/// Key: `ProxyKey`. From: `proxies`, `extensions` with a pull secret, `mesh_config` (the root namespace).
/// Changes when: an extension that is for the proxy gets or loses its pull secret, or starts or ceases to be for it.
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
            // What it says of its namespace counts for nothing unless that is proven.
            let near = (identity.namespace == proxy.namespace && proxy.namespace != *root).then_some(&proxy.namespace);
            let rows = near.into_iter().chain([&*root]).flat_map(|namespace| cx.by(&with_secret, namespace));
            let meant = rows.filter(|(key, attachment)| attachment.is_for(key, &proxy.namespace, &proxy.labels));
            let extensions: BTreeSet<ObjectKey> = meant.map(|(key, _)| key).collect();
            let cluster = if proxy.cluster.is_empty() { own.clone() } else { proxy.cluster.clone() };
            (!extensions.is_empty()).then_some(PullAccess { cluster, extensions })
        }
    })
}
