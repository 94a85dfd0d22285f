//! Route tables (N18 to N20, N22), assembled from virtual-host segments.

pub(crate) mod gateway_hosts;
mod router_routes;
mod sidecar_routes;
pub(crate) mod virtual_hosts;

use sluice_model::{Layer, ProxyType};

use super::Outputs;
use crate::content_names::profile_text;
use crate::graph_context::GraphContext;
use crate::outputs::layers::LayerInputs;
use crate::traffic::gateways::routers::Router;
use router_routes::{RouterProfile, derive_router_segments};
use sidecar_routes::{RouteInputs, derive_sidecar_segments};
use virtual_hosts::RouteProfile;

/// What a sidecar sees of the mesh; of a router its own tables.
pub(crate) fn layers(client: &LayerInputs<'_>) -> Vec<Layer> {
    let profile = profile_text(&RouteProfile::of(client.proxy));
    match client.proxy.proxy_type {
        ProxyType::Sidecar => client.outbound(&profile),
        ProxyType::Router => vec![Layer { view: Router::of(client.proxy, client.workload).view(), profile }],
        ProxyType::Waypoint | ProxyType::Ztunnel => Vec::new(),
    }
}

/// Route tables of sidecars and of routers.
pub(crate) fn derive_routes<'s>(context: &GraphContext<'s>, outputs: &mut Outputs<'s>) {
    let inputs = RouteInputs::new(context);
    outputs.segments.extend(derive_sidecar_segments(&inputs));
    let profiles = context.routers.proxies.derive("routers/with-proxies", |deps| {
        let proxies = deps.on(&context.proxies);
        move |cx, key, router| {
            let profile = RouteProfile::of(&*cx.get(&proxies, key)?);
            Some(RouterProfile { router: router.clone(), profile })
        }
    });
    let profiles = profiles.index("router_profiles/by-content", |_, profile| [(profile.clone(), ())]);
    let profiles = profiles.distinct("router_profiles");
    outputs.segments.extend(derive_router_segments(&inputs, &profiles, &context.routers.merged));
}
