//! Routers by listener profile: replicas of one router with one profile share their listeners.

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::listener::ListenerProfile;
use sluice_model::{ProxyKey, Text};

use crate::traffic::gateways::routers::Router;

/// A router as proxies of one profile are.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct Side {
    pub(super) router: Router,
    pub(super) profile: Text,
}

/// Distinct routers, a profile each.
pub(super) fn derive_sides<'s>(
    collection: &str,
    listener_facts: &Collection<'s, ProxyKey, ListenerProfile>,
    routers: &Collection<'s, ProxyKey, Router>,
) -> Collection<'s, Side, ()> {
    let sides = routers.derive(&format!("{collection}/by-proxy"), |deps| {
        let facts = deps.on(listener_facts);
        move |cx, key, router| Some(Side { router: router.clone(), profile: cx.get(&facts, key)?.profile() })
    });
    sides.index(&format!("{collection}/by-content"), |_, side| [(side.clone(), ())]).distinct(collection)
}
