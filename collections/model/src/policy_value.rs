//! Values of identity attributes in AuthorizationPolicies: service accounts and trust domains.

/// Maximum length of a service account with its namespace, in bytes.
const MAX_SERVICE_ACCOUNT_BYTES: usize = 320;

/// Why a value of an attribute is invalid; displayed as a fragment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PolicyValueError {
    /// The value is empty.
    #[error("the value must not be empty")]
    Empty,
    /// The value has a wildcard, and the attribute supports none.
    #[error("`{0}` is not a service account: wildcards are not supported")]
    AccountWildcard(String),
    /// The value is not a name, or a namespace and a name.
    #[error("`{0}` is not a service account: expected `NAME` or `NAMESPACE/NAME`")]
    AccountForm(String),
    /// The value is too long.
    #[error("a service account must have at most {MAX_SERVICE_ACCOUNT_BYTES} characters")]
    AccountLength,
    /// The value has a wildcard elsewhere than at the start or at the end, or several of them.
    #[error("`{0}` is invalid: one wildcard is supported, at the start or at the end")]
    Wildcard(String),
    /// The value has a slash.
    #[error("`{0}` is not a trust domain: it must not contain `/`")]
    TrustDomainSlash(String),
}

/// Checks a service account `[NAMESPACE/]NAME`.
///
/// # Errors
/// The value has another form or a wildcard, or is too long.
pub fn check_service_account(value: &str) -> Result<(), PolicyValueError> {
    if value.contains('*') {
        return Err(PolicyValueError::AccountWildcard(value.to_owned()));
    }
    let mut parts = value.split('/');
    if parts.clone().count() > 2 || parts.any(str::is_empty) {
        return Err(PolicyValueError::AccountForm(value.to_owned()));
    }
    if value.len() > MAX_SERVICE_ACCOUNT_BYTES { Err(PolicyValueError::AccountLength) } else { Ok(()) }
}

/// Checks a value with at most one wildcard, at the start or at the end.
///
/// # Errors
/// The value is empty, or has another wildcard.
pub fn check_wildcard(value: &str) -> Result<(), PolicyValueError> {
    if value.is_empty() {
        return Err(PolicyValueError::Empty);
    }
    let inner = value.strip_prefix('*').or_else(|| value.strip_suffix('*')).unwrap_or(value);
    if inner.contains('*') { Err(PolicyValueError::Wildcard(value.to_owned())) } else { Ok(()) }
}

/// Checks a trust domain with at most one wildcard, at the start or at the end.
///
/// # Errors
/// The value is empty, or has another wildcard or a slash.
pub fn check_trust_domain(value: &str) -> Result<(), PolicyValueError> {
    check_wildcard(value)?;
    if value.contains('/') { Err(PolicyValueError::TrustDomainSlash(value.to_owned())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::{check_service_account, check_trust_domain, check_wildcard};

    #[test]
    fn invalid_service_accounts_are_rejected() {
        for good in ["a", "a/b", "a.b"] {
            assert_eq!(check_service_account(good), Ok(()), "{good}");
        }
        let long = "a".repeat(321);
        for bad in ["", "/", "a/", "/a", "a/b/c", "a/*", "*", long.as_str()] {
            assert!(check_service_account(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn invalid_trust_domains_are_rejected() {
        for good in ["a", "*", "a*", "*.a"] {
            assert_eq!(check_trust_domain(good), Ok(()), "{good}");
        }
        for bad in ["", "**", "a*b", "*a*", "a/b"] {
            assert!(check_trust_domain(bad).is_err(), "{bad}");
        }
        assert_eq!(check_wildcard("a/b"), Ok(()));
    }
}
