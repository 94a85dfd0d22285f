//! String matchers, and values with wildcards.

use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};
use sluice_model::{SPIFFE_SCHEME, StringMatch};

fn matcher(pattern: MatchPattern) -> StringMatcher {
    StringMatcher { match_pattern: Some(pattern), ..StringMatcher::default() }
}

/// Matches the whole text.
#[must_use]
pub fn exact(text: &str) -> StringMatcher {
    matcher(MatchPattern::Exact(text.to_owned()))
}

/// Matches the beginning of the text.
#[must_use]
pub fn prefix(text: &str) -> StringMatcher {
    matcher(MatchPattern::Prefix(text.to_owned()))
}

/// Matches the identities of a trust domain.
pub(crate) fn in_trust_domain(domain: &str) -> StringMatcher {
    prefix(&format!("{SPIFFE_SCHEME}{domain}/"))
}

/// Matches the end of the text.
#[must_use]
pub fn suffix(text: &str) -> StringMatcher {
    matcher(MatchPattern::Suffix(text.to_owned()))
}

/// Matches the whole text by a regular expression.
#[must_use]
pub fn regex(regex: &str) -> StringMatcher {
    matcher(MatchPattern::SafeRegex(build_regex(regex)))
}

/// A regular expression for the default engine.
pub(crate) fn build_regex(regex: &str) -> RegexMatcher {
    RegexMatcher { regex: regex.to_owned(), ..RegexMatcher::default() }
}

/// A string match in Envoy's form.
pub(crate) fn build_string_match(value: &StringMatch) -> StringMatcher {
    match value {
        StringMatch::Exact(text) => exact(text),
        StringMatch::Prefix(text) => prefix(text),
        StringMatch::Regex(text) => regex(text),
    }
}

/// A value of a policy with an optional wildcard: `*`, `*suffix`, `prefix*` or an exact value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WildcardValue<'a> {
    /// Any value that is present.
    Present,
    /// Values with this suffix.
    Suffix(&'a str),
    /// Values with this prefix.
    Prefix(&'a str),
    /// This value.
    Exact(&'a str),
}

impl<'a> WildcardValue<'a> {
    /// Parses a value. A wildcard at the start has precedence over one at the end, which is then part of the suffix.
    pub(crate) fn parse(value: &'a str) -> Self {
        match (value, value.strip_prefix('*'), value.strip_suffix('*')) {
            ("*", ..) => Self::Present,
            (_, Some(suffix), _) => Self::Suffix(suffix),
            (_, None, Some(prefix)) => Self::Prefix(prefix),
            (exact, None, None) => Self::Exact(exact),
        }
    }
}
