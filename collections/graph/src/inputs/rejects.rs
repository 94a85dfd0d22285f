//! Everything that is wrong with configuration.

use sluice_engine::Collection;
use sluice_model::Reject;

use crate::inputs::RejectKey;

/// Findings by object: those of parsing, references that lead nowhere, and remote clusters that cannot be reached as a
/// Secret says; for status, metrics and the dump.
/// Key: `RejectKey`. From: `parse_rejects`, `cluster_rejects`, and those of references.
/// Changes when: an object is written that has other findings than before, or what it refers to comes or goes.
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
