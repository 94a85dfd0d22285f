//! The number of routes that are attached to each listener.

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{Kind, ObjectKey};

use super::super::listeners::ListenerKey;
use super::super::route_report::RouteReports;

/// A route that is attached to a listener.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct AttachedRouteKey {
    listener: ListenerKey,
    kind: Kind,
    route: ObjectKey,
}

/// The number of routes of each listener. They are counted in groups by name first, so that a change reads few of them.
/// Key: `ListenerKey`. From: the reports of routes. Changes when: a route is attached or detached. Size: listeners with routes.
/// Rejects: none.
pub(super) fn count_attached_routes<'a, 's: 'a>(
    routes: impl Iterator<Item = &'a RouteReports<'s>>,
) -> Collection<'s, ListenerKey, u32> {
    let attached = routes.flatten().map(|(kind, reports)| {
        let kind = *kind;
        reports.flat_map(&format!("{}/attached", reports.name().trim_end_matches("/report")), move |route, report| {
            let key =
                |listener: &ListenerKey| AttachedRouteKey { listener: listener.clone(), kind, route: route.clone() };
            report.listeners.iter().map(|listener| (key(listener), ())).collect::<Vec<_>>()
        })
    });
    let mut attached = attached.collect::<Vec<_>>();
    let first = attached.remove(0);
    let attached = first.union("gateway_api/attached_routes", &attached);
    let grouped =
        attached.index("gateway_api/attached-by-name", |key, ()| [((key.listener.clone(), group(&key.route)), ())]);
    let counts = grouped.group("gateway_api/attached-counts", |_, rows| u32::try_from(rows.len()).ok());
    let by_listener =
        counts.index("gateway_api/counts-by-listener", |(listener, _), count| [(listener.clone(), *count)]);
    by_listener.group("gateway_api/attached-route-counts", |_, rows| Some(rows.iter().map(|(_, count)| **count).sum()))
}

/// The group of a route.
fn group(route: &ObjectKey) -> u8 {
    let bytes = route.namespace.bytes().chain(route.name.bytes());
    bytes.fold(0, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte))
}
