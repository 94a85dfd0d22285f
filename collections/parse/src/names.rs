//! Completion of short names, and syntax of names.

use std::net::IpAddr;

use sluice_model::{MESH_GATEWAY, Text};

/// The host that a name in a rule of `namespace` refers to: a name without a dot is a Service in that namespace.
#[must_use]
pub(crate) fn resolve_host(name: &str, namespace: &str, domain: &str) -> String {
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

/// The gateway that a name in a rule of `namespace` refers to, as `namespace/name`. The name `mesh` stays.
#[must_use]
pub(crate) fn resolve_gateway(name: &str, namespace: &str) -> Text {
    if name == MESH_GATEWAY {
        return name.into();
    }
    if let Some((before, after)) = name.split_once('/') {
        return if before == "." { format!("{namespace}/{after}").into() } else { name.into() };
    }
    // The deprecated form looks like the name of a Service: name.namespace.svc.domain.
    let mut parts = name.split('.');
    match (parts.next(), parts.next()) {
        (Some(gateway), Some(namespace)) => format!("{namespace}/{gateway}").into(),
        _ => format!("{namespace}/{name}").into(),
    }
}

/// Whether a text is a DNS label: 1 to 63 lower-case letters, digits and inner hyphens.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// Whether a text is a host or a wildcard: `*`, `*.rest` or `*-rest`.
#[must_use]
pub(crate) fn is_wildcard_domain(name: &str) -> bool {
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

/// Whether a text is a DNS label by the rules of admission, which accept upper case too.
#[must_use]
pub(crate) fn is_any_case_label(name: &str) -> bool {
    is_dns_label(&name.to_ascii_lowercase())
}

/// Whether a text is a fully qualified DNS name: labels, the last of which is not a number.
#[must_use]
pub(crate) fn is_fqdn(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit());
    let labels = name.strip_suffix('.').unwrap_or(name);
    (1..=255).contains(&name.len()) && !is_number(last) && labels.split('.').all(is_any_case_label)
}

/// Whether admission accepts a host: a DNS name whose first label may be `*`, or begin with `*` or `*-`.
#[must_use]
pub(crate) fn is_admitted_host(name: &str) -> bool {
    let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
    let plain = first.strip_prefix("*-").or_else(|| first.strip_prefix('*')).unwrap_or(first);
    let first = first.len() <= 63 && (first == "*" || is_any_case_label(plain));
    (1..=255).contains(&name.len()) && first && rest.is_none_or(|rest| rest.is_empty() || is_fqdn(rest))
}

/// Whether a text is a valid label key: a name with an optional domain as prefix.
#[must_use]
pub(crate) fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let prefix = prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_any_case_label));
    !name.is_empty() && name.len() <= 63 && is_label_value(name) && prefix
}

/// Whether a text is a valid label value: empty, or letters, digits, `-`, `_` and `.` between letters or digits.
#[must_use]
pub(crate) fn is_label_value(value: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let outer = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    value.bytes().all(inner) && outer(value.bytes().next()) && outer(value.bytes().last())
}

/// Whether the text after `unix://` is the absolute path of a file, or the name of an abstract socket (`@NAME`).
#[must_use]
pub(crate) fn is_socket_path(path: &str) -> bool {
    path.starts_with('@') || (path.starts_with('/') && !path.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_hosts_are_completed_with_namespace_and_domain() {
        let check = |name: &str, expect: &str| assert_eq!(resolve_host(name, "shop", "cluster.local"), expect);
        check("reviews", "reviews.shop.svc.cluster.local");
        check("reviews.other", "reviews.other");
        check("*", "*");
        check("fd00::1", "fd00::1");
        check("", "");
    }

    #[test]
    fn all_forms_of_gateway_names_are_resolved() {
        let check = |name: &str, expect: &str| assert_eq!(resolve_gateway(name, "shop").as_str(), expect);
        check("front", "shop/front");
        check("./front", "shop/front");
        check("edge/front", "edge/front");
        check("front.edge.svc.cluster.local", "edge/front");
        check("front.edge", "edge/front");
        check("mesh", "mesh");
    }

    #[test]
    fn admission_accepts_fewer_hosts_than_apply() {
        for good in ["*", "a", "*.a.b", "*-x.a", "*x.a", "Example.COM.", "a.", "*."] {
            assert!(is_admitted_host(good), "{good}");
        }
        for bad in ["", ".", "a_b.c", "a..b", "a.*", "1.2.3.4", "a.b.7", &"a".repeat(64)] {
            assert!(!is_admitted_host(bad), "{bad}");
        }
        assert!(is_fqdn("a.b.svc.cluster.local") && is_fqdn("a.") && !is_fqdn("*.a") && !is_fqdn("1.2.3.4"));
    }

    #[test]
    fn label_syntax_is_that_of_kubernetes() {
        for key in ["a", "app.kubernetes.io/name", "A_b.c-d", "x/1"] {
            assert!(is_label_key(key), "{key}");
        }
        for key in ["", "/a", "a/", "-a", "a b", "a/b/c", &"a".repeat(64)] {
            assert!(!is_label_key(key), "{key}");
        }
        assert!(is_label_value("") && is_label_value("v1_a.b") && !is_label_value("-a") && !is_label_value("a/b"));
    }

    #[test]
    fn wildcard_domains_consist_of_labels() {
        for good in ["*", "a", "a.b", "*.a.b", "*-x.a", "a_b.c", "example.com."] {
            assert!(is_wildcard_domain(good), "{good}");
        }
        for bad in ["", "a..b", "*a.b", "a.*", "-a.b", "a b"] {
            assert!(!is_wildcard_domain(bad), "{bad}");
        }
    }
}
