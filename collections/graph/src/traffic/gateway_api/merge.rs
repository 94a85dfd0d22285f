//! Merges the routes of one parent and host into one VirtualService (G02).

use sluice_engine::Collection;
use sluice_model::{ObjectKey, VirtualService};

use super::generated;
use super::http_routes::{PlacedKey, PlacedRoute, precedence};
use crate::options::GraphOptions;

/// VirtualServices of HTTPRoutes and GRPCRoutes: one for each parent and host.
/// Key: `ObjectKey`. From: `gateway_api/http`.
/// Changes when: a route for the parent and host does. Size: hosts of parents. Rejects: none.
pub(super) fn derive_merged<'s>(
    placed: &Collection<'s, PlacedKey, PlacedRoute>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, VirtualService> {
    let by_place = placed.index("gateway_api/by-place", |_, placed| [(placed.place.clone(), placed.clone())]);
    let merged = by_place.group("gateway_api/merged", |place, rows: &[(&PlacedKey, &PlacedRoute)]| {
        let mut rows: Vec<&PlacedRoute> = rows.iter().map(|(_, placed)| *placed).collect();
        rows.sort_by_key(|row| (row.created, &row.virtual_service.namespace, &row.virtual_service.name));
        let mut merged = rows.first()?.virtual_service.clone();
        merged.http = rows.iter().flat_map(|row| row.virtual_service.http.iter().cloned()).collect();
        merged.http.sort_by_key(precedence);
        merged.name = place.replace('/', "~").into();
        Some(merged)
    });
    let cluster = options.cluster.clone();
    merged.flat_map("gateway_api/virtual_services", move |_, merged| {
        [(generated(&cluster, &merged.namespace, &merged.name), merged.clone())]
    })
}
