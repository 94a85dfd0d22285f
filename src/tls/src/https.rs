//! HTTP/1 over TLS with the certificate of the control plane, for callers without a certificate: the API server (W01).

use std::io;
use std::sync::Arc;

use axum::Router;
use rustls::ServerConfig;
use sluice_listen::{
    AcceptedConnection, BodyLimits, ConnectionEnd, Listener, serve_connections, serve_http_connection,
};
use sluice_telemetry::Count;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{ServerIdentity, TlsVersions, TlsVersionsError};

/// The TLS configuration of the webhooks: no client certificate is requested.
///
/// # Errors
/// No cipher suite is usable with the chosen versions.
pub fn https_config(
    versions: &TlsVersions,
    identity: Arc<ServerIdentity>,
) -> Result<Arc<ServerConfig>, TlsVersionsError> {
    let builder = ServerConfig::builder_with_provider(versions.provider());
    let builder = builder.with_protocol_versions(versions.protocols()).map_err(TlsVersionsError)?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(identity);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A server of HTTP/1 over TLS.
#[derive(Clone)]
pub struct HttpsServer {
    /// What is served.
    pub router: Router,
    /// Limits of request bodies.
    pub bodies: BodyLimits,
    /// TLS, see [`https_config`].
    pub tls: Arc<ServerConfig>,
    /// Counts failed handshakes.
    pub failed_handshakes: Count,
}

impl HttpsServer {
    /// Serves the connections of a listener until the token is cancelled, then until the requests in progress are answered.
    pub async fn serve(self, listener: Listener, stop: CancellationToken) {
        let connections_stop = stop.clone();
        let serve = move |accepted| self.clone().serve_connection(accepted, connections_stop.clone());
        serve_connections(listener, serve, stop).await;
    }

    async fn serve_connection(self, accepted: AcceptedConnection, stop: CancellationToken) {
        let AcceptedConnection { stream, peer, slot } = accepted;
        let handshake = async {
            if !slot.begin().await {
                return None;
            }
            let accepting = TlsAcceptor::from(self.tls).accept(stream);
            match tokio::time::timeout(slot.limits().handshake_timeout, accepting).await {
                Ok(Ok(stream)) => Some(stream),
                // For example a TCP probe of the port.
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    debug!(target: "tls", %peer, "connection closed before the handshake");
                    None
                }
                Ok(Err(error)) => {
                    self.failed_handshakes.inc();
                    warn!(target: "tls", %peer, %error, "TLS handshake of a webhook call failed");
                    None
                }
                Err(_) => {
                    slot.closed(ConnectionEnd::Handshake);
                    None
                }
            }
        };
        let stream = tokio::select! {
            stream = handshake => stream,
            () = stop.cancelled() => None,
        };
        if let Some(stream) = stream {
            serve_http_connection(stream, slot, self.router, self.bodies, stop).await;
        }
    }
}
