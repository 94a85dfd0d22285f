//! Checks of the values of AuthorizationPolicy attributes.

use sluice_model::{Text, check_path_template, check_service_account, check_trust_domain, check_wildcard};

use crate::admission::is_subnet;

/// A check of a value: the reason why the value is invalid, if it is.
pub(super) type Check = fn(&str) -> Option<String>;

/// A value that is not empty.
pub(super) fn present(value: &str) -> Option<String> {
    value.is_empty().then(|| "the value must not be empty".to_owned())
}

/// An IP address or a CIDR block.
pub(super) fn block(value: &str) -> Option<String> {
    (!is_subnet(value)).then(|| format!("`{value}` is not an IP address or a CIDR block"))
}

/// A port number.
pub(super) fn port(value: &str) -> Option<String> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    (!digits || value.parse::<u16>().is_err()).then(|| format!("`{value}` is not a port number: expected 0 to 65535"))
}

/// `[NAMESPACE/]NAME`.
pub(super) fn service_account(value: &str) -> Option<String> {
    check_service_account(value).err().map(|error| error.to_string())
}

/// A value with at most one wildcard, at the start or at the end.
pub(super) fn wildcard(value: &str) -> Option<String> {
    check_wildcard(value).err().map(|error| error.to_string())
}

/// A trust domain with at most one wildcard, at the start or at the end.
pub(super) fn trust_domain(value: &str) -> Option<String> {
    check_trust_domain(value).err().map(|error| error.to_string())
}

/// A path or a path template with `{*}` and at most one `{**}`, which is the last operator.
pub(super) fn path(value: &str) -> Option<String> {
    check_path_template(value).err().map(|error| error.to_string()).or_else(|| present(value))
}

/// Why the key of a condition is invalid; displayed as a lower-case fragment.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConditionKeyError {
    #[error("`{0}` is not a valid key: expected the form `NAME[KEY]`")]
    Form(String),
    #[error("`destination.namespace` is not supported: a policy applies in its own namespace")]
    DestinationNamespace,
    #[error("`destination.labels` is not supported: use `selector`")]
    DestinationLabels,
    #[error(
        "unknown attribute `{0}`: expected one such as `source.ip`, `request.headers[NAME]` or `request.auth.claims[NAME]`"
    )]
    Unknown(String),
}

/// The check for the values of a condition with this key.
///
/// # Errors
/// The key does not name an attribute that a condition can match.
pub(super) fn of_key(key: &str) -> Result<Check, ConditionKeyError> {
    let named = |prefix: &str| key.starts_with(prefix);
    match key {
        "source.ip" | "remote.ip" | "destination.ip" => Ok(block),
        "destination.port" => Ok(port),
        "source.serviceAccount" => Ok(service_account),
        "source.trustDomain" => Ok(wildcard),
        "source.namespace"
        | "source.principal"
        | "request.auth.principal"
        | "request.auth.audiences"
        | "request.auth.presenter"
        | "connection.sni" => Ok(present),
        _ if named("request.headers") || named("request.auth.claims") || named("experimental.envoy.filters.") => {
            let open = key.find('[').filter(|open| *open > 0 && key.ends_with(']') && open + 2 < key.len());
            open.map(|_| present as Check).ok_or_else(|| ConditionKeyError::Form(key.to_owned()))
        }
        "destination.namespace" => Err(ConditionKeyError::DestinationNamespace),
        _ if named("destination.labels") => Err(ConditionKeyError::DestinationLabels),
        _ => Err(ConditionKeyError::Unknown(key.to_owned())),
    }
}

/// Maximum number of service accounts in one list.
pub(super) const MAX_SERVICE_ACCOUNTS: usize = 16;

/// The invalid values, as (index, reason).
pub(super) fn invalid(values: &[Text], check: Check) -> impl Iterator<Item = (usize, String)> {
    values.iter().enumerate().filter_map(move |(n, value)| check(value).map(|reason| (n, reason)))
}
