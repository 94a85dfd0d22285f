//! Names that are derived from content: equal on every replica.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use serde::Serialize;
use sluice_model::Text;

static SEEDS: [RapidSecrets; 2] = [RapidSecrets::seed_cpp(1), RapidSecrets::seed_cpp(2)];

/// Two independent hashes of a value.
pub(crate) fn content_hashes<T: Serialize>(content: &T) -> [u64; 2] {
    let text = serde_json::to_vec(content).unwrap_or_default();
    SEEDS.each_ref().map(|seed| rapidhash_v3_seeded(&text, seed))
}

/// A name for content: two hashes of it, so that different contents have different names.
pub(crate) fn content_hash<T: Serialize>(content: &T) -> String {
    let [high, low] = content_hashes(content);
    format!("{high:016x}{low:016x}")
}

/// A longer text of a profile is replaced by its hash, because the key of each resource contains it.
const MAX_PROFILE_TEXT_BYTES: usize = 1024;

/// The canonical text of a profile, which is part of the key of its layers.
pub(crate) fn profile_text<P: Serialize>(profile: &P) -> Text {
    // Serialization of a struct of plain values cannot fail.
    let text = serde_json::to_string(profile).unwrap_or_default();
    if text.len() > MAX_PROFILE_TEXT_BYTES { content_hash(profile).into() } else { text.into() }
}
