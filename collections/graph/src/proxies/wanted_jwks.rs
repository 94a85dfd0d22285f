//! JWKS that the control plane fetches (P15), within limits for each namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_model::{
    Host, Jwks, JwksKey, JwtKeys, JwtRule, Kind, ObjectKey, Reject, RejectCause, ServiceKey, Severity, Text, Timestamp,
    WantedJwks,
};

use super::collectors::find_collector;
use crate::inputs::{ObjectCollections, RejectKey};
use crate::options::{GraphOptions, JwksFetch};

/// Timeout of a JWKS fetch unless configured.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest timeout of a JWKS fetch, whatever a policy says.
const MAX_FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The key sets that a RequestAuthentication refers to, by rule.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PolicyKeySets {
    created: Timestamp,
    sets: Vec<(usize, JwksKey, Duration)>,
}

/// The key sets of a namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct NamespaceKeySets {
    /// Those that are fetched, with their timeout.
    fetched: BTreeMap<JwksKey, Duration>,
    /// Those over the limit.
    over: BTreeSet<JwksKey>,
}

/// What [`derive_wanted_jwks`] derives.
pub(crate) struct JwksFetches<'s> {
    /// Key sets to fetch.
    pub(crate) wanted: Collection<'s, JwksKey, WantedJwks>,
    /// Findings about policies whose key sets are not used.
    pub(crate) rejects: Collection<'s, RejectKey, Vec<Reject>>,
}

/// JWKS that the control plane fetches. Of each namespace, those of older policies come first, up to the limit.
/// Key: `JwksKey`. From: `request_authentications`; `services_by_host` where proxies fetch some themselves.
/// Changes when: the first policy of a namespace refers to them or the last one no longer does. Size: issuers. Rejects:
/// policies with key sets over the limits.
pub(crate) fn derive_wanted_jwks<'s>(
    objects: &ObjectCollections<'s>,
    services_by_host: &Index<'s, Host, ServiceKey, ()>,
    jwks: &Collection<'s, JwksKey, Jwks>,
    options: &GraphOptions,
) -> JwksFetches<'s> {
    let fetch = options.jwks_fetch;
    let rules = objects.request_authentications.derive("jwks/fetched", |deps| {
        let by_host = deps.by(services_by_host);
        move |cx, _, policy| {
            let by_proxy = |rule: &JwtRule| match &rule.keys {
                JwtKeys::Uri { server, .. } => match fetch {
                    JwksFetch::ControlPlane => false,
                    JwksFetch::Hybrid => find_collector(cx, by_host, server).is_some(),
                    JwksFetch::Proxy => true,
                },
                _ => false,
            };
            let rules = policy.rules.iter().enumerate().filter(|(_, rule)| !by_proxy(rule));
            let sets = rules.filter_map(|(n, rule)| {
                Some((n, rule.remote_keys()?, rule.timeout.unwrap_or(FETCH_TIMEOUT).min(MAX_FETCH_TIMEOUT)))
            });
            let sets = PolicyKeySets { created: policy.created, sets: sets.collect() };
            (!sets.sets.is_empty()).then_some(sets)
        }
    });
    let limit = options.max_key_sets;
    let by_namespace: Index<'s, Text, ObjectKey, PolicyKeySets> =
        rules.index("jwks/by-namespace", |key, sets| [(key.namespace.clone(), sets.clone())]);
    let of_namespaces = by_namespace.group("jwks/of-namespaces", move |_, rows| {
        let mut rows: Vec<_> = rows.iter().collect();
        rows.sort_by(|a, b| (a.1.created, &a.0.name, a.0).cmp(&(b.1.created, &b.0.name, b.0)));
        let mut found = NamespaceKeySets::default();
        for (_, key, timeout) in rows.iter().flat_map(|(_, sets)| &sets.sets) {
            let has_room = found.fetched.len() < limit;
            match found.fetched.get_mut(key) {
                Some(longest) => *longest = (*timeout).max(*longest),
                None if has_room => drop(found.fetched.insert(key.clone(), *timeout)),
                None => drop(found.over.insert(key.clone())),
            }
        }
        Some(found)
    });
    let by_key: Index<'s, JwksKey, Text, Duration> = of_namespaces.index("jwks/by-key", |_, sets| sets.fetched.clone());
    let wanted = by_key.group("wanted_jwks", |_, rows| {
        let timeout = rows.iter().map(|(_, timeout)| **timeout).max()?;
        Some(WantedJwks { timeout, namespaces: rows.iter().map(|(namespace, _)| (*namespace).clone()).collect() })
    });
    let rejects = rules.derive_many("jwks/rejects", |deps| {
        let (of_namespaces, jwks) = (deps.on(&of_namespaces), deps.on(jwks));
        move |cx, key, policy| {
            let namespace = cx.get(&of_namespaces, &key.namespace).unwrap_or_default();
            let reject = |(n, set, _): &(usize, JwksKey, Duration)| {
                let over = namespace.over.contains(set).then(|| over_limit(limit, &key.namespace));
                let refused = || cx.get(&jwks, set).map(|jwks| jwks.refused.clone()).filter(|text| !text.is_empty());
                let field = if set.uri.is_empty() { "issuer" } else { "jwksUri" };
                over.or_else(refused).map(|reason| Reject {
                    kind: Kind::RequestAuthentication,
                    object: key.clone(),
                    field_path: format!("spec.jwtRules[{n}].{field}").into(),
                    reason,
                    severity: Severity::Error,
                    cause: RejectCause::Other,
                })
            };
            let rejects: Vec<Reject> = policy.sets.iter().filter_map(reject).collect();
            let row = (RejectKey { kind: Kind::RequestAuthentication, object: key.clone() }, rejects);
            if row.1.is_empty() { Vec::new() } else { vec![row] }
        }
    });
    JwksFetches { wanted, rejects }
}

fn over_limit(limit: usize, namespace: &Text) -> Text {
    format!(
        "the keys are not fetched: RequestAuthentications of namespace `{namespace}` refer to more than {limit} key sets, \
         and those of older objects come first; tokens of this issuer are rejected"
    )
    .into()
}
