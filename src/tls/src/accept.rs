//! Connections of the secure port: handshakes beside each other, each with a limit of time.

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

/// Longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Most handshakes at a time; further connections wait.
const HANDSHAKES: usize = 2048;
/// Rest after the operating system had no connection to give, for instance because there are too many open files.
const REST: Duration = Duration::from_millis(100);

/// Connections whose handshakes are done.
pub struct SecureIncoming {
    ready: mpsc::Receiver<io::Result<SecureStream>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl SecureIncoming {
    /// Accepts on the listener until it is dropped, and counts whom it refuses.
    #[must_use]
    pub fn new(listener: TcpListener, config: Arc<ServerConfig>, refused: Count) -> Self {
        let (done, ready) = mpsc::channel(16);
        let accepting = tokio::spawn(accept(listener, TlsAcceptor::from(config), done, refused));
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
    refused: Count,
) {
    let turns = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(turn) = turns.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(target: "tls", %error, "cannot accept a connection");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let (acceptor, done, refused) = (acceptor.clone(), done.clone(), refused.clone());
        tokio::spawn(async move {
            if let Err(error) = stream.set_nodelay(true) {
                debug!(target: "tls", %peer, %error, "cannot send without delay");
            }
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    // Fails only when nobody serves any more.
                    let _ = done.send(Ok(SecureStream { stream, peer })).await;
                }
                // Who only looks whether the port is open.
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    debug!(target: "tls", %peer, "a connection ended before the handshake");
                }
                Ok(Err(error)) => {
                    refused.inc();
                    warn!(target: "tls", %peer, %error, "refused a connection");
                }
                Err(_) => debug!(target: "tls", %peer, "a handshake took too long"),
            }
            drop(turn);
        });
    }
}

/// A connection with TLS.
pub struct SecureStream {
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
}

/// What is known of a connection before anything is said on it.
#[derive(Clone, Debug)]
pub struct TlsConnection {
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The certificate of the client and what leads to a root, verified; empty without.
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
