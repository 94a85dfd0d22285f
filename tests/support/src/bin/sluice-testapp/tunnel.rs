//! Opens a tunnel through a waypoint (HBONE): a CONNECT request in HTTP/2 over mutual TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluice_testkit::pods::app::HboneTunnel;
use sluice_testkit::pods::identity::{certificates, private_key};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::client::root_store;

/// Opens a tunnel to an address.
pub(crate) async fn open(tunnel: &HboneTunnel, address: SocketAddr) -> Result<TokioIo<Upgraded>> {
    let stream = TcpStream::connect(tunnel.waypoint).await.context("connect to the waypoint")?;
    let name = ServerName::from(tunnel.waypoint.ip());
    let connector = TlsConnector::from(Arc::new(config(tunnel)?));
    let stream = connector.connect(name, stream).await.context("TLS handshake with the waypoint")?;
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .context("HTTP/2 handshake with the waypoint")?;
    tokio::spawn(connection);
    let request = Request::connect(address.to_string()).body(Full::<Bytes>::default()).context("build CONNECT")?;
    let response = sender.send_request(request).await.context("send CONNECT")?;
    ensure!(response.status() == StatusCode::OK, "the waypoint answers CONNECT with {}", response.status());
    Ok(TokioIo::new(hyper::upgrade::on(response).await.context("open the tunnel")?))
}

fn config(tunnel: &HboneTunnel) -> Result<ClientConfig> {
    let roots =
        WebPkiServerVerifier::builder(Arc::new(root_store(&tunnel.roots)?)).build().context("read the roots")?;
    let verifier = IdentityVerifier { roots, identity: tunnel.identity.clone() };
    let (chain, key) = &tunnel.certificate;
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
    identity: String,
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
        let identity = self.identity.as_bytes();
        let found = end_entity.windows(identity.len()).any(|part| part == identity);
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
