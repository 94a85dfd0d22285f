//! Connections of the secure port: concurrent handshakes, each with a timeout.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use sluice_telemetry::Count;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent handshakes; further connections wait.
const MAX_HANDSHAKES: usize = 2048;
/// Pause after a failed `accept`, for instance because of too many open files.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Connections that completed their handshake.
pub struct SecureIncoming {
    ready: mpsc::Receiver<io::Result<SecureStream>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl SecureIncoming {
    /// Accepts connections on the listener until it is dropped, and counts failed handshakes.
    #[must_use]
    pub fn new(listener: TcpListener, config: Arc<ServerConfig>, failed_handshakes: Count) -> Self {
        let (done, ready) = mpsc::channel(16);
        let accepting = tokio::spawn(accept(listener, TlsAcceptor::from(config), done, failed_handshakes));
        Self { ready, accepting }
    }
}

impl Drop for SecureIncoming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Stream for SecureIncoming {
    type Item = io::Result<SecureStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx)
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    done: mpsc::Sender<io::Result<SecureStream>>,
    failed_handshakes: Count,
) {
    let permits = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(target: "tls", %error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            }
        };
        let (acceptor, done, failed_handshakes) = (acceptor.clone(), done.clone(), failed_handshakes.clone());
        tokio::spawn(async move {
            if let Err(error) = stream.set_nodelay(true) {
                debug!(target: "tls", %peer, %error, "failed to set TCP_NODELAY");
            }
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    // Fails only when the server has stopped.
                    let _ = done.send(Ok(SecureStream { stream, peer })).await;
                }
                // For example a TCP probe of the port.
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    debug!(target: "tls", %peer, "connection closed before the handshake");
                }
                Ok(Err(error)) => {
                    failed_handshakes.inc();
                    warn!(target: "tls", %peer, %error, "TLS handshake failed");
                }
                Err(_) => debug!(target: "tls", %peer, "TLS handshake timed out"),
            }
            drop(permit);
        });
    }
}

/// A TLS connection.
pub struct SecureStream {
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
}

/// The peer of a connection, after the handshake.
#[derive(Clone, Debug)]
pub struct TlsConnection {
    /// The address of the peer.
    pub peer: SocketAddr,
    /// The verified certificate chain of the client; empty if the client has no certificate.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

impl Connected for SecureStream {
    type ConnectInfo = TlsConnection;

    fn connect_info(&self) -> TlsConnection {
        let certificates = self.stream.get_ref().1.peer_certificates().unwrap_or_default();
        TlsConnection {
            peer: self.peer,
            certificates: certificates.iter().cloned().map(CertificateDer::into_owned).collect(),
        }
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
