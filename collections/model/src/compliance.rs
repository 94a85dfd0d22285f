//! Compliance policies for TLS (`COMPLIANCE_POLICY`, P18).

use serde::{Deserialize, Serialize};

/// A policy that restricts all TLS, in addition to other configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum CompliancePolicy {
    /// FIPS 140-2: TLS 1.2, AES-GCM, P-256.
    Fips140V2,
    /// FIPS 140-3: TLS 1.2 and 1.3, AES-GCM, P-256 and P-384.
    Fips140V3,
    /// Post-quantum key exchange: TLS 1.3, AES-GCM, X25519MLKEM768.
    PostQuantum,
}

impl CompliancePolicy {
    /// The configuration names of the policies.
    pub const NAMES: [(&str, Self); 3] =
        [("fips-140-2", Self::Fips140V2), ("fips-140-3", Self::Fips140V3), ("pqc", Self::PostQuantum)];

    /// The policy with that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy)
    }
}
