use futures::StreamExt as _;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use sluice_auth::TrustDomain;
use sluice_listen::PortOptions;
use sluice_testkit::pods::identity::{Authority, certificates, private_key};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;

use super::*;
use crate::{ServerIdentity, TlsVersions, server_config};

const CART: &str = "spiffe://cluster.local/ns/shop/sa/cart";

/// A client that resumes its TLS sessions.
fn client(server: &Authority, authority: &Authority) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(server.root()).expect("a root"));
    let (chain, key) = authority.issue(CART).expect("a certificate");
    let config = ClientConfig::builder_with_provider(sluice_crypto::provider(None))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(&chain).expect("a chain"), private_key(&key).expect("a key"));
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

#[tokio::test]
async fn resumed_session_of_a_withdrawn_root_is_refused() {
    let (server, withdrawn) = (Authority::new().expect("a root"), Authority::new().expect("a root"));
    let clients = Arc::new(ClientVerifier::new(TrustDomain::new("cluster.local".into())));
    let roots = [server.root(), withdrawn.root()].map(|pem| certificates(pem).expect("a root").remove(0));
    clients.set_roots(&roots, &[]).expect("usable");
    let (address, mut incoming) = open_port(&server, &clients).await;
    let connector = client(&server, &withdrawn);
    let connect = async || {
        let tcp = TcpStream::connect(address).await.expect("connect");
        connector.connect(ServerName::try_from("localhost").expect("a name"), tcp).await
    };
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut stream = connect().await.expect("a handshake");
        let (mut accepted, _slot) = incoming.next().await.expect("a connection");
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(kind));
        // The session's tickets arrive with the first bytes.
        accepted.write_all(b"x").await.expect("send");
        assert_eq!(stream.read_u8().await.expect("a byte"), b'x');
    }
    clients.set_roots(&roots[..1], &[]).expect("usable");
    let mut stream = connect().await.expect("the client completes the handshake first");
    assert!(!matches!(stream.read(&mut [0]).await, Ok(1..)), "the connection is closed");
    assert!(futures::poll!(incoming.next()).is_pending(), "it is not served");
}
