//! GRPCRoutes (G02).

use sluice_model::gateway_api::{DeclaredRule, HttpRule};
use sluice_model::{HttpMatch, Object, StringMatch, Text};

use super::filter::{Filters, grpc_filters};
use super::http_route::{expression, http_backend, named_matches, parse_route};
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    parse_route(item, findings, rule, Vec::new()).map(|route| Object::GRPCRoute(Box::new(route)))
}

fn rule(fields: &Fields<'_>) -> HttpRule {
    let Filters { headers, mirrors, unsupported, .. } = grpc_filters(fields);
    if fields.has("sessionPersistence") {
        fields.warn("sessionPersistence", "not supported; it is ignored");
    }
    let name = fields.text("name");
    HttpRule {
        matches: fields.list("matches", |matched| HttpMatch {
            uri: matched.object("method").and_then(|method| method_match(&method)),
            headers: named_matches(matched, "headers"),
            ..HttpMatch::default()
        }),
        action: sluice_model::HttpRoute { name: name.clone(), headers, ..sluice_model::HttpRoute::default() },
        declared: DeclaredRule { name, ..DeclaredRule::default() },
        backends: fields.list("backendRefs", http_backend),
        mirrors,
        unsupported_filter: unsupported,
    }
}

/// The match for the path of gRPC calls: `/SERVICE/METHOD`.
fn method_match(fields: &Fields<'_>) -> Option<StringMatch> {
    let (service, method) = (fields.opt_text("service"), fields.opt_text("method"));
    let kind = fields.opt_text("type");
    let kind = kind.as_ref().map_or("Exact", Text::as_str);
    match (kind, service, method) {
        ("Exact" | "RegularExpression", None, None) => {
            fields.reject("", "`service` or `method` is required");
            None
        }
        ("Exact", Some(service), None) => Some(StringMatch::Prefix(format!("/{service}/").into())),
        ("Exact", Some(service), Some(method)) => Some(StringMatch::Exact(format!("/{service}/{method}").into())),
        ("RegularExpression", Some(service), None) => {
            Some(expression(fields, "service", format!("/{service}/.+").into()))
        }
        ("RegularExpression", Some(service), Some(method)) => {
            Some(expression(fields, "", format!("/{service}/{method}").into()))
        }
        ("Exact" | "RegularExpression", None, Some(method)) => {
            Some(expression(fields, "method", format!("/[^/]+/{method}").into()))
        }
        (kind, ..) => {
            fields.reject("type", format!("expected `Exact` or `RegularExpression`, found `{kind}`"));
            None
        }
    }
}
