//! GatewayClasses. One may belong to another controller, so only values of the wrong type are reported.

use sluice_model::Object;
use sluice_model::gateway_api::GatewayClass;

use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    fields.ignore_rest();
    let class =
        GatewayClass { meta: item.meta(findings), controller: fields.text("controllerName"), status: item.status() };
    drop(fields);
    (!findings.has_errors()).then_some(Object::GatewayClass(class))
}
