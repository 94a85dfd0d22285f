//! Routing by token claims: headers named `@request.auth.claims…` refer to metadata of the JWT filter.

use envoy_types::pb::envoy::r#type::matcher::v3::value_matcher::MatchPattern as ValuePattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{MetadataMatcher, ValueMatcher};
use sluice_model::StringMatch;

use crate::security::claim;
use crate::string_match::build_string_match;

const CLAIMS: &str = "@request.auth.claims";

/// The path of a claim: `.a.b` or `[a][b]` after the prefix; `None` for the name of an ordinary header.
fn claim_path(name: &str) -> Option<Vec<&str>> {
    let (prefix, path) = name.split_at_checked(CLAIMS.len())?;
    if !prefix.eq_ignore_ascii_case(CLAIMS) {
        return None;
    }
    if let Some(path) = path.strip_prefix('.').filter(|path| !path.is_empty()) {
        return Some(path.split('.').collect());
    }
    let path = path.strip_prefix('[')?.strip_suffix(']').filter(|path| !path.is_empty())?;
    Some(path.split("][").collect())
}

/// The match of a claim, which is a string or a list of strings; `None` for the name of an ordinary header.
pub(super) fn build_claim_match(name: &str, value: Option<&StringMatch>, invert: bool) -> Option<MetadataMatcher> {
    let path = claim_path(name)?;
    let text = value.map(build_string_match).unwrap_or_default();
    let value = ValueMatcher { match_pattern: Some(ValuePattern::StringMatch(text)) };
    Some(MetadataMatcher { invert, ..claim(path, value) })
}

#[cfg(test)]
mod tests {
    use super::claim_path;

    #[test]
    fn both_forms_of_claims_are_parsed() {
        let check = |name: &str, expect: Option<&[&str]>| assert_eq!(claim_path(name).as_deref(), expect, "{name}");
        check("@request.auth.claims.a.b", Some(&["a", "b"]));
        check("@Request.auth.claims[a.x][b]", Some(&["a.x", "b"]));
        check("@request.auth.claims", None);
        check("@request.auth.claims[]", None);
        check("x-header", None);
    }
}
