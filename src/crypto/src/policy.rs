//! Protocol versions, cipher suites and groups by compliance policy.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, NamedGroup, SupportedProtocolVersion};
use sluice_model::CompliancePolicy;

/// Cipher suites of TLS 1.2 that every policy allows.
const TLS12_AES_GCM: [CipherSuite; 4] = [
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
];
/// Cipher suites of TLS 1.3 that every policy allows.
const TLS13_AES_GCM: [CipherSuite; 2] = [CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_256_GCM_SHA384];

/// The allowed TLS versions; without a policy 1.2 and 1.3.
#[must_use]
pub fn protocols(policy: Option<CompliancePolicy>) -> &'static [&'static SupportedProtocolVersion] {
    const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
    match policy {
        None | Some(CompliancePolicy::Fips140V3) => BOTH,
        Some(CompliancePolicy::Fips140V2) => &BOTH[1..],
        Some(CompliancePolicy::PostQuantum) => &BOTH[..1],
    }
}

/// A provider with the allowed cipher suites and key exchange groups. Without a policy it has all those of aws-lc-rs,
/// with X25519MLKEM768 first.
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
        .retain(|suite| TLS12_AES_GCM.contains(&suite.suite()) || TLS13_AES_GCM.contains(&suite.suite()));
    provider.kx_groups.retain(|group| groups.contains(&group.name()));
    Arc::new(provider)
}
