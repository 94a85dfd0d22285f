//! Admission rules that several kinds share (W11).
//!
//! Their findings are [`Severity::Refused`](sluice_model::Severity): an object that is stored in spite of a rule applies as
//! far as possible.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;
use sluice_model::{Kind, Labels, Text, label};

use crate::fields::unknown_field;
use crate::{Fields, Findings, Item, is_any_case_label, is_label_key, is_label_value};

/// Annotations that admission refuses: a test of the webhook itself, and marks of objects that controllers generate.
const RESERVED: [&str; 3] =
    ["internal.istio.io/webhook-always-reject", "internal.istio.io/parents", "internal.istio.io/parent-namespace"];
/// Top-level fields of an Istio object.
const TOP_LEVEL: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// Checks the parts of an Istio object outside of `spec`.
pub(crate) fn check_object(item: &Item<'_>, kind: Kind, findings: &Findings) {
    for name in item.object.as_object().into_iter().flat_map(|object| object.keys()) {
        if !TOP_LEVEL.contains(&name.as_str()) {
            findings.refuse(name, unknown_field(name, TOP_LEVEL.into_iter()));
        }
    }
    let name = item.key.name.as_str();
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        findings.refuse(
            "metadata.name",
            format!("`{name}` is not a valid object name: expected at most 253 characters of a-z, 0-9, `-` and `.`"),
        );
    }
    let annotations = item.object["metadata"]["annotations"].as_object();
    for (name, value) in annotations.into_iter().flatten() {
        let path = format!("metadata.annotations[{name}]");
        if RESERVED.contains(&name.as_str()) {
            findings.refuse(&path, "this annotation is reserved and cannot be set");
        }
        if name == label::DRY_RUN {
            check_dry_run(item, kind, value, &path, findings);
        }
    }
}

fn check_dry_run(item: &Item<'_>, kind: Kind, value: &Value, path: &str, findings: &Findings) {
    let action = item.spec().get("action").and_then(Value::as_str).unwrap_or("ALLOW");
    let words = ["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"];
    if kind != Kind::AuthorizationPolicy {
        findings.refuse(path, "only an AuthorizationPolicy supports a dry run");
    } else if !matches!(action, "ALLOW" | "DENY") {
        findings.refuse(path, format!("expected action ALLOW or DENY for a dry run, found {action}"));
    } else if !value.as_str().is_some_and(|word| words.contains(&word)) {
        findings.refuse(path, "expected `true` or `false`");
    }
}

/// Checks `exportTo`: namespaces, `.` for the object's namespace, `*` for all, and `~` for none if `allow_none`.
pub(crate) fn check_export_to(fields: &Fields<'_>, export_to: &[Text], namespace: &str, allow_none: bool) {
    let mut seen = BTreeSet::new();
    for (n, entry) in export_to.iter().enumerate() {
        let path = format!("exportTo[{n}]");
        let means = if entry.as_str() == "." { namespace } else { entry.as_str() };
        if !seen.insert(means) {
            fields.refuse(&path, format!("`{entry}` is listed twice"));
        }
        let special = matches!(entry.as_str(), "." | "*") || (allow_none && entry.as_str() == "~");
        if !special && !is_any_case_label(entry) {
            fields.refuse(&path, format!("`{entry}` is not a namespace: expected a DNS label, `.` or `*`"));
        }
    }
    for alone in ["*", "~"] {
        if export_to.len() > 1 && seen.contains(alone) {
            fields.refuse("exportTo", format!("`{alone}` must be the only entry"));
        }
    }
}

/// Checks labels by the rules of Kubernetes.
pub(crate) fn check_labels(fields: &Fields<'_>, name: &str, labels: &Labels) {
    for (key, value) in labels {
        if !is_label_key(key) {
            fields.refuse(name, format!("`{key}` is not a valid label key"));
        }
        if !is_label_value(value) {
            fields.refuse(
                &format!("{name}[{key}]"),
                format!("`{value}` is not a valid label value: expected letters, digits, `-`, `_` and `.`"),
            );
        }
    }
}

/// Checks a workload selector whose labels are in the field `name`: wildcards are refused, no labels is a warning.
pub(crate) fn check_selector(selector: &Fields<'_>, name: &str, labels: &Labels) {
    for (key, value) in labels {
        if key.is_empty() {
            selector.refuse(name, "a label key must not be empty");
        }
        if key.contains('*') || value.contains('*') {
            selector.refuse(&format!("{name}[{key}]"), "wildcards are not supported in selectors");
        }
        if value.chars().count() > 63 {
            selector.refuse(&format!("{name}[{key}]"), "a label value must have at most 63 characters");
        }
    }
    if labels.is_empty() {
        selector.warn(name, "a selector without labels selects every workload");
    }
}

/// Whether a text is an IP address or a CIDR block such as `10.0.0.0/8`.
pub(crate) fn is_subnet(text: &str) -> bool {
    if text.contains('/') { text.parse::<ipnet::IpNet>().is_ok() } else { text.parse::<IpAddr>().is_ok() }
}

/// Whether a number is a port, 1 to 65535.
pub(crate) fn is_port<N: TryInto<u16>>(number: N) -> bool {
    number.try_into().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_subnets_are_recognized() {
        assert!(is_port(1u16) && is_port(65535u32) && !is_port(0u16) && !is_port(65536u32) && !is_port(-1));
        assert!(is_subnet("10.0.0.0/8") && is_subnet("::1") && !is_subnet("10.0.0.0/33") && !is_subnet("host"));
    }
}
