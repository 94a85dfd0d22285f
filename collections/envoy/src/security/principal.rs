//! RBAC principals: the source of a request (P13, P16).

use envoy_types::pb::envoy::config::rbac::v3::Principal;
use envoy_types::pb::envoy::config::rbac::v3::principal::{Authenticated, Identifier, Set};
use envoy_types::pb::envoy::r#type::matcher::v3::{
    FilterStateMatcher, MetadataMatcher, StringMatcher, filter_state_matcher,
};
use sluice_model::{
    AuthorizationSource, PolicyValues, SPIFFE_SCHEME, StringMatch, Text, check_service_account, check_trust_domain,
    check_wildcard,
};

use super::matchers::{any_text, claim, header, present, text_after, text_claim};
use super::purpose::Purpose;
use super::trust_domain::TrustDomains;
use super::{Inexpressible, check_present};
use crate::address::cidr;
use crate::filter_state::PEER_PRINCIPAL;
use crate::string_match::{exact, in_trust_domain, prefix, regex, suffix};

/// An attribute of a source.
#[derive(Clone, Debug)]
pub(super) enum Attribute<'a> {
    Principal,
    Namespace,
    /// Service account, in the policy's namespace unless it names another.
    ServiceAccount(&'a str),
    TrustDomain,
    /// Trust domain in the condition `source.trustDomain`, whose values may contain slashes, as in Istio.
    TrustDomainCondition,
    Address,
    RemoteAddress,
    Header(&'a str),
    RequestPrincipal,
    /// A token claim.
    Claim(Vec<&'a str>),
}

/// A condition on a source.
pub(super) type Condition<'a> = (Attribute<'a>, &'a PolicyValues);

/// All conditions of a source, principals first, then those of the rule's `when`.
pub(super) fn principal(
    source: Option<&AuthorizationSource>,
    conditions: &[Condition<'_>],
    namespace: &str,
    domains: &TrustDomains<'_>,
    purpose: Purpose,
) -> Result<Principal, Inexpressible> {
    let mut all: Vec<Condition<'_>> = Vec::new();
    if let Some(source) = source {
        all.extend([
            (Attribute::Principal, &source.principals),
            (Attribute::RequestPrincipal, &source.request_principals),
            (Attribute::ServiceAccount(namespace), &source.service_accounts),
            (Attribute::TrustDomain, &source.trust_domains),
            (Attribute::Namespace, &source.namespaces),
            (Attribute::RemoteAddress, &source.remote_ip_blocks),
            (Attribute::Address, &source.ip_blocks),
        ]);
    }
    all.extend(conditions.iter().cloned());
    let mut ids = Vec::new();
    for (attribute, values) in all {
        ids.extend(of_values(&attribute, &values.any, true, domains, purpose)?);
        ids.extend(of_values(&attribute, &values.none, false, domains, purpose)?.map(not));
    }
    if ids.is_empty() {
        ids.push(id(Identifier::Any(true)));
    }
    Ok(and(ids))
}

/// The principal that matches one of the values; `None` without valid values, or with an invalid one that may be `accepted`.
fn of_values(
    attribute: &Attribute<'_>,
    values: &[Text],
    accepted: bool,
    domains: &TrustDomains<'_>,
    purpose: Purpose,
) -> Result<Option<Principal>, Inexpressible> {
    if values.is_empty() {
        return Ok(None);
    }
    match attribute {
        Attribute::RequestPrincipal => {
            let present = || values.iter().try_for_each(|value| check_present(value));
            return purpose
                .tolerate(purpose.needs_http().and_then(|()| present()).map(|()| request_principals(values)));
        }
        Attribute::Claim(path) => {
            let matched = || metadata(claim(path.iter().copied(), any_text(values)));
            return purpose.tolerate(purpose.needs_http().map(|()| matched()));
        }
        _ => {}
    }
    let expanded;
    let values = match attribute {
        Attribute::Principal => {
            expanded = domains.of_principals(values);
            &expanded
        }
        Attribute::TrustDomain | Attribute::TrustDomainCondition => {
            expanded = domains.of_domains(values);
            &expanded
        }
        _ => values,
    };
    let mut ids = Vec::new();
    for value in values {
        match purpose.tolerate(of_value(attribute, value, purpose))? {
            Some(id) => ids.push(id),
            None if accepted => return Ok(None),
            None => {}
        }
    }
    Ok((!ids.is_empty()).then(|| or(ids)))
}

fn of_value(attribute: &Attribute<'_>, value: &str, purpose: Purpose) -> Result<Principal, Inexpressible> {
    let block =
        || cidr(value).ok_or_else(|| Inexpressible::from(format!("`{value}` is not an IP address or a CIDR block")));
    let peer = |name| if purpose.peer_in_filter_state { in_filter_state(name) } else { authenticated(name) };
    Ok(match attribute {
        Attribute::Principal => {
            check_present(value)?;
            peer(text_after(SPIFFE_SCHEME, value))
        }
        Attribute::Namespace => {
            check_present(value)?;
            let parts: Vec<String> = value.split('*').map(StringMatch::escape_regex).collect();
            peer(regex(&format!(".*/ns/{}/.*", parts.join(".*"))))
        }
        Attribute::ServiceAccount(own) => {
            check_service_account(value).map_err(|error| error.to_string())?;
            let (namespace, name) = value.split_once('/').unwrap_or((own, value));
            // Other parts of an identity are before or after, separated by slashes.
            let (namespace, name) = (StringMatch::escape_regex(namespace), StringMatch::escape_regex(name));
            peer(regex(&format!("{SPIFFE_SCHEME}.+/ns/{namespace}/(.+/|)sa/{name}(/.+)?")))
        }
        Attribute::TrustDomain => {
            check_trust_domain(value).map_err(|error| error.to_string())?;
            peer(trust_domain(value))
        }
        Attribute::TrustDomainCondition => {
            check_wildcard(value).map_err(|error| error.to_string())?;
            peer(trust_domain(value))
        }
        Attribute::Address => id(Identifier::DirectRemoteIp(block()?)),
        Attribute::RemoteAddress => id(Identifier::RemoteIp(block()?)),
        Attribute::Header(name) => {
            purpose.needs_http()?;
            id(Identifier::Header(header(name, value, false)))
        }
        Attribute::RequestPrincipal | Attribute::Claim(_) => {
            return Err("the values of this attribute are matched together".into());
        }
    })
}

fn trust_domain(value: &str) -> StringMatcher {
    match value.split_once('*') {
        _ if value == "*" => prefix(SPIFFE_SCHEME),
        None => in_trust_domain(value),
        Some((start, end)) => regex(&format!(
            "{SPIFFE_SCHEME}{}[^/]*{}/.*",
            StringMatch::escape_regex(start),
            StringMatch::escape_regex(end)
        )),
    }
}

/// Principals of tokens, `ISSUER/SUBJECT`; an issuer may have slashes.
fn request_principals(values: &[Text]) -> Principal {
    let mut all: Vec<Principal> = values.iter().map(|value| request_principal(value)).collect();
    match all.pop() {
        Some(only) if all.is_empty() => only,
        last => {
            all.extend(last);
            or(all)
        }
    }
}

fn request_principal(value: &str) -> Principal {
    let split = value.rsplit_once('/');
    let (issuer, subject) = match (value.strip_prefix('*'), split) {
        (Some(""), _) => (present(), present()),
        (Some(_), Some(("*", subject))) => (present(), exact(subject)),
        (Some(_), Some((issuer, subject))) => (suffix(issuer.strip_prefix('*').unwrap_or(issuer)), exact(subject)),
        (Some(end), None) => (present(), suffix(end)),
        (None, Some((issuer, "*"))) => (exact(issuer), present()),
        (None, Some((issuer, subject))) => {
            (exact(issuer), subject.strip_suffix('*').map_or_else(|| exact(subject), prefix))
        }
        (None, None) => match value.strip_suffix('*') {
            Some(start) => (prefix(start), present()),
            None => (exact(value), exact("")),
        },
    };
    and(vec![metadata(text_claim("iss", issuer)), metadata(text_claim("sub", subject))])
}

fn id(identifier: Identifier) -> Principal {
    Principal { identifier: Some(identifier) }
}

fn and(ids: Vec<Principal>) -> Principal {
    id(Identifier::AndIds(Set { ids }))
}

fn or(ids: Vec<Principal>) -> Principal {
    id(Identifier::OrIds(Set { ids }))
}

fn not(principal: Principal) -> Principal {
    id(Identifier::NotId(Box::new(principal)))
}

fn authenticated(name: StringMatcher) -> Principal {
    id(Identifier::Authenticated(Authenticated { principal_name: Some(name) }))
}

/// The identity of the peer that the listener `connect_terminate` has authenticated.
fn in_filter_state(name: StringMatcher) -> Principal {
    id(Identifier::FilterState(FilterStateMatcher {
        key: PEER_PRINCIPAL.to_owned(),
        matcher: Some(filter_state_matcher::Matcher::StringMatch(name)),
    }))
}

fn metadata(matcher: MetadataMatcher) -> Principal {
    #[expect(deprecated, reason = "the field proxies of every supported version read")]
    id(Identifier::Metadata(matcher))
}
