//! TLSRoutes: routes for connections, by server name (G02).

use sluice_model::Object;
use sluice_model::gateway_api::L4Route;

use super::route::{backend, hostnames, parents};
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    parse_route(item, findings, true).map(|route| Object::TLSRoute(Box::new(route)))
}

/// Reads a route for connections, with or without server names.
pub(super) fn parse_route(item: &Item<'_>, findings: &Findings, named: bool) -> Option<L4Route> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let route = L4Route {
        parents: parents(&fields, &meta.namespace),
        hostnames: if named { hostnames(&fields) } else { Vec::new() },
        rules: fields.list("rules", |rule| {
            rule.text("name");
            rule.list("backendRefs", backend)
        }),
        status: item.status(),
        meta,
    };
    if route.rules.is_empty() {
        fields.refuse("rules", "at least one rule is required");
    }
    drop(fields);
    (!findings.has_errors()).then_some(route)
}
