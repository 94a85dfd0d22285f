//! UDPRoutes: routes for datagrams, by port (G02).

use sluice_model::Object;

use super::tls_route::parse_route;
use crate::{Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    parse_route(item, findings, false).map(|route| Object::UDPRoute(Box::new(route)))
}
