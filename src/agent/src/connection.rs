//! Connections to servers of the mesh: verified TLS, our token or certificate, metadata.
//!
//! Roots, certificate and token are read from their files at every connection, for they change while the agent runs.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sluice_crypto::CompliancePolicy;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use zeroize::Zeroizing;

use crate::settings::{Peer, Roots};

/// Time to connect, the handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection on which nothing came for this long is asked whether it lives,
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// and ends if no answer comes within this.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// One HTTP/2 connection, which gRPC calls may be made on.
#[derive(Clone)]
pub(crate) struct Connection(http2::SendRequest<tonic::body::Body>);

type Answer = Result<http::Response<hyper::body::Incoming>, hyper::Error>;

impl tower::Service<http::Request<tonic::body::Body>> for Connection {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> task::Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// gRPC calls on a connection of their own.
pub(crate) type Client = tonic::client::Grpc<Connection>;

/// Connects to a server of the mesh.
///
/// # Errors
/// It cannot be reached or verified, or a file we need is missing or no PEM; the message has the file.
pub(crate) async fn connect(peer: &Peer) -> Result<Client> {
    let attempt = async {
        let stream = TcpStream::connect(&peer.address).await.with_context(|| format!("connect to {}", peer.address))?;
        stream.set_nodelay(true).context("set up the connection")?;
        let Some(roots) = &peer.roots else {
            return handshake(stream).await;
        };
        let certificate = peer.client_certificate.as_ref().map(|(chain, key)| (&**chain, &**key));
        let config = client_config(roots, certificate, peer.policy)?;
        let name = ServerName::try_from(peer.server_name.clone())
            .with_context(|| format!("{:?} is no name of a server", peer.server_name))?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let stream = stream.with_context(|| format!("verify {} as {}", peer.address, peer.server_name))?;
        ensure!(stream.get_ref().1.alpn_protocol() == Some(b"h2"), "{} does not speak HTTP/2", peer.address);
        handshake(stream).await
    };
    let Ok(connection) = tokio::time::timeout(CONNECT_TIMEOUT, attempt).await else {
        bail!("connect to {}: no answer within {CONNECT_TIMEOUT:?}", peer.address);
    };
    let scheme = if peer.roots.is_some() { "https" } else { "http" };
    let origin =
        format!("{scheme}://{}", peer.address).parse().with_context(|| format!("address {:?}", peer.address))?;
    // Configurations of big meshes are big.
    Ok(tonic::client::Grpc::with_origin(connection?, origin).max_decoding_message_size(usize::MAX))
}

/// gRPC calls in plaintext on a connection that is there, as for a probe.
///
/// # Errors
/// The other side does not speak HTTP/2, or `authority` is no host and port.
pub(crate) async fn plaintext(stream: TcpStream, authority: &str) -> Result<Client> {
    let origin = format!("http://{authority}").parse().with_context(|| format!("address {authority:?}"))?;
    Ok(tonic::client::Grpc::with_origin(handshake(stream).await?, origin))
}

async fn handshake<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Result<Connection> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(1 << 20)
        .handshake(TokioIo::new(stream))
        .await
        .context("begin HTTP/2")?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(target: "grpc", "connection ended: {error}");
        }
    });
    Ok(Connection(sender))
}

/// The metadata of a call: what is configured, and the token, which only ever goes to a server that was verified.
///
/// # Errors
/// The file with the token cannot be read.
pub(crate) fn metadata(peer: &Peer) -> Result<MetadataMap> {
    let mut metadata = MetadataMap::new();
    for (name, value) in &peer.headers {
        let key: AsciiMetadataKey = name.parse().with_context(|| format!("metadata {name:?}"))?;
        let value: AsciiMetadataValue = value.parse().with_context(|| format!("the value of metadata {name:?}"))?;
        metadata.insert(key, value);
    }
    if peer.roots.is_none() {
        return Ok(metadata);
    }
    match std::fs::read_to_string(&peer.token).map(Zeroizing::new) {
        Ok(token) => {
            let bearer = Zeroizing::new(format!("Bearer {}", token.trim()));
            let mut value: AsciiMetadataValue =
                bearer.as_str().parse().with_context(|| format!("{} is no token", peer.token.display()))?;
            value.set_sensitive(true);
            metadata.insert("authorization", value);
        }
        // The certificate says who we are.
        Err(_) if peer.client_certificate.is_some() => {}
        Err(error) => bail!("read the token {}: {error}", peer.token.display()),
    }
    Ok(metadata)
}

/// TLS that verifies the server with these roots and, if it asks, shows our certificate; a policy limits it.
///
/// # Errors
/// There are no roots, or a file is missing or no PEM.
pub(crate) fn client_config(
    roots: &Roots,
    certificate: Option<(&Path, &Path)>,
    policy: Option<CompliancePolicy>,
) -> Result<ClientConfig> {
    let mut store = RootCertStore::empty();
    match roots {
        Roots::System => drop(store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        Roots::File(file) => {
            let pem = std::fs::read(file).with_context(|| format!("read the roots {}", file.display()))?;
            store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
            ensure!(!store.is_empty(), "{} holds no certificate", file.display());
        }
    }
    ensure!(!store.is_empty(), "the machine has no roots");
    let builder = sluice_crypto::client(policy).context("set up TLS")?.with_root_certificates(store);
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let certificates = CertificateDer::pem_file_iter(chain)
                .and_then(Iterator::collect)
                .with_context(|| format!("read the certificate {}", chain.display()))?;
            // The library's message may quote the file.
            let Ok(key_der) = PrivateKeyDer::from_pem_file(key) else { bail!("{} holds no key", key.display()) };
            builder.with_client_auth_cert(certificates, key_der).context("use the provisioned certificate")?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(token: &Path, roots: Option<Roots>) -> Peer {
        Peer {
            address: "127.0.0.1:1".to_owned(),
            server_name: "istiod".to_owned(),
            roots,
            client_certificate: None,
            policy: None,
            token: token.to_owned(),
            headers: [("clusterid".to_owned(), "c1".to_owned())].into(),
        }
    }

    #[test]
    fn the_token_goes_only_over_tls_and_is_marked_as_secret() {
        let directory = tempfile::tempdir().expect("a directory");
        let token = directory.path().join("token");
        std::fs::write(&token, "se.cr.et\n").expect("write the token");
        let sent = metadata(&peer(&token, Some(Roots::System))).expect("metadata");
        let authorization = sent.get("authorization").expect("a token");
        assert_eq!(authorization.to_str().ok(), Some("Bearer se.cr.et"));
        assert!(!format!("{sent:?}").contains("se.cr.et"), "{sent:?}");
        assert_eq!(sent.get("clusterid").and_then(|value| value.to_str().ok()), Some("c1"));
        let plain = metadata(&peer(&token, None)).expect("metadata");
        assert!(plain.get("authorization").is_none());
    }

    #[test]
    fn a_missing_token_is_said_by_its_file() {
        let error = metadata(&peer(Path::new("/nowhere/token"), Some(Roots::System))).expect_err("no token");
        assert!(error.to_string().contains("/nowhere/token"), "{error}");
    }

    #[test]
    fn roots_that_are_none_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("root.pem");
        std::fs::write(&file, "nothing").expect("write");
        let error = client_config(&Roots::File(file), None, None).expect_err("no roots");
        assert!(error.to_string().contains("holds no certificate"), "{error}");
    }
}
