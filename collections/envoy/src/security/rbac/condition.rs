//! Conditions (`when`) of rules by their attribute.

use sluice_model::AuthorizationCondition;

use crate::security::Inexpressible;
use crate::security::permission::{self, Attribute as Operation};
use crate::security::principal::{self, Attribute as Source};
use crate::security::purpose::Purpose;

/// Conditions of a rule.
#[derive(Default)]
pub(super) struct Conditions<'a> {
    pub(super) operation: Vec<permission::Condition<'a>>,
    pub(super) source: Vec<principal::Condition<'a>>,
}

enum Side<'a> {
    Operation(Operation<'a>),
    Source(Source<'a>),
}

/// Groups conditions by source and operation.
pub(super) fn read<'a>(
    when: &'a [AuthorizationCondition],
    namespace: &'a str,
    purpose: Purpose,
) -> Result<Conditions<'a>, Inexpressible> {
    let mut conditions = Conditions::default();
    for condition in when {
        let unknown = || Err(format!("unknown attribute `{}`", condition.key).into());
        match purpose.tolerate(side(&condition.key, namespace, purpose).unwrap_or_else(unknown))? {
            Some(Side::Operation(attribute)) => conditions.operation.push((attribute, &condition.values)),
            Some(Side::Source(attribute)) => conditions.source.push((attribute, &condition.values)),
            None => {}
        }
    }
    Ok(conditions)
}

/// The attribute with this name; `None` if it does not exist.
fn side<'a>(key: &'a str, namespace: &'a str, purpose: Purpose) -> Option<Result<Side<'a>, Inexpressible>> {
    let source = |attribute| Some(Ok(Side::Source(attribute)));
    let operation = |attribute| Some(Ok(Side::Operation(attribute)));
    match key {
        "destination.ip" => return operation(Operation::Address),
        "destination.port" => return operation(Operation::Port),
        "connection.sni" => return operation(Operation::ServerName),
        "source.ip" => return source(Source::Address),
        "remote.ip" => return source(Source::RemoteAddress),
        "source.namespace" => return source(Source::Namespace),
        "source.trustDomain" => return source(Source::TrustDomainCondition),
        "source.serviceAccount" => return source(Source::ServiceAccount(namespace)),
        "source.principal" => return source(Source::Principal),
        "request.auth.principal" => return source(Source::RequestPrincipal),
        "request.auth.audiences" => return source(Source::Claim(vec!["aud"])),
        "request.auth.presenter" => return source(Source::Claim(vec!["azp"])),
        _ => {}
    }
    let bad = || Inexpressible::from(format!("`{key}` is not a valid key: expected the form `NAME[KEY]`"));
    if key.starts_with("experimental.envoy.filters.") {
        let found = bracketed(key.strip_prefix("experimental.")?);
        return Some(found.map(|(filter, key)| Side::Operation(Operation::Metadata(filter, key))).ok_or_else(bad));
    }
    if let Some(name) = key.strip_prefix("request.headers") {
        let found = bracketed(name).filter(|(before, _)| before.is_empty());
        let header = |(_, name)| purpose.needs_header(name).map(|()| Side::Source(Source::Header(name)));
        return Some(found.ok_or_else(bad).and_then(header));
    }
    let claims = key.strip_prefix("request.auth.claims")?;
    let found = bracketed(claims).filter(|(before, _)| before.is_empty());
    Some(found.map(|(_, path)| Side::Source(Source::Claim(claim_path(path)))).ok_or_else(bad))
}

/// The key of an attribute `NAME[KEY]`.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let (before, key) = text.strip_suffix(']')?.split_once('[')?;
    (!key.is_empty()).then_some((before, key))
}

/// The path of a nested claim `a][b`. Other brackets are part of a name.
fn claim_path(path: &str) -> Vec<&str> {
    let parts: Vec<&str> = path.split("][").collect();
    let plain = parts.iter().all(|part| !part.is_empty() && !part.contains(['[', ']']));
    if plain { parts } else { vec![path] }
}

#[cfg(test)]
mod tests {
    use super::{bracketed, claim_path};

    #[test]
    fn nested_claims_are_parsed() {
        assert_eq!(claim_path("a"), ["a"]);
        assert_eq!(claim_path("a][b][c"), ["a", "b", "c"]);
        assert_eq!(claim_path("a[b]"), ["a[b]"]);
        assert_eq!(claim_path("a]x[b"), ["a]x[b"]);
    }

    #[test]
    fn attribute_key_is_in_brackets() {
        assert_eq!(bracketed("envoy.filters.a[b]"), Some(("envoy.filters.a", "b")));
        assert_eq!(bracketed("[x-id]"), Some(("", "x-id")));
        for bad in ["", "x", "[]", "[x", "x]"] {
            assert_eq!(bracketed(bad), None, "{bad}");
        }
    }
}
