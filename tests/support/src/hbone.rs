//! The client side of HBONE: CONNECT requests in HTTP/2 over mutual TLS.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http2::SendRequest;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::pods::identity::{certificates, private_key};

/// An open tunnel.
pub type HboneStream = TokioIo<Upgraded>;

/// A connection to a server of tunnels, which many tunnels share.
pub type TunnelConnection = SendRequest<Empty<Bytes>>;

/// What a client presents and trusts.
#[derive(Clone, Debug)]
pub struct TunnelCredentials {
    /// Certificate chain and key of the client, PEM.
    pub certificate: (String, String),
    /// Roots of the server's certificate, PEM.
    pub roots: String,
}

/// The roots of a PEM text.
///
/// # Errors
/// The text is not PEM, or a certificate is malformed.
pub fn root_store(pem: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).context("add a root")?;
    }
    Ok(roots)
}

/// Completes both handshakes with a server that must have one of these identities (SPIFFE ids). `stream` may be a tunnel.
///
/// # Errors
/// A handshake fails.
pub async fn connect(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    address: IpAddr,
    credentials: &TunnelCredentials,
    identities: &[String],
) -> Result<TunnelConnection> {
    let connector = TlsConnector::from(Arc::new(config(credentials, identities)?));
    let stream = connector.connect(ServerName::from(address), stream).await;
    let stream = stream.with_context(|| format!("TLS handshake with {address} as one of {identities:?}"))?;
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .with_context(|| format!("HTTP/2 handshake with {address}"))?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Opens a tunnel to an address, or to the host and port of a service, with headers. The status if the server refuses.
///
/// # Errors
/// The connection is closed, or is closing. No data has been sent, so that another connection may be used.
pub async fn open(
    connection: &mut TunnelConnection,
    authority: &str,
    headers: &[(&str, &str)],
) -> Result<Result<HboneStream, StatusCode>> {
    let request =
        headers.iter().fold(Request::connect(authority), |request, (name, value)| request.header(*name, *value));
    let request = request.body(Empty::new()).context("build CONNECT")?;
    connection.ready().await.context("wait for the connection")?;
    let response = connection.send_request(request).await.context("send CONNECT")?;
    if response.status() != StatusCode::OK {
        return Ok(Err(response.status()));
    }
    Ok(Ok(TokioIo::new(hyper::upgrade::on(response).await.context("open the tunnel")?)))
}

fn config(credentials: &TunnelCredentials, identities: &[String]) -> Result<ClientConfig> {
    let roots = root_store(&credentials.roots)?;
    let roots = WebPkiServerVerifier::builder(Arc::new(roots)).build().context("read the roots")?;
    let verifier = IdentityVerifier { roots, identities: identities.to_vec() };
    let (chain, key) = &credentials.certificate;
    let builder = ClientConfig::builder().dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config =
        builder.with_client_auth_cert(certificates(chain)?, private_key(key)?).context("set the client certificate")?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Verifies the chain of a server by the roots, and its identity, which is in place of a host name.
#[derive(Debug)]
struct IdentityVerifier {
    roots: Arc<WebPkiServerVerifier>,
    identities: Vec<String>,
}

impl ServerCertVerifier for IdentityVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.roots.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The chain is verified before the name.
            Ok(_)
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => {}
            Err(error) => return Err(error),
        }
        let has = |identity: &String| end_entity.windows(identity.len()).any(|part| part == identity.as_bytes());
        let found = self.identities.iter().any(has);
        if found { Ok(ServerCertVerified::assertion()) } else { Err(CertificateError::NotValidForName.into()) }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.roots.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.roots.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.roots.supported_verify_schemes()
    }
}
