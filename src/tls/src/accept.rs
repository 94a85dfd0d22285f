//! Connections of the secure port: concurrent handshakes, each with a time limit.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use rand::Rng as _;
use rustls::pki_types::CertificateDer;
use rustls::{HandshakeKind, ServerConfig};
use sluice_auth::CertificateCheck as _;
use sluice_ca::Certificate;
use sluice_listen::{AcceptedConnection, ConnectionEnd, ConnectionSlot, Listener};
use sluice_telemetry::{Count, unix_seconds};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::{ClientVerifier, WallClockSleep};

/// Maximum delay of a check after the roots have changed, so that not all connections are checked at once.
const MAX_CHECK_DELAY: Duration = Duration::from_secs(30);
/// Approximate time to check the certificates of a connection.
const CHECK_COST: Duration = Duration::from_millis(1);

/// Connections that completed their handshake, with their slots.
pub struct SecureIncoming {
    ready: mpsc::Receiver<(SecureStream, ConnectionSlot)>,
    accepting: tokio::task::JoinHandle<()>,
}

impl SecureIncoming {
    /// Accepts connections on the listener until it is dropped, and counts failed handshakes.
    #[must_use]
    pub fn new(
        listener: Listener,
        config: Arc<ServerConfig>,
        clients: Arc<ClientVerifier>,
        failed_handshakes: Count,
    ) -> Self {
        let (done, ready) = mpsc::channel(16);
        let handshakes = Handshakes { acceptor: config.into(), clients, failed_handshakes, done };
        Self { ready, accepting: tokio::spawn(handshakes.accept(listener)) }
    }
}

impl Drop for SecureIncoming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Stream for SecureIncoming {
    type Item = (SecureStream, ConnectionSlot);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx)
    }
}

/// Performs handshakes.
#[derive(Clone)]
struct Handshakes {
    acceptor: TlsAcceptor,
    clients: Arc<ClientVerifier>,
    failed_handshakes: Count,
    done: mpsc::Sender<(SecureStream, ConnectionSlot)>,
}

impl Handshakes {
    async fn accept(self, mut listener: Listener) {
        loop {
            let accepted = listener.accept().await;
            tokio::spawn(self.clone().secure(accepted));
        }
    }

    /// Performs the handshake of a connection.
    async fn secure(self, accepted: AcceptedConnection) {
        let AcceptedConnection { stream, peer, slot } = accepted;
        if !slot.begin().await {
            return;
        }
        // From before the verification on, so that no change is missed.
        let changes = self.clients.changes();
        match tokio::time::timeout(slot.limits().handshake_timeout, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                if let Err(reason) = self.check_resumed(&stream) {
                    self.failed_handshakes.inc();
                    warn!(target: "tls", %peer, reason, "connection closed: its TLS session cannot be resumed");
                    return;
                }
                let secure = SecureStream { stream, peer, clients: self.clients, changes };
                // Fails only when the server has stopped.
                let _ = self.done.send((secure, slot)).await;
            }
            // For example a TCP probe of the port.
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                debug!(target: "tls", %peer, "connection closed before the handshake");
            }
            Ok(Err(error)) => {
                self.failed_handshakes.inc();
                warn!(target: "tls", %peer, %error, "TLS handshake failed");
            }
            Err(_) => slot.closed(ConnectionEnd::Handshake),
        }
    }

    /// Verifies the client certificates of a resumed session: the handshake of such a connection does not. They can have
    /// expired or have been revoked since the session began, or their root can have been withdrawn.
    fn check_resumed(&self, stream: &TlsStream<TcpStream>) -> Result<(), String> {
        let (_, connection) = stream.get_ref();
        match (connection.handshake_kind(), connection.peer_certificates()) {
            (Some(HandshakeKind::Resumed), Some(certificates)) => self.clients.check(certificates),
            _ => Ok(()),
        }
    }
}

/// A TLS connection.
pub struct SecureStream {
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
    clients: Arc<ClientVerifier>,
    changes: watch::Receiver<()>,
}

/// The peer of a connection, after the handshake.
#[derive(Clone, Debug)]
pub struct TlsConnection {
    /// The address of the peer.
    pub peer: SocketAddr,
    /// The verified certificate chain of the client; empty if the client has no certificate.
    pub certificates: Arc<[CertificateDer<'static>]>,
    /// Verifies the certificates again.
    clients: Arc<ClientVerifier>,
    changes: watch::Receiver<()>,
}

impl TlsConnection {
    pub(crate) fn new(
        peer: SocketAddr,
        certificates: Arc<[CertificateDer<'static>]>,
        clients: Arc<ClientVerifier>,
        changes: watch::Receiver<()>,
    ) -> Self {
        Self { peer, certificates, clients, changes }
    }

    /// Waits until the client certificate is no longer valid: it has expired or is revoked, or its root is withdrawn.
    /// Returns the reason. Without a client certificate, it waits forever.
    pub async fn credentials_end(&self) -> String {
        let expiry = |certificate| Certificate::parse("client certificate", certificate).map(|it| it.not_after).ok();
        let expiries: Vec<i64> = self.certificates.iter().filter_map(|der| expiry(der)).collect();
        if expiries.is_empty() {
            return std::future::pending().await;
        }
        let mut changes = self.changes.clone();
        loop {
            let now = unix_seconds();
            // A chain may contain expired certificates that its verification does not need.
            let next = expiries.iter().filter(|not_after| **not_after >= now).min();
            let expired = async {
                match next {
                    Some(not_after) => WallClockSleep::until(not_after.saturating_add(1)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expired => {}
                // The verifier lives as long as the connection.
                _ = changes.changed() => {
                    let spread = CHECK_COST.saturating_mul(self.clients.connections()).min(MAX_CHECK_DELAY);
                    let delay = spread.mul_f64(rand::rng().random());
                    tokio::time::sleep(delay).await;
                }
            }
            if let Err(reason) = self.clients.check(&self.certificates) {
                return reason;
            }
        }
    }
}

impl Connected for SecureStream {
    type ConnectInfo = TlsConnection;

    fn connect_info(&self) -> TlsConnection {
        let certificates = self.stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificates = certificates.iter().cloned().map(CertificateDer::into_owned).collect();
        TlsConnection::new(self.peer, certificates, self.clients.clone(), self.changes.clone())
    }
}

impl AsyncRead for SecureStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for SecureStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
