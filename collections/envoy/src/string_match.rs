//! Matchers of text.

use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};

fn matcher(pattern: MatchPattern) -> StringMatcher {
    StringMatcher { match_pattern: Some(pattern), ..StringMatcher::default() }
}

/// The whole text.
#[must_use]
pub fn exact(text: &str) -> StringMatcher {
    matcher(MatchPattern::Exact(text.to_owned()))
}

/// The beginning of the text.
#[must_use]
pub fn prefix(text: &str) -> StringMatcher {
    matcher(MatchPattern::Prefix(text.to_owned()))
}

/// The end of the text.
#[must_use]
pub fn suffix(text: &str) -> StringMatcher {
    matcher(MatchPattern::Suffix(text.to_owned()))
}

/// A regular expression for the whole text.
#[must_use]
pub fn regex(regex: &str) -> StringMatcher {
    matcher(MatchPattern::SafeRegex(RegexMatcher { regex: regex.to_owned(), ..RegexMatcher::default() }))
}

/// The text as an expression for itself.
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
