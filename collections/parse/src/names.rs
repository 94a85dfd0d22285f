//! Short names completed the way Istio's API reads them.

use std::net::IpAddr;

use sluice_model::{MESH_GATEWAY, Text};

/// A host as a rule in `namespace` means it: a name without a dot is a Service of that namespace.
#[must_use]
pub fn resolve_host(name: &str, namespace: &str, domain: &str) -> String {
    if name.is_empty() || name == "*" || name.contains('.') || name.parse::<IpAddr>().is_ok() {
        return name.into();
    }
    let mut host = String::from(name);
    if !namespace.is_empty() {
        host = format!("{host}.{namespace}");
    }
    if !domain.is_empty() {
        host = format!("{host}.svc.{domain}");
    }
    host
}

/// A gateway as a rule in `namespace` means it, as `namespace/name`; the mesh's own name stays.
#[must_use]
pub fn resolve_gateway(name: &str, namespace: &str) -> Text {
    if name == MESH_GATEWAY {
        return name.into();
    }
    if let Some((before, after)) = name.split_once('/') {
        return if before == "." { format!("{namespace}/{after}").into() } else { name.into() };
    }
    // Of old, a gateway could be named like a Service: name.namespace.svc.domain.
    let mut parts = name.split('.');
    match (parts.next(), parts.next()) {
        (Some(gateway), Some(namespace)) => format!("{namespace}/{gateway}").into(),
        _ => format!("{namespace}/{name}").into(),
    }
}

/// Whether this is a DNS label: lower-case letters, digits and inner hyphens, at most 63.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// Whether this is a host, or a wildcard: `*`, `*.rest` or `*-rest`.
#[must_use]
pub fn is_wildcard_domain(name: &str) -> bool {
    if name == "*" {
        return true;
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let mut labels = name.strip_suffix('.').unwrap_or(name).split('.');
    let first = labels.next().unwrap_or_default();
    let first = first == "*" || label(first) || first.strip_prefix("*-").is_some_and(label);
    name.len() <= 255 && first && labels.all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_hosts_belong_to_the_namespace() {
        let check = |name: &str, expect: &str| assert_eq!(resolve_host(name, "shop", "cluster.local"), expect);
        check("reviews", "reviews.shop.svc.cluster.local");
        check("reviews.other", "reviews.other");
        check("*", "*");
        check("fd00::1", "fd00::1");
        check("", "");
    }

    #[test]
    fn gateways_have_three_spellings() {
        let check = |name: &str, expect: &str| assert_eq!(resolve_gateway(name, "shop").as_str(), expect);
        check("front", "shop/front");
        check("./front", "shop/front");
        check("edge/front", "edge/front");
        check("front.edge.svc.cluster.local", "edge/front");
        check("front.edge", "edge/front");
        check("mesh", "mesh");
    }

    #[test]
    fn domains_have_labels() {
        for good in ["*", "a", "a.b", "*.a.b", "*-x.a", "a_b.c", "example.com."] {
            assert!(is_wildcard_domain(good), "{good}");
        }
        for bad in ["", "a..b", "*a.b", "a.*", "-a.b", "a b"] {
            assert!(!is_wildcard_domain(bad), "{bad}");
        }
    }
}
