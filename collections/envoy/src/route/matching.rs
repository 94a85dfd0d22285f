//! Route matches.

use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{HeaderMatcher, QueryParameterMatcher, RouteMatch};
use envoy_types::pb::google::protobuf::BoolValue;
use sluice_model::{HttpMatch, RouteSemantics, StringMatch};

use super::claims;
use crate::string_match::{build_regex, build_string_match};

/// The match of a route; `None` matches every request.
pub(super) fn build_match(semantics: RouteSemantics, matched: Option<&HttpMatch>) -> RouteMatch {
    let everything = Some(PathSpecifier::Prefix("/".into()));
    let Some(matched) = matched else { return RouteMatch { path_specifier: everything, ..RouteMatch::default() } };
    let mut out = RouteMatch {
        path_specifier: matched.uri.as_ref().map(|uri| path(semantics, uri)).or(everything),
        case_sensitive: Some(BoolValue { value: !matched.ignore_uri_case }),
        ..RouteMatch::default()
    };
    for (name, value) in &matched.headers {
        match claims::build_claim_match(name, value.as_ref(), false) {
            Some(claim) => out.dynamic_metadata.push(claim),
            None => out.headers.push(header(name, value.as_ref())),
        }
    }
    for (name, value) in &matched.without_headers {
        match claims::build_claim_match(name, value.as_ref(), true) {
            Some(claim) => out.dynamic_metadata.push(claim),
            None => {
                let matcher = header(name, value.as_ref());
                let present = matches!(matcher.header_match_specifier, Some(HeaderMatchSpecifier::PresentMatch(_)));
                // A header cannot be treated as empty when absent and required to be present at the same time.
                out.headers.push(HeaderMatcher {
                    invert_match: true,
                    treat_missing_header_as_empty: !present,
                    ..matcher
                });
            }
        }
    }
    out.headers.sort_by(|a, b| a.name.cmp(&b.name));
    for (name, value) in
        [(":method", &matched.method), (":authority", &matched.authority), (":scheme", &matched.scheme)]
    {
        if value.is_some() {
            out.headers.push(header(name, value.as_ref()));
        }
    }
    out.query_parameters = matched.query_params.iter().map(|(name, value)| query(name, value.as_ref())).collect();
    out
}

fn path(semantics: RouteSemantics, uri: &StringMatch) -> PathSpecifier {
    match uri {
        StringMatch::Exact(path) => PathSpecifier::Path(path.to_string()),
        StringMatch::Prefix(prefix) if semantics != RouteSemantics::Istio && prefix.as_str() != "/" => {
            PathSpecifier::PathSeparatedPrefix(prefix.strip_suffix('/').unwrap_or(prefix).into())
        }
        StringMatch::Prefix(prefix) => PathSpecifier::Prefix(prefix.to_string()),
        StringMatch::Regex(regex) => PathSpecifier::SafeRegex(build_regex(regex)),
    }
}

/// The string to match; `None` if presence is enough, which the regular expression `*` means.
fn text_of(value: Option<&StringMatch>) -> Option<&StringMatch> {
    value.filter(|value| !matches!(value, StringMatch::Regex(regex) if regex.as_str() == "*"))
}

fn header(name: &str, value: Option<&StringMatch>) -> HeaderMatcher {
    let specifier = match text_of(value) {
        None => HeaderMatchSpecifier::PresentMatch(true),
        Some(value) => HeaderMatchSpecifier::StringMatch(build_string_match(value)),
    };
    HeaderMatcher { name: name.into(), header_match_specifier: Some(specifier), ..HeaderMatcher::default() }
}

fn query(name: &str, value: Option<&StringMatch>) -> QueryParameterMatcher {
    let specifier = match text_of(value) {
        None => QueryParameterMatchSpecifier::PresentMatch(true),
        Some(value) => QueryParameterMatchSpecifier::StringMatch(build_string_match(value)),
    };
    QueryParameterMatcher { name: name.into(), query_parameter_match_specifier: Some(specifier) }
}
