//! Route tables of routers.
//!
//! They are derived in three steps, so that a change costs only what it affects: a server of a Gateway changes its
//! table, a host of a VirtualService changes the plan of the tables it is bound to, and a route changes the virtual
//! hosts it belongs to.

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::route::{TableKind, build_header};
use sluice_model::{Layer, MESH_GATEWAY, Resource, Segment, SegmentKey, Text};

use super::gateway_hosts::{
    BoundVirtualService, PlannedHost, RouteSource, build_planned_host, outline, plan_virtual_hosts,
};
use super::sidecar_routes::{RouteCollections, RouteReads, encoded, segment_key};
use super::virtual_hosts::{RouteProfile, RouteScope};
use crate::content_names::profile_text;
use crate::traffic::gateways::routers::Router;
use crate::traffic::gateways::{GatewayTable, MergedGateway};

/// A router and the route profile of its proxies.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct RouterProfile {
    /// The router.
    pub(crate) router: Router,
    /// The profile.
    pub(crate) profile: RouteProfile,
}

impl RouterProfile {
    fn layer(&self) -> Layer {
        Layer { view: self.router.view(), profile: profile_text(&self.profile) }
    }

    fn client(&self, namespace: &Text) -> RouteScope {
        RouteScope { namespace: namespace.clone(), labels: self.router.labels.clone(), scope: None }
    }
}

/// A route table of a router.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct RouterTableKey {
    of: RouterProfile,
    table: Text,
}

/// The fields of a table that its virtual hosts are derived from.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct RouterTable {
    /// Namespace of the router.
    namespace: Text,
    table: GatewayTable,
}

/// A virtual host of a table.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PlannedHostKey {
    of: RouterTableKey,
    name: Text,
}

/// A virtual host to build, and the namespace of its router.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PlannedRouterHost {
    namespace: Text,
    host: PlannedHost,
}

/// Segments of the route tables of routers: the virtual hosts, and the rest of each table.
/// Key: `SegmentKey`. From: `routes/router-hosts`, `virtual_services`, `services`, `destination_rules`, `mesh_config`.
/// Changes when: a route of the virtual host does, or a service or rule of its destinations.
/// Size: distinct routers × their hosts. Rejects: none.
pub(crate) fn derive_router_segments<'s>(
    inputs: &RouteCollections<'s>,
    routers: &Collection<'s, RouterProfile, ()>,
    merged_gateways: &Collection<'s, Router, MergedGateway>,
) -> [Collection<'s, SegmentKey, Segment>; 2] {
    let tables = derive_tables(routers, merged_gateways);
    let headers = tables.flat_map("routes/router-headers", |key, _| {
        let header = build_header(&key.table, TableKind::Full);
        [(segment_key(&key.of.layer(), &key.table, &Text::default()), encoded(&header))]
    });
    let planned = derive_planned_hosts(inputs, &tables);
    let hosts = planned.derive_many("routes/routers", |d| {
        let reads = RouteReads::on(d, inputs);
        let virtual_services = d.on(&inputs.virtual_services);
        move |cx, PlannedHostKey { of: RouterTableKey { of, table }, name }, PlannedRouterHost { namespace, host }| {
            let find = |source: &RouteSource| cx.get(&virtual_services, &source.virtual_service);
            let bytes = build_planned_host(&reads.at(cx), host, &find, &of.client(namespace), &of.profile);
            vec![(segment_key(&of.layer(), table, name), Resource::Encoded(bytes))]
        }
    });
    [headers, hosts]
}

/// The route tables of routers.
/// Key: `TableKey`. From: `merged_gateways`, the profiles of routers.
/// Changes when: a server of the table does. Size: distinct routers × their tables. Rejects: none.
fn derive_tables<'s>(
    routers: &Collection<'s, RouterProfile, ()>,
    merged_gateways: &Collection<'s, Router, MergedGateway>,
) -> Collection<'s, RouterTableKey, RouterTable> {
    routers.derive_many("routes/router-tables", |d| {
        let merged_gateways = d.on(merged_gateways);
        move |cx, of, ()| {
            let Some(merged) = cx.get(&merged_gateways, &of.router) else { return Vec::new() };
            let row = |table: &GatewayTable| {
                let key = RouterTableKey { of: of.clone(), table: table.name.clone() };
                (key, RouterTable { namespace: merged.namespace.clone(), table: table.clone() })
            };
            merged.tables.iter().map(row).collect()
        }
    })
}

/// The virtual hosts of each table, without their routes.
/// Key: `HostKey`. From: `routes/router-tables`, `virtual_services/outlines`.
/// Changes when: a VirtualService bound to a Gateway of the table gains or loses a host, or its matches on port,
/// gateway and client change. Size: distinct routers × their hosts. Rejects: none.
fn derive_planned_hosts<'s>(
    inputs: &RouteCollections<'s>,
    tables: &Collection<'s, RouterTableKey, RouterTable>,
) -> Collection<'s, PlannedHostKey, PlannedRouterHost> {
    let outlines = inputs.virtual_services.filter_map("virtual_services/outlines", |_, virtual_service| {
        let bound = virtual_service.gateways.iter().any(|gateway| gateway.as_str() != MESH_GATEWAY);
        bound.then(|| outline(virtual_service))
    });
    let by_gateway = crate::traffic::virtual_services::index_by_gateway("virtual_services/by-gateway", &outlines);
    tables.derive_many("routes/router-hosts", |d| {
        let outlines = d.on(&outlines);
        let bound = d.by(&by_gateway);
        move |cx, of, RouterTable { namespace, table }| {
            let bound_to = |gateway: &Text| {
                let keys = cx.by(&bound, gateway).into_iter();
                keys.filter_map(|(key, _)| cx.get(&outlines, &key).map(|found| (key, found)))
                    .collect::<Vec<BoundVirtualService>>()
            };
            let planned = plan_virtual_hosts(table, &bound_to, &of.of.client(namespace));
            let row = |host: PlannedHost| {
                let key = PlannedHostKey { of: of.clone(), name: host.name.clone() };
                (key, PlannedRouterHost { namespace: namespace.clone(), host })
            };
            planned.into_iter().map(row).collect()
        }
    })
}
