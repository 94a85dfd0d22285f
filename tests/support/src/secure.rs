//! A client of the secure port: TLS with or without a client certificate, and certificate requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use sluice_proto::google::protobuf::{Struct, Value, value::Kind};
use sluice_proto::istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::TLS12;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, NamedGroup, RootCertStore, crypto::aws_lc_rs};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::pods::identity::{certificates, private_key};

/// The TLS settings of a client.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// Its certificate chain without the root, and its key, as PEM.
    pub pair: Option<(String, String)>,
    /// It supports only TLS 1.2.
    pub only_12: bool,
    /// The only key exchange it supports.
    pub only: Option<NamedGroup>,
    /// It speaks HTTP/1 instead of HTTP/2, as callers of webhooks do.
    pub http1: bool,
}

/// A TLS client of the servers of one name, whose configuration is made once for all its connections.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsClient {
    /// A client of the servers of this name.
    ///
    /// # Errors
    /// The name, the roots or the client's certificate are invalid.
    pub fn new(name: &str, roots: &str, options: &ClientTls) -> Result<Self> {
        Ok(Self { config: config(roots, options)?, name: ServerName::try_from(name.to_owned())? })
    }

    /// Completes the TLS handshake on a connection, and sends nothing else.
    ///
    /// # Errors
    /// The handshake fails.
    pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        TlsConnector::from(self.config.clone()).connect(self.name.clone(), stream).await
    }

    /// The first message of a handshake, as it is sent.
    ///
    /// # Errors
    /// The configuration permits no handshake.
    pub fn hello(&self) -> Result<Vec<u8>> {
        let mut connection =
            ClientConnection::new(self.config.clone(), self.name.clone()).context("begin the handshake")?;
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).context("write the ClientHello")?;
        Ok(hello)
    }
}

/// Connects to a server of this name and completes the TLS handshake.
///
/// # Errors
/// The handshake fails.
pub async fn connect(address: SocketAddr, name: &str, roots: &str, options: &ClientTls) -> Result<Channel> {
    let client = TlsClient::new(name, roots, options)?;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .timeout(Duration::from_secs(20))
        .connect_timeout(Duration::from_secs(20));
    let channel = endpoint.connect_with_connector(tower::service_fn(move |_| {
        let client = client.clone();
        async move { client.handshake(TcpStream::connect(address).await?).await.map(TokioIo::new) }
    }));
    channel.await.context("TLS handshake")
}

/// The configuration of a client that trusts these roots.
fn config(roots: &str, options: &ClientTls) -> Result<Arc<ClientConfig>> {
    let mut store = RootCertStore::empty();
    for root in certificates(roots)? {
        store.add(root).context("trust a root")?;
    }
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups.retain(|group| options.only.is_none_or(|only| group.name() == only));
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = match options.only_12 {
        true => builder.with_protocol_versions(&[&TLS12]),
        false => builder.with_safe_default_protocol_versions(),
    };
    let builder = builder.context("choose versions")?.with_root_certificates(store);
    let mut config = match &options.pair {
        Some((chain, key)) => builder.with_client_auth_cert(certificates(chain)?, private_key(key)?)?,
        None => builder.with_no_client_auth(),
    };
    // Each handshake is a full one, as that of a new client.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![if options.http1 { b"http/1.1".to_vec() } else { b"h2".to_vec() }];
    Ok(Arc::new(config))
}

/// A request for a certificate.
#[derive(Clone, Debug, Default)]
pub struct CertificateRequest {
    /// The signing request.
    pub csr: String,
    /// Requested lifetime.
    pub seconds: i64,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// Text entries of its metadata.
    pub metadata: Vec<(&'static str, String)>,
}

impl CertificateRequest {
    /// A request with a token.
    #[must_use]
    pub fn with_token(csr: &str, token: &str) -> Self {
        Self { csr: csr.to_owned(), headers: vec![("authorization", format!("Bearer {token}"))], ..Self::default() }
    }

    /// Sends the request.
    ///
    /// # Errors
    /// The server's status.
    pub async fn send(self, channel: &Channel) -> Result<Vec<String>, Status> {
        let text = |text: String| Value { kind: Some(Kind::StringValue(text)) };
        let fields = self.metadata.into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
        let mut request = Request::new(IstioCertificateRequest {
            csr: self.csr,
            validity_duration: self.seconds,
            metadata: Some(Struct { fields }),
        });
        for (name, value) in self.headers {
            let value: AsciiMetadataValue = value.parse().map_err(|_| Status::new(Code::Internal, "no header"))?;
            request.metadata_mut().append(AsciiMetadataKey::from_static(name), value);
        }
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static("/istio.v1.auth.IstioCertificateService/CreateCertificate");
        let codec = ProstCodec::<IstioCertificateRequest, IstioCertificateResponse>::default();
        client.unary(request, path, codec).await.map(|answer| answer.into_inner().cert_chain)
    }
}

/// A new key and its signing request without a name: both as PEM, the key first.
///
/// # Errors
/// Key generation fails.
pub fn signing_request() -> Result<(String, String)> {
    let key = KeyPair::generate().context("make a key")?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).context("make a request")?;
    Ok((key.serialize_pem(), request.pem().context("write the request")?))
}
