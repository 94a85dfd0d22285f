//! Header names that refer to claims of a token: `@request.auth.claims.a.b` or `@request.auth.claims[a][b]`.

/// Prefix of the names. It is compared without regard to case.
pub const CLAIM_PREFIX: &str = "@request.auth.claims";

/// The path of a claim; `None` for the name of an ordinary header.
#[must_use]
pub fn claim_path(name: &str) -> Option<Vec<&str>> {
    let (prefix, path) = name.split_at_checked(CLAIM_PREFIX.len())?;
    if !prefix.eq_ignore_ascii_case(CLAIM_PREFIX) {
        return None;
    }
    if let Some(path) = path.strip_prefix('.').filter(|path| !path.is_empty()) {
        return Some(path.split('.').collect());
    }
    let path = path.strip_prefix('[')?.strip_suffix(']').filter(|path| !path.is_empty())?;
    Some(path.split("][").collect())
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
