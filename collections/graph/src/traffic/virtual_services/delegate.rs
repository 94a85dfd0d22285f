//! Delegates: the routes of a delegate, restricted by the route that refers to it.

use std::collections::BTreeMap;

use sluice_model::{HttpMatch, HttpRoute, StringMatch};

/// The delegate's routes with the matches of `root`; those that contradict them are omitted.
#[must_use]
pub(crate) fn merge_routes(root: &HttpRoute, delegate: &[HttpRoute]) -> Vec<HttpRoute> {
    delegate.iter().filter_map(|route| merge_route(root, route)).collect()
}

fn merge_route(root: &HttpRoute, delegate: &HttpRoute) -> Option<HttpRoute> {
    let matches = merge_matches(&root.matches, &delegate.matches)?;
    let name = match (root.name.as_str(), delegate.name.as_str()) {
        (root, "") => root.into(),
        ("", delegate) => delegate.into(),
        (root, delegate) => format!("{root}-{delegate}").into(),
    };
    // Fields that the delegate does not set are those of the root.
    Some(HttpRoute {
        name,
        matches,
        route: delegate.route.clone(),
        redirect: delegate.redirect.clone(),
        delegate: None,
        direct_response: delegate.direct_response.clone().or_else(|| root.direct_response.clone()),
        rewrite: delegate.rewrite.clone().or_else(|| root.rewrite.clone()),
        timeout: delegate.timeout.or(root.timeout),
        retries: delegate.retries.clone().or_else(|| root.retries.clone()),
        fault: delegate.fault.clone().or_else(|| root.fault.clone()),
        mirror: delegate.mirror.clone().or_else(|| root.mirror.clone()),
        mirror_percentage: delegate.mirror_percentage.or(root.mirror_percentage),
        mirror_percent: delegate.mirror_percent.or(root.mirror_percent),
        mirrors: if delegate.mirrors.is_empty() { root.mirrors.clone() } else { delegate.mirrors.clone() },
        cors: delegate.cors.clone().or_else(|| root.cors.clone()),
        headers: delegate.headers.clone().or_else(|| root.headers.clone()),
        // Only routes of the Gateway API have one, and they have no delegates.
        endpoint_picker: None,
    })
}

/// Every pair of matches that can both hold; `None` if a match of the delegate fits no match of the root.
fn merge_matches(root: &[HttpMatch], delegate: &[HttpMatch]) -> Option<Vec<HttpMatch>> {
    if root.is_empty() {
        return Some(delegate.to_vec());
    }
    if delegate.is_empty() {
        return Some(root.to_vec());
    }
    let mut merged = Vec::new();
    for leaf in delegate {
        let before = merged.len();
        merged.extend(root.iter().filter(|root| !conflicts(root, leaf)).map(|root| merge_match(root, leaf)));
        if merged.len() == before {
            return None;
        }
    }
    Some(merged)
}

fn merge_match(root: &HttpMatch, leaf: &HttpMatch) -> HttpMatch {
    fn both<K: Ord + Clone, V: Clone>(root: &BTreeMap<K, V>, leaf: &BTreeMap<K, V>) -> BTreeMap<K, V> {
        root.iter().chain(leaf).map(|(key, value)| (key.clone(), value.clone())).collect()
    }
    let name = match (root.name.as_str(), leaf.name.as_str()) {
        (root, "") => root.into(),
        ("", leaf) => leaf.into(),
        (root, leaf) => format!("{root}-{leaf}").into(),
    };
    HttpMatch {
        name,
        uri: leaf.uri.clone().or_else(|| root.uri.clone()),
        ignore_uri_case: leaf.ignore_uri_case,
        scheme: leaf.scheme.clone().or_else(|| root.scheme.clone()),
        method: leaf.method.clone().or_else(|| root.method.clone()),
        authority: leaf.authority.clone().or_else(|| root.authority.clone()),
        headers: both(&root.headers, &leaf.headers),
        without_headers: both(&root.without_headers, &leaf.without_headers),
        query_params: both(&root.query_params, &leaf.query_params),
        port: if leaf.port == 0 { root.port } else { leaf.port },
        source_labels: root
            .source_labels
            .iter()
            .chain(&leaf.source_labels)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
        source_namespace: if leaf.source_namespace.is_empty() {
            &root.source_namespace
        } else {
            &leaf.source_namespace
        }
        .clone(),
        gateways: if leaf.gateways.is_empty() { root.gateways.clone() } else { leaf.gateways.clone() },
        stat_prefix: if leaf.stat_prefix.is_empty() { &root.stat_prefix } else { &leaf.stat_prefix }.clone(),
    }
}

/// Whether the delegate's match exceeds the root's.
fn conflicts(root: &HttpMatch, leaf: &HttpMatch) -> bool {
    let texts = [
        (&root.uri, &leaf.uri),
        (&root.scheme, &leaf.scheme),
        (&root.method, &leaf.method),
        (&root.authority, &leaf.authority),
    ];
    let maps = [
        (&root.headers, &leaf.headers),
        (&root.without_headers, &leaf.without_headers),
        (&root.query_params, &leaf.query_params),
    ];
    let text_conflicts = texts.iter().any(|(root, leaf)| is_wider(root.as_ref(), leaf.as_ref()));
    let map_conflicts = maps.iter().any(|(root, leaf)| {
        leaf.iter().any(|(name, value)| is_wider(root.get(name).and_then(Option::as_ref), value.as_ref()))
    });
    let labels = leaf.source_labels.iter().any(|(key, value)| root.source_labels.get(key).is_some_and(|r| r != value));
    let gateways = !root.gateways.is_empty() && leaf.gateways.iter().any(|gateway| !root.gateways.contains(gateway));
    text_conflicts
        || map_conflicts
        || labels
        || gateways
        || root.ignore_uri_case != leaf.ignore_uri_case
        || (root.port > 0 && leaf.port > 0 && root.port != leaf.port)
        || (!root.source_namespace.is_empty() && root.source_namespace != leaf.source_namespace)
}

/// Whether `leaf` matches texts that `root` does not; regular expressions are never compared.
fn is_wider(root: Option<&StringMatch>, leaf: Option<&StringMatch>) -> bool {
    let (Some(root), Some(leaf)) = (root, leaf) else { return false };
    match (root, leaf) {
        (StringMatch::Exact(root), StringMatch::Exact(leaf)) => root != leaf,
        (StringMatch::Prefix(root), StringMatch::Exact(leaf) | StringMatch::Prefix(leaf)) => {
            !leaf.starts_with(root.as_str())
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_uri(uri: StringMatch) -> HttpMatch {
        HttpMatch { uri: Some(uri), ..HttpMatch::default() }
    }

    fn prefix(text: &str) -> StringMatch {
        StringMatch::Prefix(text.into())
    }

    #[test]
    fn a_delegate_can_only_narrow() {
        let check = |root: StringMatch, leaf: StringMatch, survives: bool| {
            let merged = merge_matches(&[with_uri(root.clone())], &[with_uri(leaf.clone())]);
            let expect = survives.then(|| vec![with_uri(leaf.clone())]);
            assert_eq!(merged, expect, "{root:?} then {leaf:?}");
        };
        check(prefix("/a"), prefix("/a/b"), true);
        check(prefix("/a"), StringMatch::Exact("/a/b".into()), true);
        check(prefix("/a/b"), prefix("/a"), false);
        check(StringMatch::Exact("/a".into()), StringMatch::Exact("/a".into()), true);
        check(StringMatch::Exact("/a".into()), prefix("/a"), false);
        check(StringMatch::Regex("/a".into()), StringMatch::Exact("/a".into()), false);
    }

    #[test]
    fn what_the_delegate_leaves_open_comes_from_the_root() {
        let root = HttpRoute {
            name: "root".into(),
            matches: vec![with_uri(prefix("/a"))],
            timeout: Some(std::time::Duration::from_secs(1)),
            ..HttpRoute::default()
        };
        let leaf = HttpRoute { name: "leaf".into(), ..HttpRoute::default() };
        let merged = merge_routes(&root, &[leaf]);
        assert_eq!(merged[0].name.as_str(), "root-leaf");
        assert_eq!(merged[0].matches, root.matches);
        assert_eq!(merged[0].timeout, root.timeout);
    }
}
