//! Patch operations of EnvoyFilters (IST0151 to IST0155).

use std::collections::BTreeSet;

use serde_json::Value;

use crate::codes::{
    INVALID_ADD_PATCH, INVALID_REMOVE_PATCH, INVALID_REPLACE_PATCH, RELATIVE_PATCH, RELATIVE_PATCH_WITH_VERSION,
};
use crate::resource::ENVOY_FILTER;
use crate::value::{at, has, items, number, text};
use crate::{AnalyzedObject, MeshObjects, MessageList};

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    // Filters that earlier patches change for some versions of the proxy only.
    let mut by_version = BTreeSet::new();
    for filter in mesh.all(ENVOY_FILTER) {
        for (n, patch) in items(filter.spec(), "configPatches").iter().enumerate() {
            if !has(patch, "patch") {
                break;
            }
            let name = filter_name(patch);
            check(filter, n, patch, by_version.contains(&name), report);
            if !text(patch, "match.proxy.proxyVersion").is_empty() {
                by_version.insert(name);
            }
        }
    }
}

fn check<'m>(filter: &'m AnalyzedObject, n: usize, patch: &Value, has_version: bool, report: &mut MessageList<'m>) {
    let apply_to = text(patch, "applyTo");
    let is_route = matches!(apply_to, "ROUTE_CONFIGURATION" | "HTTP_ROUTE");
    let field = format!("spec.configPatches[{n}]");
    let operation = text(patch, "patch.operation");
    let is_relative = match operation {
        "ADD" if is_route => {
            let text = format!("operation ADD has no effect on {apply_to}");
            return report.add(&INVALID_ADD_PATCH, filter, field, text);
        }
        "REMOVE" if is_route => {
            let text = format!("operation REMOVE has no effect on {apply_to}");
            return report.add(&INVALID_REMOVE_PATCH, filter, field, text);
        }
        "REPLACE" if !matches!(apply_to, "NETWORK_FILTER" | "HTTP_FILTER" | "VIRTUAL_HOST") => {
            let text = format!(
                "operation REPLACE has no effect on {apply_to}; HTTP_FILTER, NETWORK_FILTER and VIRTUAL_HOST can be replaced"
            );
            return report.add(&INVALID_REPLACE_PATCH, filter, field, text);
        }
        "REMOVE" | "REPLACE" | "INSERT_BEFORE" | "INSERT_AFTER" => true,
        _ => false,
    };
    if !is_relative || number(filter.spec(), "priority").unwrap_or(0) != 0 {
        return;
    }
    let text =
        format!("operation {operation} depends on what earlier patches add, and the EnvoyFilter has no priority");
    if has_version {
        let text = format!(
            "{text}; another patch of the same filter is for a proxyVersion, so that an upgrade changes the result"
        );
        report.add(&RELATIVE_PATCH_WITH_VERSION, filter, field, text);
    } else {
        report.add(&RELATIVE_PATCH, filter, field, text);
    }
}

/// What names the filter of a patch. A name in the value and one in the match count as different, as in `istioctl`.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
enum FilterName<'p> {
    Value(String),
    Match(&'p str),
    None,
}

fn filter_name(patch: &Value) -> FilterName<'_> {
    match at(patch, "patch.value.name") {
        Value::Null if !has(patch, "patch.value") => FilterName::None,
        Value::Null => match text(patch, "match.listener.filterChain.filter.name") {
            "" => FilterName::None,
            name => FilterName::Match(name),
        },
        name => FilterName::Value(name.to_string()),
    }
}
