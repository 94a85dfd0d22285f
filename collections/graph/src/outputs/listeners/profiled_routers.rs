//! Routers by listener profile: replicas of one router with the same profile share their listeners.

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::listener_settings::ListenerProfile;
use sluice_model::{ProxyKey, Text};

use crate::content_names::profile_text;
use crate::traffic::gateways::routers::Router;

/// A router whose proxies have one profile.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct ProfiledRouter {
    pub(super) router: Router,
    pub(super) profile: Text,
}

/// The distinct routers of each profile.
pub(super) fn derive_profiled_routers<'s>(
    collection: &str,
    listener_facts: &Collection<'s, ProxyKey, ListenerProfile>,
    routers: &Collection<'s, ProxyKey, Router>,
) -> Collection<'s, ProfiledRouter, ()> {
    let sides = routers.derive(&format!("{collection}/by-proxy"), |deps| {
        let facts = deps.on(listener_facts);
        move |cx, key, router| {
            Some(ProfiledRouter { router: router.clone(), profile: profile_text(&*cx.get(&facts, key)?) })
        }
    });
    sides.index(&format!("{collection}/by-content"), |_, side| [(side.clone(), ())]).distinct(collection)
}
