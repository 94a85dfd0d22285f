//! Routing by token claims: headers named `@request.auth.claims…` refer to metadata of the JWT filter.

use envoy_types::pb::envoy::r#type::matcher::v3::value_matcher::MatchPattern as ValuePattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{MetadataMatcher, ValueMatcher};
use sluice_model::{StringMatch, claim_path};

use crate::security::claim;
use crate::string_match::build_string_match;

/// The match of a claim, which is a string or a list of strings; `None` for the name of an ordinary header.
pub(super) fn build_claim_match(name: &str, value: Option<&StringMatch>, invert: bool) -> Option<MetadataMatcher> {
    let path = claim_path(name)?;
    let text = value.map(build_string_match).unwrap_or_default();
    let value = ValueMatcher { match_pattern: Some(ValuePattern::StringMatch(text)) };
    Some(MetadataMatcher { invert, ..claim(path, value) })
}
