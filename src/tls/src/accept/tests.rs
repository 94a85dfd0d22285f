use futures::StreamExt as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateRevocationListDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use sluice_auth::TrustDomain;
use sluice_listen::PortOptions;
use sluice_testkit::pods::identity::{Authority, certificates, private_key};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;

use super::*;
use crate::{ServerIdentity, TlsVersions, server_config};

const CART: &str = "spiffe://cluster.local/ns/shop/sa/cart";

/// A client with a certificate that resumes its TLS sessions in a version of TLS.
fn client(
    server: &Authority,
    (chain, key): &(String, String),
    version: &'static SupportedProtocolVersion,
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(server.root()).expect("a root"));
    let config = ClientConfig::builder_with_provider(sluice_crypto::provider(None))
        .with_protocol_versions(&[version])
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(chain).expect("a chain"), private_key(key).expect("a key"));
    TlsConnector::from(Arc::new(config.expect("a pair")))
}

/// The secure port, with a certificate of the authority.
async fn open_port(authority: &Authority, clients: &Arc<ClientVerifier>) -> (SocketAddr, SecureIncoming) {
    let (chain, key) = authority.issue_hosts(&["localhost".to_owned()]).expect("a certificate");
    let (chain, key) = (certificates(&chain).expect("a chain"), private_key(&key).expect("a key"));
    let identity = Arc::new(ServerIdentity::default());
    identity.set(CertifiedKey::from_der(chain, key, &sluice_crypto::provider(None)).expect("a pair"));
    let versions = TlsVersions::parse("", &[]).expect("known");
    let config = server_config(&versions, identity, clients.clone()).expect("a configuration");
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = tcp.local_addr().expect("an address");
    let listener = Listener::new(tcp, PortOptions::default());
    (address, SecureIncoming::new(listener, config, clients.clone(), Count::default()))
}

/// Begins a session with the secure port and resumes it. Then `end` ends the validity of the client's certificate, and a
/// connection that resumes the session again is not served.
async fn resumed_session_is_refused(
    server: &Authority,
    clients: &Arc<ClientVerifier>,
    pair: &(String, String),
    version: &'static SupportedProtocolVersion,
    end: impl AsyncFnOnce(),
) {
    let (address, mut incoming) = open_port(server, clients).await;
    let connector = client(server, pair, version);
    let connect = async || {
        let tcp = TcpStream::connect(address).await.expect("connect");
        connector.connect(ServerName::try_from("localhost").expect("a name"), tcp).await
    };
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut stream = connect().await.expect("a handshake");
        let (mut accepted, _slot) = incoming.next().await.expect("a connection");
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(kind), "{version:?}");
        // The session's tickets arrive with the first bytes.
        accepted.write_all(b"x").await.expect("send");
        assert_eq!(stream.read_u8().await.expect("a byte"), b'x');
    }
    end().await;
    let mut stream = connect().await.expect("the client completes the handshake first");
    assert_eq!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Resumed), "{version:?}");
    assert!(!matches!(stream.read(&mut [0]).await, Ok(1..)), "{version:?}: the connection is closed");
    assert!(futures::poll!(incoming.next()).is_pending(), "{version:?}: it is not served");
}

fn root(authority: &Authority) -> CertificateDer<'static> {
    certificates(authority.root()).expect("a root").remove(0)
}

/// A verifier of clients with these roots.
fn verifier(roots: &[CertificateDer<'static>]) -> Arc<ClientVerifier> {
    let clients = Arc::new(ClientVerifier::new(TrustDomain::new("cluster.local".into())));
    clients.set_roots(roots, &[]).expect("usable");
    clients
}

#[tokio::test]
async fn resumed_session_of_a_withdrawn_root_is_refused() {
    let (server, withdrawn) = (Authority::new().expect("a root"), Authority::new().expect("a root"));
    let pair = withdrawn.issue(CART).expect("a certificate");
    for version in rustls::ALL_VERSIONS {
        let clients = verifier(&[root(&server), root(&withdrawn)]);
        let withdraw = async || clients.set_roots(&[root(&server)], &[]).expect("usable");
        resumed_session_is_refused(&server, &clients, &pair, version, withdraw).await;
    }
}

#[tokio::test]
async fn resumed_session_of_a_revoked_certificate_is_refused() {
    let authority = Authority::new().expect("a root");
    let pair = authority.issue(CART).expect("a certificate");
    let chain = certificates(&pair.0).expect("a chain");
    let (_, certificate) = x509_parser::parse_x509_certificate(&chain[0]).expect("a certificate");
    let serial = certificate.raw_serial().to_vec();
    for version in rustls::ALL_VERSIONS {
        let clients = verifier(&[root(&authority)]);
        let revoke = async || {
            let lists = authority.revocation_list(std::slice::from_ref(&serial)).expect("a list");
            let list = CertificateRevocationListDer::from_pem_slice(lists.as_bytes()).expect("a list");
            clients.set_roots(&[root(&authority)], &[list]).expect("usable");
        };
        resumed_session_is_refused(&authority, &clients, &pair, version, revoke).await;
    }
}

#[tokio::test]
async fn resumed_session_of_an_expired_certificate_is_refused() {
    let authority = &Authority::new().expect("a root");
    let refused = rustls::ALL_VERSIONS.iter().map(|version| async move {
        let clients = verifier(&[root(authority)]);
        let pair = authority.issue_for(CART, Duration::from_secs(10)).expect("a certificate");
        let chain = certificates(&pair.0).expect("a chain");
        let expire = async || {
            while clients.check(&chain).is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        resumed_session_is_refused(authority, &clients, &pair, version, expire).await;
    });
    futures::future::join_all(refused).await;
}
