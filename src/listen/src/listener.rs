//! Accepts connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use crate::slots::Slots;
use crate::{AcceptBackoff, ConnectionSlot, PortOptions};

/// An accepted connection within the limits of its port.
pub struct AcceptedConnection {
    /// The connection.
    pub stream: TcpStream,
    /// The address of the client.
    pub peer: SocketAddr,
    /// Its slot, to be kept as long as the connection.
    pub slot: ConnectionSlot,
}

/// Accepts the connections of a port within its limits.
pub struct Listener {
    tcp: TcpListener,
    slots: Arc<Slots>,
    backoff: AcceptBackoff,
}

impl Listener {
    /// Accepts connections of a bound port.
    #[must_use]
    pub fn new(tcp: TcpListener, port: PortOptions) -> Self {
        let backoff = AcceptBackoff::new(port.name, &port.metrics);
        Self { tcp, slots: Slots::new(port), backoff }
    }

    /// The next connection within the limits. Connections beyond them are closed. It pauses after a failure to accept, and
    /// never ends. It is cancel safe.
    pub async fn accept(&mut self) -> AcceptedConnection {
        loop {
            self.backoff.pause().await;
            match self.tcp.accept().await {
                Ok((stream, peer)) => {
                    self.backoff.accepted();
                    if let Some(slot) = self.slots.add(peer) {
                        if let Err(error) = stream.set_nodelay(true) {
                            debug!(target: "listen", %peer, %error, "failed to set TCP_NODELAY");
                        }
                        return AcceptedConnection { stream, peer, slot };
                    }
                }
                // The client has closed the connection: the next one can be accepted at once.
                Err(error) if is_connection_error(&error) => {
                    debug!(target: "listen", port = self.slots.port.name, %error, "connection closed before it was accepted");
                }
                Err(error) => self.backoff.failed(&error),
            }
        }
    }
}

/// Whether an error concerns only the connection that would have been accepted.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
