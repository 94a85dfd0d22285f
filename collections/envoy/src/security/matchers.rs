//! How values of policies match: exactly, by prefix `a*`, by suffix `*a`, or by being there `*`.

use envoy_types::pb::envoy::config::route::v3::{HeaderMatcher, header_matcher::HeaderMatchSpecifier};
use envoy_types::pb::envoy::r#type::matcher::v3::{
    ListMatcher, MetadataMatcher, OrMatcher, StringMatcher, ValueMatcher, list_matcher, metadata_matcher::PathSegment,
    metadata_matcher::path_segment::Segment, value_matcher::MatchPattern,
};
use sluice_model::Text;

use crate::string_match::{escape, exact, prefix, regex, suffix};

/// Name of the filter that checks tokens, and that its metadata is known by.
pub(crate) const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";

/// Key of a token's claims in the metadata.
pub(crate) const JWT_PAYLOAD: &str = "payload";

/// A text that is there.
pub(super) fn present() -> StringMatcher {
    regex(".+")
}

/// A value.
pub(super) fn text(value: &str) -> StringMatcher {
    text_after("", value)
}

/// A value behind a fixed beginning.
pub(super) fn text_after(start: &str, value: &str) -> StringMatcher {
    if value == "*" {
        return present();
    }
    if let Some(end) = value.strip_prefix('*') {
        return if start.is_empty() { suffix(end) } else { regex(&format!("{start}.*{}", escape(end))) };
    }
    match value.strip_suffix('*') {
        Some(beginning) => prefix(&format!("{start}{beginning}")),
        None => exact(&format!("{start}{value}")),
    }
}

/// A header; hosts are matched whatever their case.
pub(super) fn header(name: &str, value: &str, ignore_case: bool) -> HeaderMatcher {
    let specifier = if value == "*" {
        HeaderMatchSpecifier::PresentMatch(true)
    } else {
        HeaderMatchSpecifier::StringMatch(StringMatcher { ignore_case, ..text(value) })
    };
    HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(specifier), ..HeaderMatcher::default() }
}

/// Metadata of a filter.
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

/// A list with such an element.
pub(super) fn list_with(element: ValueMatcher) -> ValueMatcher {
    let list = ListMatcher { match_pattern: Some(list_matcher::MatchPattern::OneOf(Box::new(element))) };
    ValueMatcher { match_pattern: Some(MatchPattern::ListMatch(Box::new(list))) }
}

/// Any of these.
pub(super) fn any_of(mut values: Vec<ValueMatcher>) -> ValueMatcher {
    match values.pop() {
        Some(only) if values.is_empty() => only,
        last => {
            values.extend(last);
            ValueMatcher { match_pattern: Some(MatchPattern::OrMatch(OrMatcher { value_matchers: values })) }
        }
    }
}

/// Any of these values.
pub(super) fn any_text(values: &[Text]) -> ValueMatcher {
    any_of(values.iter().map(|one| value(text(one))).collect())
}

/// A claim of a token, which may be a text or a list of texts.
pub(crate) fn claim<'a>(path: impl IntoIterator<Item = &'a str>, value: ValueMatcher) -> MetadataMatcher {
    let either = any_of(vec![list_with(value.clone()), value]);
    metadata(JWT_FILTER, std::iter::once(JWT_PAYLOAD).chain(path), either)
}

/// A claim that is one text.
pub(super) fn text_claim(name: &str, text: StringMatcher) -> MetadataMatcher {
    metadata(JWT_FILTER, [JWT_PAYLOAD, name], value(text))
}
