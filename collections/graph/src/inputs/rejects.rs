//! Findings in configuration.

use sluice_engine::Collection;
use sluice_model::Reject;

use crate::inputs::RejectKey;

/// Findings by object, for status, metrics and the dump: findings of parsing, references to absent objects, remote clusters
/// that cannot be reached, and Gateways that cannot be deployed.
/// Key: `RejectKey`. From: `parse_rejects`, `component_rejects`, and those of references.
/// Changes when: an object is written with other findings than before, or an object that it refers to is added or
/// removed.
/// Size: objects something is wrong with. Rejects: all.
pub(crate) fn derive_rejects<'s>(
    parsed: &Collection<'s, RejectKey, Vec<Reject>>,
    others: &[Collection<'s, RejectKey, Vec<Reject>>],
) -> Collection<'s, RejectKey, Vec<Reject>> {
    parsed.union_merge("rejects", others, |_, all: &[&Vec<Reject>]| {
        let all: Vec<Reject> = all.iter().flat_map(|rejects| rejects.iter().cloned()).collect();
        (!all.is_empty()).then_some(all)
    })
}
