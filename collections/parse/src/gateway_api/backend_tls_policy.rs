//! BackendTLSPolicies (G06).

use sluice_model::Object;
use sluice_model::gateway_api::{BackendTlsPolicy, BackendValidation, PolicyTarget};

use super::reference::{group_kind, object_ref};
use super::route::check_hostname;
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    fields.text_map("options");
    if !fields.has("validation") {
        fields.reject("validation", "`validation` is required");
    }
    let policy = BackendTlsPolicy {
        meta: item.meta(findings),
        targets: targets(&fields),
        validation: fields.read("validation", validation).unwrap_or_default(),
        status: item.status(),
    };
    if fields.has("validation") && policy.validation.hostname.is_empty() {
        fields.reject("validation.hostname", "`hostname` is required");
    }
    drop(fields);
    (!findings.has_errors()).then(|| Object::BackendTLSPolicy(Box::new(policy)))
}

/// Reads `targetRefs`.
pub(super) fn targets(fields: &Fields<'_>) -> Vec<PolicyTarget> {
    let targets = fields.list("targetRefs", |target| {
        let read = PolicyTarget {
            kind: group_kind(target, "", ""),
            name: target.text("name"),
            section: target.text("sectionName"),
        };
        for (name, missing) in [("kind", read.kind.kind.is_empty()), ("name", read.name.is_empty())] {
            if missing {
                target.reject(name, "this field is required");
            }
        }
        read
    });
    if targets.is_empty() {
        fields.refuse("targetRefs", "at least one target is required");
    }
    targets
}

/// Reads `validation`: how the certificate of a backend is verified.
pub(super) fn validation(fields: &Fields<'_>) -> BackendValidation {
    let names = fields.list("subjectAltNames", |name| match name.text("type").as_str() {
        "Hostname" => name.opt_text("hostname"),
        "URI" => name.opt_text("uri"),
        kind => {
            name.ignore_rest();
            name.reject("type", format!("expected `Hostname` or `URI`, found `{kind}`"));
            None
        }
    });
    let validation = BackendValidation {
        hostname: fields.text("hostname"),
        subject_alt_names: names.into_iter().flatten().collect(),
        roots: fields.list("caCertificateRefs", |reference| object_ref(reference, "", "")),
        well_known_roots: fields.opt_text("wellKnownCACertificates"),
    };
    check_hostname(fields, "hostname", &validation.hostname);
    if validation.roots.is_empty() == validation.well_known_roots.is_none() {
        fields.refuse("", "exactly one of `caCertificateRefs` and `wellKnownCACertificates` is required");
    }
    if validation.roots.len() > 1 {
        fields.warn("caCertificateRefs", "only the first entry is used");
    }
    validation
}
