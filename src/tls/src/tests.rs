//! Handshakes with the secure port, in memory.

use std::sync::Arc;

use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, NamedGroup, ProtocolVersion};
use sluice_auth::TrustDomain;
use sluice_model::CompliancePolicy;
use sluice_testkit::handshake::{self, NegotiatedTls, TlsOptions, self_signed_certificate};

use super::*;

/// The version, cipher suite and group that a client and the server negotiate under a policy.
fn negotiate(policy: Option<CompliancePolicy>, min_version: &str, offer: TlsOptions) -> Result<NegotiatedTls, String> {
    let (certificate, key) = self_signed_certificate().expect("a certificate");
    let pair = CertifiedKey::from_der(vec![certificate.clone()], key, &sluice_crypto::provider(None)).expect("a pair");
    let identity = Arc::new(ServerIdentity::default());
    identity.set(pair);
    let versions = TlsVersions::parse(min_version, &[]).expect("known").limited_by(policy);
    let clients = Arc::new(ClientVerifier::new(TrustDomain::new("cluster.local".into())));
    let server = server_config(&versions, identity, clients).map_err(|error| error.to_string())?;
    let client = offer.client(&certificate).expect("an offer");
    handshake::perform_handshake(client, server).map_err(|error| error.to_string())
}

#[test]
fn compliance_policy_limits_the_handshake() {
    use CipherSuite as S;
    use CompliancePolicy::{Fips140V2, Fips140V3, PostQuantum};
    use NamedGroup as G;
    use ProtocolVersion::{TLSv1_2, TLSv1_3};
    let chacha = [S::TLS13_CHACHA20_POLY1305_SHA256, S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256];
    let version_and_group = |policy, offer| negotiate(policy, "", offer).map(|(version, _, group)| (version, group));

    assert_eq!(version_and_group(None, TlsOptions::default()), Ok((TLSv1_3, G::X25519MLKEM768)));
    assert_eq!(version_and_group(None, TlsOptions::default().group(G::X25519)), Ok((TLSv1_3, G::X25519)));
    assert!(negotiate(None, "", TlsOptions::default().suites(&chacha)).is_ok());

    assert_eq!(version_and_group(Some(Fips140V2), TlsOptions::default()), Ok((TLSv1_2, G::secp256r1)));
    assert_eq!(
        negotiate(Some(Fips140V2), "VersionTLS13", TlsOptions::default()).map(|(version, ..)| version),
        Ok(TLSv1_2),
        "the policy replaces the flag"
    );
    assert!(negotiate(Some(Fips140V2), "", TlsOptions::default().version(&rustls::version::TLS13)).is_err());
    assert!(negotiate(Some(Fips140V2), "", TlsOptions::default().suites(&chacha)).is_err());
    assert!(negotiate(Some(Fips140V2), "", TlsOptions::default().group(G::X25519)).is_err());
    assert!(negotiate(Some(Fips140V2), "", TlsOptions::default().group(G::secp384r1)).is_err());

    let (version, suite, group) = negotiate(Some(Fips140V3), "", TlsOptions::default()).expect("agreed");
    assert_eq!((version, group), (TLSv1_3, G::secp256r1));
    assert!([S::TLS13_AES_128_GCM_SHA256, S::TLS13_AES_256_GCM_SHA384].contains(&suite), "{suite:?}");
    assert_eq!(
        version_and_group(Some(Fips140V3), TlsOptions::default().version(&rustls::version::TLS12)),
        Ok((TLSv1_2, G::secp256r1))
    );
    assert_eq!(
        version_and_group(Some(Fips140V3), TlsOptions::default().group(G::secp384r1)),
        Ok((TLSv1_3, G::secp384r1))
    );
    assert!(negotiate(Some(Fips140V3), "", TlsOptions::default().suites(&chacha)).is_err());
    assert!(negotiate(Some(Fips140V3), "", TlsOptions::default().group(G::X25519)).is_err());

    let (version, suite, group) =
        negotiate(Some(PostQuantum), "", TlsOptions::default().group(G::X25519MLKEM768)).expect("agreed");
    assert_eq!((version, group), (TLSv1_3, G::X25519MLKEM768));
    assert!([S::TLS13_AES_128_GCM_SHA256, S::TLS13_AES_256_GCM_SHA384].contains(&suite), "{suite:?}");
    assert_eq!(version_and_group(Some(PostQuantum), TlsOptions::default()), Ok((TLSv1_3, G::X25519MLKEM768)));
    for group in [G::X25519, G::secp256r1, G::secp384r1] {
        let error = negotiate(Some(PostQuantum), "", TlsOptions::default().group(group)).expect_err("not post-quantum");
        assert!(error.contains("NoKxGroupsInCommon"), "{error}");
    }
    assert!(negotiate(Some(PostQuantum), "", TlsOptions::default().version(&rustls::version::TLS12)).is_err());
    assert!(negotiate(Some(PostQuantum), "", TlsOptions::default().suites(&chacha)).is_err());
}
