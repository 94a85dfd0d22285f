//! String matchers.

use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};

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

/// Matches the end of the text.
#[must_use]
pub fn suffix(text: &str) -> StringMatcher {
    matcher(MatchPattern::Suffix(text.to_owned()))
}

/// Matches the whole text by a regular expression.
#[must_use]
pub fn regex(regex: &str) -> StringMatcher {
    matcher(MatchPattern::SafeRegex(RegexMatcher { regex: regex.to_owned(), ..RegexMatcher::default() }))
}

/// A regular expression that matches exactly `text`.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
