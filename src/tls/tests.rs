//! Handshakes with the secure port, in memory.

use std::sync::Arc;

use rcgen::{CertifiedKey as Generated, generate_simple_self_signed};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, NamedGroup, ProtocolVersion, RootCertStore, ServerConnection,
    SupportedCipherSuite, SupportedProtocolVersion,
};
use sluice_model::CompliancePolicy;

use super::*;
use crate::auth::TrustDomain;

/// What a client offers.
struct Offer {
    versions: Vec<&'static SupportedProtocolVersion>,
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn SupportedKxGroup>,
}

impl Offer {
    fn all() -> Self {
        let provider = sluice_crypto::provider(None).as_ref().clone();
        Self { versions: rustls::ALL_VERSIONS.to_vec(), suites: provider.cipher_suites, groups: provider.kx_groups }
    }

    fn suites(names: &[CipherSuite]) -> Self {
        let mut all = Self::all();
        all.suites.retain(|suite| names.contains(&suite.suite()));
        all
    }

    fn group(name: NamedGroup) -> Self {
        let mut all = Self::all();
        all.groups.retain(|group| group.name() == name);
        all
    }

    fn version(version: &'static SupportedProtocolVersion) -> Self {
        Self { versions: vec![version], ..Self::all() }
    }
}

type Agreed = (ProtocolVersion, CipherSuite, NamedGroup);

/// What a client and the port agree on under a policy, if they do.
fn shake(policy: Option<CompliancePolicy>, least: &str, offer: Offer) -> Result<Agreed, String> {
    let Generated { cert, signing_key } = generate_simple_self_signed(["istiod".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
    let pair = CertifiedKey::from_der(vec![cert.der().clone()], key, &sluice_crypto::provider(None)).expect("a pair");
    let identity = Arc::new(ServerIdentity::default());
    identity.set(pair);
    let versions = TlsVersions::parse(least, &[]).expect("known").limited_by(policy);
    let clients = Arc::new(ClientVerifier::new(TrustDomain::new("cluster.local".into())));
    let server = server_config(&versions, identity, clients).map_err(|error| format!("{error:#}"))?;
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("a root");
    let provider = CryptoProvider {
        cipher_suites: offer.suites,
        kx_groups: offer.groups,
        ..sluice_crypto::provider(None).as_ref().clone()
    };
    let client = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&offer.versions);
    let client = client.expect("an offer").with_root_certificates(roots).with_no_client_auth();
    let mut server = ServerConnection::new(server).expect("a server");
    let mut client = ClientConnection::new(Arc::new(client), "istiod".try_into().expect("a name")).expect("a client");
    while server.is_handshaking() || client.is_handshaking() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory");
        }
        server.read_tls(&mut bytes.as_slice()).expect("memory");
        server.process_new_packets().map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("memory");
        }
        client.read_tls(&mut bytes.as_slice()).expect("memory");
        client.process_new_packets().map_err(|error| error.to_string())?;
    }
    let version = server.protocol_version().expect("agreed");
    let suite = server.negotiated_cipher_suite().expect("agreed").suite();
    Ok((version, suite, server.negotiated_key_exchange_group().expect("agreed").name()))
}

#[test]
fn the_port_speaks_what_a_policy_lets_be() {
    use CipherSuite as S;
    use CompliancePolicy::{Fips140V2, Fips140V3, PostQuantum};
    use NamedGroup as G;
    use ProtocolVersion::{TLSv1_2, TLSv1_3};
    let chacha = [S::TLS13_CHACHA20_POLY1305_SHA256, S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256];
    let agreed = |policy, offer| shake(policy, "", offer).map(|(version, _, group)| (version, group));

    assert_eq!(agreed(None, Offer::all()), Ok((TLSv1_3, G::X25519MLKEM768)));
    assert_eq!(agreed(None, Offer::group(G::X25519)), Ok((TLSv1_3, G::X25519)));
    assert!(shake(None, "", Offer::suites(&chacha)).is_ok());

    assert_eq!(agreed(Some(Fips140V2), Offer::all()), Ok((TLSv1_2, G::secp256r1)));
    assert_eq!(
        shake(Some(Fips140V2), "VersionTLS13", Offer::all()).map(|agreed| agreed.0),
        Ok(TLSv1_2),
        "it counts last"
    );
    assert!(shake(Some(Fips140V2), "", Offer::version(&rustls::version::TLS13)).is_err());
    assert!(shake(Some(Fips140V2), "", Offer::suites(&chacha)).is_err());
    assert!(shake(Some(Fips140V2), "", Offer::group(G::X25519)).is_err());
    assert!(shake(Some(Fips140V2), "", Offer::group(G::secp384r1)).is_err());

    let (version, suite, group) = shake(Some(Fips140V3), "", Offer::all()).expect("agreed");
    assert_eq!((version, group), (TLSv1_3, G::secp256r1));
    assert!([S::TLS13_AES_128_GCM_SHA256, S::TLS13_AES_256_GCM_SHA384].contains(&suite), "{suite:?}");
    assert_eq!(agreed(Some(Fips140V3), Offer::version(&rustls::version::TLS12)), Ok((TLSv1_2, G::secp256r1)));
    assert_eq!(agreed(Some(Fips140V3), Offer::group(G::secp384r1)), Ok((TLSv1_3, G::secp384r1)));
    assert!(shake(Some(Fips140V3), "", Offer::suites(&chacha)).is_err());
    assert!(shake(Some(Fips140V3), "", Offer::group(G::X25519)).is_err());

    let (version, suite, group) = shake(Some(PostQuantum), "", Offer::group(G::X25519MLKEM768)).expect("agreed");
    assert_eq!((version, group), (TLSv1_3, G::X25519MLKEM768));
    assert!([S::TLS13_AES_128_GCM_SHA256, S::TLS13_AES_256_GCM_SHA384].contains(&suite), "{suite:?}");
    assert_eq!(agreed(Some(PostQuantum), Offer::all()), Ok((TLSv1_3, G::X25519MLKEM768)));
    for old in [G::X25519, G::secp256r1, G::secp384r1] {
        let refused = shake(Some(PostQuantum), "", Offer::group(old)).expect_err("of the old kind");
        assert!(refused.contains("NoKxGroupsInCommon"), "{refused}");
    }
    assert!(shake(Some(PostQuantum), "", Offer::version(&rustls::version::TLS12)).is_err());
    assert!(shake(Some(PostQuantum), "", Offer::suites(&chacha)).is_err());
}
