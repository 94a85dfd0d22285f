//! Values of attributes: what is wrong with one, if anything.

use sluice_model::{Text, check_path_template};

use crate::admission::is_subnet;

/// What is wrong with a value.
pub(super) type Check = fn(&str) -> Option<String>;

/// Longest service account, with its namespace.
const ACCOUNT_LENGTH: usize = 320;

/// Anything but nothing.
pub(super) fn present(value: &str) -> Option<String> {
    value.is_empty().then(|| "is empty".to_owned())
}

/// An address or a block of addresses.
pub(super) fn block(value: &str) -> Option<String> {
    (!is_subnet(value)).then(|| format!("`{value}` is neither an address nor a block of addresses"))
}

/// A port.
pub(super) fn port(value: &str) -> Option<String> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    (!digits || value.parse::<u16>().is_err()).then(|| format!("`{value}` is no port number"))
}

/// `[NAMESPACE/]NAME`.
pub(super) fn service_account(value: &str) -> Option<String> {
    let parts: Vec<&str> = value.split('/').collect();
    if value.contains('*') {
        return Some(format!("`{value}`: service accounts have no wildcards"));
    }
    if parts.len() > 2 || parts.iter().any(|part| part.is_empty()) {
        return Some(format!("`{value}` is not of the form `[NAMESPACE/]NAME`"));
    }
    (value.len() > ACCOUNT_LENGTH).then(|| format!("is longer than {ACCOUNT_LENGTH} characters"))
}

/// A text with at most one wildcard, at either end.
pub(super) fn wildcard(value: &str) -> Option<String> {
    let inner = value.strip_prefix('*').or_else(|| value.strip_suffix('*')).unwrap_or(value);
    present(value).or_else(|| {
        inner.contains('*').then(|| format!("`{value}`: one wildcard can stand at the start or at the end"))
    })
}

/// A trust domain, wildcards allowed.
pub(super) fn trust_domain(value: &str) -> Option<String> {
    wildcard(value).or_else(|| value.contains('/').then(|| format!("`{value}`: a trust domain has no `/`")))
}

/// A path, which may be a template of `{*}` and, once and last of them, `{**}`.
pub(super) fn path(value: &str) -> Option<String> {
    check_path_template(value).err().or_else(|| present(value))
}

/// How values of a condition's attribute are checked, or why there is no such attribute.
pub(super) fn of_key(key: &str) -> Result<Check, String> {
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
            open.map(|_| present as Check).ok_or_else(|| format!("`{key}` is not of the form `NAME[KEY]`"))
        }
        "destination.namespace" => Err("the namespace is that of the policy".to_owned()),
        _ if named("destination.labels") => Err("workloads are selected by `selector`".to_owned()),
        _ => Err(format!("there is no attribute `{key}`")),
    }
}

/// Most service accounts of one list.
pub(super) const MOST_ACCOUNTS: usize = 16;

/// The first wrong value of each position, as (index, reason).
pub(super) fn wrong(values: &[Text], check: Check) -> impl Iterator<Item = (usize, String)> {
    values.iter().enumerate().filter_map(move |(n, value)| check(value).map(|reason| (n, reason)))
}
