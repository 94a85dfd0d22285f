//! Warnings for routes and matches that no request reaches.

use std::collections::BTreeMap;

use sluice_model::RejectCause::{IneffectiveMatch, UnreachableRule};
use sluice_model::{HttpMatch, NamedMatches, StringMatch, VirtualService};

use crate::Fields;

/// Maximum number of comparisons of two matches. In a longer list, prefix matches are not reported from there on.
const MAX_COMPARISONS: usize = 2_000_000;

pub(super) fn check(fields: &Fields<'_>, vs: &VirtualService) {
    check_repeated(fields, "http", vs.http.iter().map(|route| route.matches.as_slice()));
    check_repeated(fields, "tls", vs.tls.iter().map(|route| route.matches.as_slice()));
    check_repeated(fields, "tcp", vs.tcp.iter().map(|route| route.matches.as_slice()));
    check_covered(fields, vs);
}

/// Reports repeated matches, and routes after one that matches every request.
fn check_repeated<'m, M: Ord + 'm>(fields: &Fields<'_>, field: &str, routes: impl Iterator<Item = &'m [M]>) {
    let (mut seen, mut all) = (BTreeMap::new(), None);
    for (n, matches) in routes.enumerate() {
        let path = format!("{field}[{n}]");
        if let Some(all) = all {
            let reason = format!("unreachable: {field}[{all}] has no `match` and matches every request");
            fields.warn_of(UnreachableRule, &path, reason);
            continue;
        }
        if matches.is_empty() {
            all = Some(n);
            continue;
        }
        let mut repeated = 0;
        for (m, matched) in matches.iter().enumerate() {
            match seen.get(matched) {
                Some(earlier) => {
                    let reason = format!("unreachable: {field}[{earlier}] has the same match");
                    fields.warn_of(IneffectiveMatch, &format!("{path}.match[{m}]"), reason);
                    repeated += 1;
                }
                None => drop(seen.insert(matched, n)),
            }
        }
        if repeated == matches.len() {
            fields.warn_of(UnreachableRule, &path, "unreachable: earlier routes have all of its matches");
        }
    }
}

/// Reports prefix matches whose requests all match an earlier, shorter prefix.
fn check_covered(fields: &Fields<'_>, vs: &VirtualService) {
    let mut earlier: Vec<(usize, usize, &str, &HttpMatch)> = Vec::new();
    let mut comparisons = 0;
    for (n, route) in vs.http.iter().enumerate() {
        for (m, matched) in route.matches.iter().enumerate() {
            let Some(StringMatch::Prefix(prefix)) = &matched.uri else { continue };
            if prefix.is_empty() {
                continue;
            }
            // Matches with equal prefixes either differ in other conditions or are reported as repeated.
            let covers = |(_, _, short, other): &&(usize, usize, &str, &HttpMatch)| {
                prefix.len() > short.len() && prefix.starts_with(short) && covers_conditions(other, matched)
            };
            comparisons += earlier.len();
            if comparisons > MAX_COMPARISONS {
                return;
            }
            if let Some((route, of, short, _)) = earlier.iter().find(covers) {
                let reason = format!("unreachable: http[{route}].match[{of}] matches every request below {short}");
                fields.warn_of(IneffectiveMatch, &format!("http[{n}].match[{m}]"), reason);
            }
            earlier.push((n, m, prefix, matched));
        }
    }
}

/// Whether the earlier match accepts all requests of the later one, apart from the URI. Matches by a regular expression or
/// by presence count as different.
fn covers_conditions(earlier: &HttpMatch, later: &HttpMatch) -> bool {
    let one = |a: Option<&StringMatch>, b: Option<&StringMatch>| match (a, b) {
        (None, _) => true,
        (Some(StringMatch::Exact(a)), Some(StringMatch::Exact(b))) => a == b,
        (Some(StringMatch::Prefix(a)), Some(StringMatch::Exact(b) | StringMatch::Prefix(b))) => {
            b.starts_with(a.as_str())
        }
        _ => false,
    };
    let named = |a: &NamedMatches, b: &NamedMatches| {
        a.iter()
            .all(|(name, value)| b.get(name).is_some_and(|other| value == other || one(value.as_ref(), other.as_ref())))
    };
    let same = (&earlier.gateways, &earlier.source_labels, &earlier.source_namespace, earlier.ignore_uri_case)
        == (&later.gateways, &later.source_labels, &later.source_namespace, later.ignore_uri_case);
    same && (earlier.port == 0 || earlier.port == later.port)
        && one(earlier.method.as_ref(), later.method.as_ref())
        && one(earlier.scheme.as_ref(), later.scheme.as_ref())
        && one(earlier.authority.as_ref(), later.authority.as_ref())
        && named(&earlier.headers, &later.headers)
        && named(&earlier.query_params, &later.query_params)
        && earlier.without_headers == later.without_headers
}
