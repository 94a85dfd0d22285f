//! Why a proxy does not use what it should have: it does not subscribe to it, or has not acknowledged it.

use super::facts::Facts;
use super::found_resource::FoundResource;
use super::{AbsenceReason, ReasonCode};

/// Resources whose delivery is looked at.
const MAX_RESOURCES: usize = 20;

/// Adds what is missing in the delivery of resources.
pub(super) fn check(facts: &Facts<'_>, resources: &[FoundResource], findings: &mut Vec<AbsenceReason>) {
    for resource in resources.iter().take(MAX_RESOURCES) {
        let progress = facts.state.status.progress(facts.key, resource.kind, &resource.name);
        let finding = match progress {
            None => {
                AbsenceReason::new(ReasonCode::NotSubscribed, format!("the proxy does not subscribe to {resource}"))
            }
            Some(progress) => match progress.error {
                Some(error) => {
                    let text = format!("the proxy rejected the last response of the type of {resource}: {error}");
                    AbsenceReason::new(ReasonCode::RejectedByProxy, text)
                }
                None if !progress.sent => {
                    AbsenceReason::new(ReasonCode::NotAcknowledged, format!("the proxy was not sent {resource} yet"))
                }
                None if !progress.acked => {
                    let at = progress.sent_at.unwrap_or_default();
                    let text = format!("the proxy was sent {resource} at {at}, and has not acknowledged it");
                    AbsenceReason::new(ReasonCode::NotAcknowledged, text)
                }
                None => continue,
            },
        };
        findings.push(finding);
    }
}
