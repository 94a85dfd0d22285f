//! Handshakes in memory.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, NamedGroup, ProtocolVersion, RootCertStore, ServerConfig,
    ServerConnection, SupportedCipherSuite, SupportedProtocolVersion,
};

use super::*;

/// What a server takes.
struct Server {
    versions: Vec<&'static SupportedProtocolVersion>,
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn SupportedKxGroup>,
}

impl Server {
    fn all() -> Self {
        let CryptoProvider { cipher_suites, kx_groups, .. } = provider(None).as_ref().clone();
        Self { versions: rustls::ALL_VERSIONS.to_vec(), suites: cipher_suites, groups: kx_groups }
    }

    fn without_aes(mut self) -> Self {
        self.suites.retain(|suite| format!("{:?}", suite.suite()).contains("CHACHA20"));
        self
    }

    fn only(mut self, group: NamedGroup) -> Self {
        self.groups.retain(|it| it.name() == group);
        assert_eq!(self.groups.len(), 1, "{group:?}");
        self
    }

    fn speaking(mut self, version: &'static SupportedProtocolVersion) -> Self {
        self.versions = vec![version];
        self
    }
}

type Agreed = (ProtocolVersion, CipherSuite, NamedGroup);

fn certified() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["istiod".to_owned()]).expect("a certificate");
    (made.cert.der().clone(), PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key"))
}

/// What a client under a policy and a server agree on, if they do.
fn shake(policy: Option<CompliancePolicy>, server: Server) -> Result<Agreed, rustls::Error> {
    let (certificate, key) = certified();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a root");
    let config = client(policy).expect("a client").with_root_certificates(roots).with_no_client_auth();
    shake_with(config, certificate, key, server)
}

fn shake_with(
    client: ClientConfig,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    server: Server,
) -> Result<Agreed, rustls::Error> {
    let all = provider(None).as_ref().clone();
    let limited = CryptoProvider { cipher_suites: server.suites, kx_groups: server.groups, ..all };
    let config = ServerConfig::builder_with_provider(Arc::new(limited)).with_protocol_versions(&server.versions);
    let config = config.expect("a server").with_no_client_auth().with_single_cert(vec![certificate], key);
    let mut server = ServerConnection::new(Arc::new(config.expect("a pair"))).expect("a server");
    let mut client = ClientConnection::new(Arc::new(client), "istiod".try_into().expect("a name")).expect("a client");
    while server.is_handshaking() || client.is_handshaking() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory");
        }
        server.read_tls(&mut bytes.as_slice()).expect("memory");
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("memory");
        }
        client.read_tls(&mut bytes.as_slice()).expect("memory");
        client.process_new_packets()?;
    }
    let version = client.protocol_version().expect("agreed");
    let suite = client.negotiated_cipher_suite().expect("agreed").suite();
    Ok((version, suite, client.negotiated_key_exchange_group().expect("agreed").name()))
}

#[test]
fn a_client_agrees_only_to_what_its_policy_lets_be() {
    use CompliancePolicy::{Fips140V2, Fips140V3, PostQuantum};
    use NamedGroup as G;
    use ProtocolVersion::{TLSv1_2, TLSv1_3};
    use rustls::version::{TLS12, TLS13};
    let agreed = |policy, server| shake(policy, server).map(|(version, _, group)| (version, group)).ok();

    assert_eq!(agreed(None, Server::all()), Some((TLSv1_3, G::X25519MLKEM768)));
    assert_eq!(agreed(None, Server::all().without_aes().only(G::X25519)), Some((TLSv1_3, G::X25519)));

    assert_eq!(agreed(Some(Fips140V2), Server::all()), Some((TLSv1_2, G::secp256r1)));
    assert_eq!(agreed(Some(Fips140V2), Server::all().speaking(&TLS13)), None);
    assert_eq!(agreed(Some(Fips140V2), Server::all().only(G::secp384r1)), None);

    assert_eq!(agreed(Some(Fips140V3), Server::all()), Some((TLSv1_3, G::secp256r1)));
    assert_eq!(agreed(Some(Fips140V3), Server::all().speaking(&TLS12)), Some((TLSv1_2, G::secp256r1)));
    assert_eq!(agreed(Some(Fips140V3), Server::all().only(G::secp384r1)), Some((TLSv1_3, G::secp384r1)));
    assert_eq!(agreed(Some(Fips140V3), Server::all().only(G::X25519)), None);

    assert_eq!(agreed(Some(PostQuantum), Server::all()), Some((TLSv1_3, G::X25519MLKEM768)));
    assert_eq!(agreed(Some(PostQuantum), Server::all().only(G::X25519)), None);
    assert_eq!(agreed(Some(PostQuantum), Server::all().speaking(&TLS12)), None);

    for (name, policy) in CompliancePolicy::NAMES {
        assert!(shake(Some(policy), Server::all().without_aes()).is_err(), "{name}");
        let (_, suite, _) = shake(Some(policy), Server::all()).expect(name);
        assert!(format!("{suite:?}").contains("_AES_") && format!("{suite:?}").contains("_GCM_"), "{name}: {suite:?}");
    }
}

#[test]
fn only_who_takes_everybody_takes_a_stranger() {
    let (certificate, key) = certified();
    let config = takes_everybody().expect("a client");
    shake_with(config, certificate.clone(), key.clone_key(), Server::all()).expect("taken");
    let (known, _) = certified();
    let mut roots = RootCertStore::empty();
    roots.add(known).expect("a root");
    let config = client(None).expect("a client").with_root_certificates(roots).with_no_client_auth();
    let refused = shake_with(config, certificate, key, Server::all()).expect_err("a stranger");
    assert!(matches!(refused, rustls::Error::InvalidCertificate(_)), "{refused:?}");
}
