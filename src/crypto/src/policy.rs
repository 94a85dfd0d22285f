//! What a policy of compliance lets be.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, NamedGroup, SupportedProtocolVersion};
use sluice_model::CompliancePolicy;

/// Suites of TLS 1.2 that policies let be.
const AES_GCM_OF_12: [CipherSuite; 4] = [
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
];
const AES_GCM_OF_13: [CipherSuite; 2] = [CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_256_GCM_SHA384];

/// Versions of TLS; without a policy both that are safe.
#[must_use]
pub fn protocols(policy: Option<CompliancePolicy>) -> &'static [&'static SupportedProtocolVersion] {
    const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
    match policy {
        None | Some(CompliancePolicy::Fips140V3) => BOTH,
        Some(CompliancePolicy::Fips140V2) => &BOTH[1..],
        Some(CompliancePolicy::PostQuantum) => &BOTH[..1],
    }
}

/// Cipher suites and groups of key exchange; without a policy all that are safe, X25519MLKEM768 before others.
#[must_use]
pub fn provider(policy: Option<CompliancePolicy>) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    let groups: &[NamedGroup] = match policy {
        None => return Arc::new(provider),
        Some(CompliancePolicy::Fips140V2) => &[NamedGroup::secp256r1],
        Some(CompliancePolicy::Fips140V3) => &[NamedGroup::secp256r1, NamedGroup::secp384r1],
        Some(CompliancePolicy::PostQuantum) => &[NamedGroup::X25519MLKEM768],
    };
    provider
        .cipher_suites
        .retain(|suite| AES_GCM_OF_12.contains(&suite.suite()) || AES_GCM_OF_13.contains(&suite.suite()));
    provider.kx_groups.retain(|group| groups.contains(&group.name()));
    Arc::new(provider)
}
