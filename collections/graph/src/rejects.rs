//! Everything that is wrong with configuration.

use sluice_engine::Collection;
use sluice_model::Reject;

use crate::RejectKey;

/// Findings by object: those of parsing, for status, metrics and the dump.
/// Key: `RejectKey`. From: `parse_rejects`.
/// Changes when: an object is written that has other findings than before.
/// Size: objects something is wrong with. Rejects: all.
pub(crate) fn derive_rejects<'s>(
    parsed: &Collection<'s, RejectKey, Vec<Reject>>,
) -> Collection<'s, RejectKey, Vec<Reject>> {
    parsed.filter("rejects", |_, rejects| !rejects.is_empty())
}
