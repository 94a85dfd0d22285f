//! Keyed hashes that stand for private content in a recording.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use serde_json::Value;
use sluice_engine::InputRecord;
use sluice_model::{FINGERPRINT_BYTES, Redacted, RootCertificates, Secret};

/// The key of a recording. It is random, and dropped with the recorder: content cannot be found by trial, and fingerprints of two
/// recordings have nothing in common.
pub(crate) struct FingerprintKey(hmac::Key);

impl FingerprintKey {
    /// A new key. `None` if the system has no randomness.
    pub(crate) fn generate() -> Option<Self> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok().map(Self)
    }

    fn fingerprint(&self, content: &Redacted) -> Redacted {
        let tag = hmac::sign(&self.0, &content.0);
        let mut hash = [0; FINGERPRINT_BYTES];
        hash.copy_from_slice(&tag.as_ref()[..FINGERPRINT_BYTES]);
        Redacted::fingerprint(hash)
    }

    /// The value of a record as JSON, with fingerprints for private content.
    pub(crate) fn value_json(&self, record: &InputRecord) -> Option<Value> {
        let replace = |content: &Redacted| self.fingerprint(content);
        // These are all types that have such content; they are always written as JSON.
        if let Some(secret) = record.value::<Secret>() {
            return serde_json::to_value(secret.with_bytes(&replace)).ok();
        }
        if let Some(roots) = record.value::<RootCertificates>() {
            return serde_json::to_value(roots.with_bytes(&replace)).ok();
        }
        record.value_json()
    }
}
