//! Connections to servers of the mesh: verified TLS, the agent's token or certificate, metadata.
//!
//! Roots, certificate and token are read from their files for each connection, because they change while the agent runs.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sluice_crypto::{ClientCertificate, CompliancePolicy, Roots};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tracing::info;
use zeroize::Zeroizing;

use crate::certificate_expiry::certificate_expiry;
use crate::settings::Upstream;

/// Time limit to connect, including the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is pinged after this time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// The connection is closed if the ping is not acknowledged within this time.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP/2 connection for gRPC calls.
#[derive(Clone)]
pub(crate) struct Http2Connection(http2::SendRequest<tonic::body::Body>);

type ConnectionResponse = Result<http::Response<hyper::body::Incoming>, hyper::Error>;

impl tower::Service<http::Request<tonic::body::Body>> for Http2Connection {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = ConnectionResponse> + Send>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> task::Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A gRPC client on its own connection.
pub(crate) type GrpcClient = tonic::client::Grpc<Http2Connection>;

/// Connects to a server of the mesh.
///
/// # Errors
/// The server cannot be reached or verified, or a file is missing or not PEM; the message names the file.
pub(crate) async fn connect(upstream: &Upstream) -> Result<GrpcClient> {
    let attempt = async {
        let stream =
            TcpStream::connect(&upstream.address).await.with_context(|| format!("connect to {}", upstream.address))?;
        stream.set_nodelay(true).context("set up the connection")?;
        let Some(roots) = &upstream.roots else {
            return handshake(stream).await;
        };
        let certificate = upstream.client_certificate.as_ref().and_then(usable_certificate);
        let config = client_config(roots, certificate, upstream.policy)?;
        let name = ServerName::try_from(upstream.server_name.clone())
            .with_context(|| format!("{:?} is not a valid server name", upstream.server_name))?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let stream = stream.with_context(|| format!("verify {} as {}", upstream.address, upstream.server_name))?;
        ensure!(stream.get_ref().1.alpn_protocol() == Some(b"h2"), "{} does not speak HTTP/2", upstream.address);
        handshake(stream).await
    };
    let Ok(connection) = tokio::time::timeout(CONNECT_TIMEOUT, attempt).await else {
        bail!("connect to {}: no connection within {CONNECT_TIMEOUT:?}", upstream.address);
    };
    let scheme = if upstream.roots.is_some() { "https" } else { "http" };
    let origin = format!("{scheme}://{}", upstream.address)
        .parse()
        .with_context(|| format!("address {:?}", upstream.address))?;
    // Responses of large meshes exceed tonic's default limit.
    Ok(tonic::client::Grpc::with_origin(connection?, origin).max_decoding_message_size(usize::MAX))
}

/// A plaintext gRPC client on an existing connection, for probes.
///
/// # Errors
/// The server does not speak HTTP/2, or `authority` is not `HOST:PORT`.
pub(crate) async fn plaintext(stream: TcpStream, authority: &str) -> Result<GrpcClient> {
    let origin = format!("http://{authority}").parse().with_context(|| format!("address {authority:?}"))?;
    Ok(tonic::client::Grpc::with_origin(handshake(stream).await?, origin))
}

async fn handshake<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Result<Http2Connection> {
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
            tracing::debug!(target: "grpc", %error, "connection closed");
        }
    });
    Ok(Http2Connection(sender))
}

/// The files of a client certificate, unless there is none yet or it has expired: the token authenticates the agent then. A
/// machine has no certificate before its first start (`PROV_CERT`).
fn usable_certificate((chain, key): &(PathBuf, PathBuf)) -> Option<(&Path, &Path)> {
    let expiry = std::fs::read(chain).map_err(Into::into).and_then(|pem| certificate_expiry(&pem));
    let reason = match expiry {
        Ok(expiry) if expiry > SystemTime::now() => return Some((chain.as_path(), key.as_path())),
        Ok(_) => "it has expired".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    info!(target: "grpc", chain = %chain.display(), reason, "the client certificate is not used, but the token");
    None
}

/// The metadata of a call: the configured headers, and the token, which is sent to verified servers only.
///
/// # Errors
/// The file with the token cannot be read.
pub(crate) fn metadata(upstream: &Upstream) -> Result<MetadataMap> {
    let mut metadata = MetadataMap::new();
    for (name, value) in &upstream.headers {
        let key: AsciiMetadataKey = name.parse().with_context(|| format!("metadata {name:?}"))?;
        let value: AsciiMetadataValue = value.parse().with_context(|| format!("the value of metadata {name:?}"))?;
        metadata.insert(key, value);
    }
    if upstream.roots.is_none() {
        return Ok(metadata);
    }
    match std::fs::read_to_string(&upstream.token_file).map(Zeroizing::new) {
        Ok(token) => {
            let bearer = Zeroizing::new(format!("Bearer {}", token.trim()));
            let mut value: AsciiMetadataValue = bearer
                .as_str()
                .parse()
                .with_context(|| format!("{} does not contain a token", upstream.token_file.display()))?;
            value.set_sensitive(true);
            metadata.insert("authorization", value);
        }
        // The client certificate authenticates the agent.
        Err(_) if upstream.client_certificate.is_some() => {}
        Err(error) => bail!("read the token {}: {error}", upstream.token_file.display()),
    }
    Ok(metadata)
}

/// A TLS client of gRPC that verifies the server by these roots, and presents the certificate if the server requests one.
///
/// # Errors
/// There are no roots, or a file is missing or not PEM.
pub(crate) fn client_config(
    roots: &Roots,
    certificate: Option<(&Path, &Path)>,
    policy: Option<CompliancePolicy>,
) -> Result<ClientConfig> {
    let certificate = certificate.map(|(chain, key)| ClientCertificate::Files(chain, key));
    let mut config = sluice_crypto::verified_client(roots, certificate, policy)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream_with(token: &Path, roots: Option<Roots>) -> Upstream {
        Upstream {
            address: "127.0.0.1:1".to_owned(),
            server_name: "istiod".to_owned(),
            roots,
            client_certificate: None,
            policy: None,
            token_file: token.to_owned(),
            headers: [("clusterid".to_owned(), "c1".to_owned())].into(),
        }
    }

    #[test]
    fn token_is_sent_over_tls_only_and_marked_as_sensitive() {
        let directory = tempfile::tempdir().expect("a directory");
        let token = directory.path().join("token");
        std::fs::write(&token, "se.cr.et\n").expect("write the token");
        let sent = metadata(&upstream_with(&token, Some(Roots::System))).expect("metadata");
        let authorization = sent.get("authorization").expect("a token");
        assert_eq!(authorization.to_str().ok(), Some("Bearer se.cr.et"));
        assert!(!format!("{sent:?}").contains("se.cr.et"), "{sent:?}");
        assert_eq!(sent.get("clusterid").and_then(|value| value.to_str().ok()), Some("c1"));
        let plain = metadata(&upstream_with(&token, None)).expect("metadata");
        assert!(plain.get("authorization").is_none());
    }

    #[test]
    fn certificate_is_presented_only_while_it_is_valid() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = (directory.path().join("cert-chain.pem"), directory.path().join("key.pem"));
        assert_eq!(usable_certificate(&files), None, "there is no certificate yet");
        let write = |lifetime: Duration, now: SystemTime| {
            let key = rcgen::KeyPair::generate().expect("a key");
            let mut params = rcgen::CertificateParams::default();
            params.not_before = now.into();
            params.not_after = (now + lifetime).into();
            let pem = params.self_signed(&key).expect("a certificate").pem();
            std::fs::write(&files.0, pem).expect("write the chain");
        };
        write(Duration::from_secs(60), SystemTime::now() - Duration::from_secs(3600));
        assert_eq!(usable_certificate(&files), None, "it has expired");
        write(Duration::from_secs(3600), SystemTime::now());
        assert_eq!(usable_certificate(&files), Some((&*files.0, &*files.1)));
        std::fs::write(&files.0, "nothing").expect("write");
        assert_eq!(usable_certificate(&files), None, "it is no certificate");
    }

    #[test]
    fn error_of_a_missing_token_names_its_file() {
        let error = metadata(&upstream_with(Path::new("/nowhere/token"), Some(Roots::System))).expect_err("no token");
        assert!(error.to_string().contains("/nowhere/token"), "{error}");
    }
}
