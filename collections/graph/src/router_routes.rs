//! Route tables of routers, whole tables of their own a router.

use std::sync::Arc;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::route::{TableKind, build_header};
use sluice_model::{Layer, Resource, Segment, SegmentKey, Text};

use crate::gateways::MergedGateway;
use crate::gateways::routers::Router;
use crate::gateways::routes::gateway_virtual_hosts;
use crate::profile_text;
use crate::sidecar_routes::{MeshReads, RouteInputs, encoded, segment_key};
use crate::virtual_hosts::{Client, RouteProfile};

/// A router and how its routes are written.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct RouterProfile {
    /// The router.
    pub router: Router,
    /// How.
    pub profile: RouteProfile,
}

/// Segments of the route tables of routers.
/// Key: `SegmentKey`. From: `merged_gateways`, `virtual_services`, `services`, `destination_rules`, `mesh_config`.
/// Changes when: a VirtualService bound to a Gateway of the router does, or a service or rule one of its routes leads to.
/// Size: distinct routers × the hosts they serve. Rejects: none.
pub fn derive_router_segments<'s>(
    inputs: &RouteInputs<'s>,
    routers: &Collection<'s, RouterProfile, ()>,
    merged_gateways: &Collection<'s, Router, MergedGateway>,
) -> Collection<'s, SegmentKey, Segment> {
    let by_gateway = crate::virtual_services::index_by_gateway(&inputs.virtual_services);
    routers.derive_many("routes/routers", |d| {
        let reads = MeshReads::on(d, inputs);
        let merged_gateways = d.on(merged_gateways);
        let virtual_services = d.on(&inputs.virtual_services);
        let bound = d.by(&by_gateway);
        move |cx, RouterProfile { router, profile }, ()| {
            let Some(merged) = cx.get(&merged_gateways, router) else { return Vec::new() };
            let mesh = reads.at(cx);
            let layer = Layer { view: router.view(), profile: profile_text(profile) };
            let client = Client { namespace: merged.namespace.clone(), labels: router.labels.clone() };
            let bound_to = |gateway: &Text| {
                let keys = cx.by(&bound, gateway).into_iter();
                keys.filter_map(|(key, _)| cx.get(&virtual_services, &key)).collect::<Vec<Arc<_>>>()
            };
            let mut segments = Vec::new();
            for table in &merged.tables {
                let header = build_header(&table.name, TableKind::Full);
                segments.push((segment_key(&layer, &table.name, &Text::default()), encoded(&header)));
                for (name, bytes) in gateway_virtual_hosts(&mesh, table, &bound_to, &client, profile) {
                    segments.push((segment_key(&layer, &table.name, &name), Resource::Encoded(bytes)));
                }
            }
            segments
        }
    })
}
