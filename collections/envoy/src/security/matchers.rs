//! Matchers for values of policies: exact, prefix `a*`, suffix `*a`, and presence `*`.

use envoy_types::pb::envoy::config::route::v3::{HeaderMatcher, header_matcher::HeaderMatchSpecifier};
use envoy_types::pb::envoy::r#type::matcher::v3::{
    ListMatcher, MetadataMatcher, OrMatcher, StringMatcher, ValueMatcher, list_matcher, metadata_matcher::PathSegment,
    metadata_matcher::path_segment::Segment, value_matcher::MatchPattern,
};
use sluice_model::{StringMatch, Text};

use crate::string_match::{WildcardValue, exact, prefix, regex, suffix};

/// Name of the JWT filter and of its metadata.
pub(crate) const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";

/// Key of a token's claims in the metadata.
pub(crate) const JWT_PAYLOAD: &str = "payload";

/// Matches any non-empty string.
pub(super) fn present() -> StringMatcher {
    regex(".+")
}

/// Matches a value.
pub(super) fn text(value: &str) -> StringMatcher {
    text_after("", value)
}

/// Matches a value after a fixed prefix.
pub(super) fn text_after(start: &str, value: &str) -> StringMatcher {
    match WildcardValue::parse(value) {
        WildcardValue::Present => present(),
        WildcardValue::Suffix(end) if start.is_empty() => suffix(end),
        WildcardValue::Suffix(end) => regex(&format!("{start}.*{}", StringMatch::escape_regex(end))),
        WildcardValue::Prefix(beginning) => prefix(&format!("{start}{beginning}")),
        WildcardValue::Exact(value) => exact(&format!("{start}{value}")),
    }
}

/// Matches a header. Hosts are matched case-insensitively.
pub(super) fn header(name: &str, value: &str, ignore_case: bool) -> HeaderMatcher {
    let specifier = if value == "*" {
        HeaderMatchSpecifier::PresentMatch(true)
    } else {
        HeaderMatchSpecifier::StringMatch(StringMatcher { ignore_case, ..text(value) })
    };
    HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(specifier), ..HeaderMatcher::default() }
}

/// Matches the metadata of a filter.
pub(super) fn metadata<'a>(
    filter: &str,
    path: impl IntoIterator<Item = &'a str>,
    value: ValueMatcher,
) -> MetadataMatcher {
    let segment = |key: &str| PathSegment { segment: Some(Segment::Key(key.to_owned())) };
    MetadataMatcher {
        filter: filter.to_owned(),
        path: path.into_iter().map(segment).collect(),
        value: Some(value),
        ..MetadataMatcher::default()
    }
}

pub(super) fn value(text: StringMatcher) -> ValueMatcher {
    ValueMatcher { match_pattern: Some(MatchPattern::StringMatch(text)) }
}

/// Matches a list with a matching element.
pub(super) fn list_with(element: ValueMatcher) -> ValueMatcher {
    let list = ListMatcher { match_pattern: Some(list_matcher::MatchPattern::OneOf(Box::new(element))) };
    ValueMatcher { match_pattern: Some(MatchPattern::ListMatch(Box::new(list))) }
}

/// Matches any of the matchers.
pub(super) fn any_of(mut values: Vec<ValueMatcher>) -> ValueMatcher {
    match values.pop() {
        Some(only) if values.is_empty() => only,
        last => {
            values.extend(last);
            ValueMatcher { match_pattern: Some(MatchPattern::OrMatch(OrMatcher { value_matchers: values })) }
        }
    }
}

/// Matches any of the values.
pub(super) fn any_text(values: &[Text]) -> ValueMatcher {
    any_of(values.iter().map(|one| value(text(one))).collect())
}

/// Matches a claim, which is a string or a list of strings.
pub(crate) fn claim<'a>(path: impl IntoIterator<Item = &'a str>, value: ValueMatcher) -> MetadataMatcher {
    let either = any_of(vec![list_with(value.clone()), value]);
    metadata(JWT_FILTER, std::iter::once(JWT_PAYLOAD).chain(path), either)
}

/// Matches a claim that is a string.
pub(super) fn text_claim(name: &str, text: StringMatcher) -> MetadataMatcher {
    metadata(JWT_FILTER, [JWT_PAYLOAD, name], value(text))
}
