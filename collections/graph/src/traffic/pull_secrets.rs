//! The pull secrets of extension images that each proxy may use (T05).
//!
//! The credentials are part of the extension's configuration: the proxy pulls the image itself. Only a proxy whose
//! identity is verified gets credentials: those of its extensions of the identity's namespace and of the root
//! namespace, from Secrets of its cluster. A cluster that it only claims counts if it has a pod of the same identity. An
//! extension of another namespace, for a service there that a waypoint serves, has no credentials.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_model::{
    AmbientService, Attachment, ExtensionCode, Layer, ObjectKey, Proxy, ProxyKey, ProxyType, ServiceKey, Text,
    TrafficExtension, View, WaypointTarget,
};

use crate::content_names::content_hash;
use crate::options::GraphOptions;
use crate::traffic::gateways::routers::Router;
use crate::traffic::secret_accounts::{AccountLookup, PodAccounts};
use crate::traffic::waypoints::{WaypointProxies, WaypointScope};

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
/// Key: `ProxyKey`. From: `proxies`, `extensions` with a pull secret, `mesh_config` (the root namespace); of waypoints, the
/// services that they serve; `pod_accounts`.
/// Changes when: an extension of the proxy gains or loses its pull secret, or starts or stops to apply to the proxy; the
/// cluster that it claims without proof has the first pod of its service account, or no longer has one.
/// Size: proxies of such extensions. Rejects: none.
pub(crate) fn derive_pull_access<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    extensions: &Collection<'s, ObjectKey, TrafficExtension>,
    root: &Collection<'s, (), Text>,
    waypoints: Option<&WaypointProxies<'s>>,
    accounts: &PodAccounts<'s>,
    options: &GraphOptions,
) -> Collection<'s, ProxyKey, PullAccess> {
    let with_secret = extensions.index("extensions/with-pull-secret", |_, extension| {
        let named = matches!(&extension.code, ExtensionCode::Wasm(wasm) if !wasm.pull_secret.is_empty());
        named.then(|| (extension.namespace.clone(), extension.attachment.clone()))
    });
    let own = options.cluster.clone();
    proxies.derive("pull_access", |deps| {
        let (root, with_secret) = (deps.on(root), deps.by(&with_secret));
        let waypoints = waypoints.map(|waypoints| ServedLookup::on(deps, waypoints));
        let accounts = AccountLookup::on(deps, accounts, &own);
        move |cx, key, proxy| {
            let identity = proxy.identity.as_ref()?;
            let root = cx.get(&root, &())?;
            // The namespace in the node metadata counts only if the verified identity has the same.
            let own_namespace =
                (identity.namespace == proxy.namespace && proxy.namespace != *root).then_some(&proxy.namespace);
            let rows = own_namespace.into_iter().chain([&*root]).flat_map(|namespace| cx.by(&with_secret, namespace));
            let rows: Vec<(ObjectKey, Arc<Attachment>)> = rows.collect();
            let is_waypoint = proxy.proxy_type == ProxyType::Waypoint;
            let lookup = waypoints.as_ref().filter(|_| is_waypoint && !rows.is_empty());
            let served = lookup.map(|waypoints| waypoints.get(cx, key)).unwrap_or_default();
            let (namespace, labels) = (&proxy.namespace, &proxy.labels);
            let is_for_service = |extension: &ObjectKey, attachment: &Attachment, service: &AmbientService| {
                let service = Some((service.source, &service.object));
                let target = WaypointTarget { namespace, labels, root_namespace: &root, service };
                attachment.is_for_waypoint(extension, &target)
            };
            let applicable = rows.into_iter().filter(|(extension, attachment)| {
                attachment.is_for_proxy(extension, is_waypoint, namespace, labels, &root)
                    || served.iter().any(|service| is_for_service(extension, attachment, service))
            });
            let extensions: BTreeSet<ObjectKey> = applicable.map(|(extension, _)| extension).collect();
            if extensions.is_empty() {
                return None;
            }
            let cluster = accounts.get(cx, proxy)?.reader.cluster;
            Some(PullAccess { cluster, extensions })
        }
    })
}

/// Looks up the services that a waypoint serves, as declared, inside a `derive`.
struct ServedLookup {
    proxies: Dep<ProxyKey, Router>,
    scopes: Dep<Router, WaypointScope>,
    services: Dep<ServiceKey, AmbientService>,
}

impl ServedLookup {
    fn on<'s>(deps: &mut Deps<'s>, waypoints: &WaypointProxies<'s>) -> Self {
        Self {
            proxies: deps.on(&waypoints.proxies),
            scopes: deps.on(&waypoints.scopes),
            services: deps.on(&waypoints.services),
        }
    }

    fn get(&self, cx: &Context, proxy: &ProxyKey) -> Vec<Arc<AmbientService>> {
        let waypoint = cx.get(&self.proxies, proxy);
        let scope = waypoint.and_then(|waypoint| cx.get(&self.scopes, &waypoint));
        let services = scope.iter().flat_map(|scope| &scope.services);
        services.filter_map(|service| cx.get(&self.services, service)).collect()
    }
}
