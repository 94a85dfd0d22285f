//! Matchers of text.

use envoy_types::pb::envoy::r#type::matcher::v3::StringMatcher;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;

/// The whole text.
#[must_use]
pub fn exact(text: &str) -> StringMatcher {
    StringMatcher { match_pattern: Some(MatchPattern::Exact(text.to_owned())), ..StringMatcher::default() }
}

/// The beginning of the text.
#[must_use]
pub fn prefix(text: &str) -> StringMatcher {
    StringMatcher { match_pattern: Some(MatchPattern::Prefix(text.to_owned())), ..StringMatcher::default() }
}
