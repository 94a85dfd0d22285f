//! Handshakes in memory.

use std::sync::Arc;

use rustls::{CipherSuite, NamedGroup, ProtocolVersion};
use sluice_testkit::handshake::{self, NegotiatedTls, TlsOptions, roots_with, self_signed_certificate};

use super::*;

/// The parameters that a client under a policy and a server negotiate.
fn negotiate(policy: Option<CompliancePolicy>, server: TlsOptions) -> Result<NegotiatedTls, rustls::Error> {
    let pair = self_signed_certificate().expect("a certificate");
    let roots = roots_with(&pair.0).expect("a root");
    let client = client(policy).expect("a client").with_root_certificates(roots).with_no_client_auth();
    handshake::perform_handshake(client, Arc::new(server.server(&pair).expect("a server")))
}

#[test]
fn client_negotiates_only_what_its_policy_allows() {
    use CompliancePolicy::{Fips140V2, Fips140V3, PostQuantum};
    use NamedGroup as G;
    use ProtocolVersion::{TLSv1_2, TLSv1_3};
    use rustls::version::{TLS12, TLS13};
    let all = TlsOptions::default;
    let chacha = all().suites(&[
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ]);
    let negotiated = |policy, server| negotiate(policy, server).map(|(version, _, group)| (version, group)).ok();

    assert_eq!(negotiated(None, all()), Some((TLSv1_3, G::X25519MLKEM768)));
    assert_eq!(negotiated(None, chacha.clone().group(G::X25519)), Some((TLSv1_3, G::X25519)));

    assert_eq!(negotiated(Some(Fips140V2), all()), Some((TLSv1_2, G::secp256r1)));
    assert_eq!(negotiated(Some(Fips140V2), all().version(&TLS13)), None);
    assert_eq!(negotiated(Some(Fips140V2), all().group(G::secp384r1)), None);

    assert_eq!(negotiated(Some(Fips140V3), all()), Some((TLSv1_3, G::secp256r1)));
    assert_eq!(negotiated(Some(Fips140V3), all().version(&TLS12)), Some((TLSv1_2, G::secp256r1)));
    assert_eq!(negotiated(Some(Fips140V3), all().group(G::secp384r1)), Some((TLSv1_3, G::secp384r1)));
    assert_eq!(negotiated(Some(Fips140V3), all().group(G::X25519)), None);

    assert_eq!(negotiated(Some(PostQuantum), all()), Some((TLSv1_3, G::X25519MLKEM768)));
    assert_eq!(negotiated(Some(PostQuantum), all().group(G::X25519)), None);
    assert_eq!(negotiated(Some(PostQuantum), all().version(&TLS12)), None);

    for (name, policy) in CompliancePolicy::NAMES {
        assert!(negotiate(Some(policy), chacha.clone()).is_err(), "{name}");
        let (_, suite, _) = negotiate(Some(policy), all()).expect(name);
        assert!(format!("{suite:?}").contains("_AES_") && format!("{suite:?}").contains("_GCM_"), "{name}: {suite:?}");
    }
}

#[test]
fn only_the_unverifying_client_accepts_an_unknown_server() {
    let server = || {
        Arc::new(TlsOptions::default().server(&self_signed_certificate().expect("a certificate")).expect("a server"))
    };
    handshake::perform_handshake(client_without_verification().expect("a client"), server()).expect("accepted");
    let roots = roots_with(&self_signed_certificate().expect("a certificate").0).expect("a root");
    let client = client(None).expect("a client").with_root_certificates(roots).with_no_client_auth();
    let rejected = handshake::perform_handshake(client, server()).expect_err("an unknown issuer");
    assert!(matches!(rejected, rustls::Error::InvalidCertificate(_)), "{rejected:?}");
}
