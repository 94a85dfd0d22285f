//! Rules of admission that several kinds share (W11).
//!
//! What they find is [`Severity::Refused`](sluice_model::Severity): an object that was stored before there was a rule, or
//! past admission, still applies as far as it can.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;
use sluice_model::{Kind, Labels, Text};

use crate::fields::unknown_field;
use crate::{Fields, Findings, Item, is_any_case_label, is_label_key, is_label_value};

/// Annotation that makes an AuthorizationPolicy report what it would do.
const DRY_RUN: &str = "istio.io/dry-run";
/// Annotations that nobody may set: a test of admission itself, and marks of objects made from others.
const RESERVED: [&str; 3] =
    ["internal.istio.io/webhook-always-reject", "internal.istio.io/parents", "internal.istio.io/parent-namespace"];
/// Fields an object may have beside its own.
const TOP_LEVEL: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// What is wrong with an Istio object apart from its spec.
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
        findings.refuse("metadata.name", format!("`{name}` cannot be the name of an object"));
    }
    let annotations = item.object.pointer("/metadata/annotations").and_then(Value::as_object);
    for (name, value) in annotations.into_iter().flatten() {
        let path = format!("metadata.annotations[{name}]");
        if RESERVED.contains(&name.as_str()) {
            findings.refuse(&path, "this annotation is reserved");
        }
        if name == DRY_RUN {
            check_dry_run(item, kind, value, &path, findings);
        }
    }
}

fn check_dry_run(item: &Item<'_>, kind: Kind, value: &Value, path: &str, findings: &Findings) {
    let action = item.spec().get("action").and_then(Value::as_str).unwrap_or("ALLOW");
    let words = ["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"];
    if kind != Kind::AuthorizationPolicy {
        findings.refuse(path, "only an AuthorizationPolicy can run dry");
    } else if !matches!(action, "ALLOW" | "DENY") {
        findings.refuse(path, format!("a policy of action {action} cannot run dry"));
    } else if !value.as_str().is_some_and(|word| words.contains(&word)) {
        findings.refuse(path, "true or false is expected");
    }
}

/// `exportTo`: namespaces, `.` for the object's own, `*` for all; `~`, for nobody, only where `nobody` allows it.
pub(crate) fn check_export_to(fields: &Fields<'_>, export_to: &[Text], namespace: &str, nobody: bool) {
    let mut seen = BTreeSet::new();
    for (n, entry) in export_to.iter().enumerate() {
        let path = format!("exportTo[{n}]");
        let means = if entry.as_str() == "." { namespace } else { entry.as_str() };
        if !seen.insert(means) {
            fields.refuse(&path, format!("`{entry}` is exported to already"));
        }
        let special = matches!(entry.as_str(), "." | "*") || (nobody && entry.as_str() == "~");
        if !special && !is_any_case_label(entry) {
            fields.refuse(&path, format!("`{entry}` is no namespace"));
        }
    }
    for alone in ["*", "~"] {
        if export_to.len() > 1 && seen.contains(alone) {
            fields.refuse("exportTo", format!("`{alone}` stands alone"));
        }
    }
}

/// Labels as Kubernetes has them.
pub(crate) fn check_labels(fields: &Fields<'_>, name: &str, labels: &Labels) {
    for (key, value) in labels {
        if !is_label_key(key) {
            fields.refuse(name, format!("`{key}` cannot be the key of a label"));
        }
        if !is_label_value(value) {
            fields.refuse(&format!("{name}[{key}]"), format!("`{value}` cannot be the value of a label"));
        }
    }
}

/// A selector of workloads with its labels in the field `name`: no wildcards, and better not empty.
pub(crate) fn check_selector(selector: &Fields<'_>, name: &str, labels: &Labels) {
    for (key, value) in labels {
        if key.is_empty() {
            selector.refuse(name, "a label needs a key");
        }
        if key.contains('*') || value.contains('*') {
            selector.refuse(&format!("{name}[{key}]"), "labels are selected without wildcards");
        }
        if value.chars().count() > 63 {
            selector.refuse(&format!("{name}[{key}]"), "a label is 63 characters at most");
        }
    }
    if labels.is_empty() {
        selector.warn(name, "without labels everything is selected");
    }
}

/// An address, or a block of addresses such as `10.0.0.0/8`.
pub(crate) fn is_subnet(text: &str) -> bool {
    if text.contains('/') { text.parse::<ipnet::IpNet>().is_ok() } else { text.parse::<IpAddr>().is_ok() }
}

/// Whether this is a port.
pub(crate) fn is_port<N: TryInto<u16>>(number: N) -> bool {
    number.try_into().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_subnets() {
        assert!(is_port(1u16) && is_port(65535u32) && !is_port(0u16) && !is_port(65536u32) && !is_port(-1));
        assert!(is_subnet("10.0.0.0/8") && is_subnet("::1") && !is_subnet("10.0.0.0/33") && !is_subnet("host"));
    }
}
