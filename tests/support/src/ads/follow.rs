//! The names that a client subscribes to next, given the resources it has received.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Kind;

/// Adds the names of `kind` to which a resource in canonical JSON refers.
pub fn names(kind: Kind, resource: &Value, into: &mut BTreeSet<String>) {
    match kind {
        Kind::Eds => {
            if resource["type"] == "EDS" {
                let service = resource["edsClusterConfig"]["serviceName"].as_str().filter(|name| !name.is_empty());
                into.extend(service.or_else(|| resource["name"].as_str()).map(ToOwned::to_owned));
            }
        }
        Kind::Rds => search(resource, &mut |object| object["rds"]["routeConfigName"].as_str(), into),
        Kind::Ecds => {
            search(resource, &mut |o| o["configDiscovery"].is_object().then(|| o["name"].as_str()).flatten(), into);
        }
        Kind::Sds => {
            search(resource, &mut |o| o["sdsConfig"]["ads"].is_object().then(|| o["name"].as_str()).flatten(), into);
        }
        Kind::Cds | Kind::Lds | Kind::Nds | Kind::WdsAddress | Kind::WdsAuthz => {}
    }
}

/// The types whose resources refer to resources of `kind`.
#[must_use]
pub const fn referring_kinds(kind: Kind) -> &'static [Kind] {
    match kind {
        Kind::Eds => &[Kind::Cds],
        Kind::Rds | Kind::Ecds => &[Kind::Lds],
        Kind::Sds => &[Kind::Cds, Kind::Lds],
        Kind::Cds | Kind::Lds | Kind::Nds | Kind::WdsAddress | Kind::WdsAuthz => &[],
    }
}

fn search<'a>(value: &'a Value, find: &mut impl FnMut(&'a Value) -> Option<&'a str>, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            into.extend(find(value).map(ToOwned::to_owned));
            fields.values().for_each(|inner| search(inner, find, into));
        }
        Value::Array(elements) => elements.iter().for_each(|inner| search(inner, find, into)),
        _ => {}
    }
}
