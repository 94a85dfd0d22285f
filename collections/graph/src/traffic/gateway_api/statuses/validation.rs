//! Whether the certificate of a backend can be verified as a policy says.

use sluice_engine::Context;
use sluice_model::ObjectKey;
use sluice_model::gateway_api::{BackendValidation, GroupKind};

use super::super::credentials::CredentialLookup;
use crate::statuses::{StatusCondition, StatusProblem};

/// The message of a condition that is met.
pub(super) const VALID: &str = "Configuration is valid";

/// What is wrong with the verification of a backend.
#[derive(Default)]
pub(super) struct ValidationReport {
    /// Why the object is not accepted.
    pub(super) problem: Option<StatusProblem>,
    /// Why its references are not resolved.
    unresolved: Option<StatusProblem>,
    /// Whether root certificates after the first ones are ignored.
    ignores_roots: bool,
}

impl ValidationReport {
    /// Checks the root certificates of an object.
    pub(super) fn of(
        cx: &Context,
        credentials: &CredentialLookup,
        key: &ObjectKey,
        validation: &BackendValidation,
    ) -> Self {
        let (problem, unresolved) = roots_problem(cx, credentials, key, validation);
        let ignores_roots = validation.well_known_roots.is_none() && validation.roots.len() > 1;
        Self { problem, unresolved, ignores_roots }
    }

    /// An object that is not accepted.
    pub(super) fn invalid(message: String) -> Self {
        Self { problem: Some(StatusProblem::new("Invalid", message)), ..Self::default() }
    }

    /// The conditions with this problem of the object.
    pub(super) fn conditions(&self, problem: Option<&StatusProblem>) -> Vec<StatusCondition> {
        let message = match self.ignores_roots {
            false => VALID.to_owned(),
            true => format!("{VALID}; warning: only the first caCertificateRefs will be used"),
        };
        vec![
            StatusCondition::met("Accepted", "Accepted", message).unless(problem),
            StatusCondition::met("ResolvedRefs", "ResolvedRefs", VALID).unless(self.unresolved.as_ref()),
        ]
    }
}

/// Why the root certificates cannot be used: for the conditions `Accepted` and `ResolvedRefs`.
fn roots_problem(
    cx: &Context,
    credentials: &CredentialLookup,
    key: &ObjectKey,
    validation: &BackendValidation,
) -> (Option<StatusProblem>, Option<StatusProblem>) {
    if let Some(well_known) = &validation.well_known_roots {
        let unknown = (*well_known != *"System")
            .then(|| StatusProblem::new("Invalid", format!("Unknown wellKnownCACertificates: {well_known}")));
        return (unknown, None);
    }
    let Some(root) = validation.roots.first() else { return (None, None) };
    let GroupKind { group, kind } = &root.kind;
    let (reason, begin, problem) = match (group.as_str(), kind.as_str()) {
        ("", "ConfigMap") => {
            if credentials.has_bundle(cx, &ObjectKey { name: root.name.clone(), ..key.clone() }) {
                return (None, None);
            }
            let problem = format!("reference {}/{} (of kind ConfigMap) not found", key.namespace, root.name);
            ("InvalidCACertificateRef", "Certificate reference not found", problem)
        }
        ("", "Secret") => {
            let problem = "unsupported reference kind: Secret".to_owned();
            ("InvalidKind", "Certificate reference invalid", problem)
        }
        _ => ("InvalidKind", "Certificate reference not supported", format!("unsupported kind {kind}")),
    };
    let accepted = format!("Certificate reference invalid: {problem}");
    let resolved = StatusProblem::new(reason, format!("{begin}: {problem}"));
    (Some(StatusProblem::new("NoValidCACertificate", accepted)), Some(resolved))
}
