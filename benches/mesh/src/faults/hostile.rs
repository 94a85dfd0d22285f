//! Clients that are no proxies.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sluice_testkit::secure::{ClientTls, TlsClient};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::server::{SERVER_NAME, Server};

/// Longest time that a client keeps a connection.
const CONNECTION_TIME: Duration = Duration::from_millis(500);
/// The preface of HTTP/2 with an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
/// Length of the header of a TLS record, which states the length of its body.
const RECORD_HEADER_BYTES: usize = 5;

/// Running clients. They end when this is dropped.
pub(super) struct HostileClients {
    clients: JoinSet<()>,
    ports: Arc<[Port]>,
}

impl HostileClients {
    /// Starts so many clients, which each attack one port at a time of a server with this root.
    ///
    /// # Errors
    /// The server does not serve all ports, or the root is invalid.
    pub(super) fn start(count: usize, server: &Server, root: &str) -> Result<Self> {
        let plain = server.plain_ports()?.map(|address| Port { address, tls: None });
        let http1 = ClientTls { http1: true, ..ClientTls::default() };
        let with_tls = [
            Port::with_tls(server.secure()?, root, ClientTls::default())?,
            Port::with_tls(server.webhooks()?, root, http1)?,
        ];
        let ports: Arc<[Port]> = plain.into_iter().chain(with_tls).collect();
        let mut clients = JoinSet::new();
        for seed in 0..count {
            let ports = ports.clone();
            clients.spawn(async move {
                let mut random = StdRng::seed_from_u64(seed as u64);
                loop {
                    let port = &ports[random.random_range(0..ports.len())];
                    // The server may close the connection at any time.
                    let _ = tokio::time::timeout(CONNECTION_TIME, port.attack(&mut random)).await;
                    tokio::time::sleep(Duration::from_millis(random.random_range(1..50))).await;
                }
            });
        }
        Ok(Self { clients, ports })
    }

    /// Stops them.
    ///
    /// # Errors
    /// A port with TLS completed no handshake, so that nothing was sent to it over TLS.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.clients.shutdown().await;
        for port in self.ports.iter() {
            let handshakes = port.tls.as_ref().map(|tls| tls.handshakes.load(Ordering::Relaxed));
            ensure!(handshakes != Some(0), "no hostile client completed a TLS handshake with {}", port.address);
        }
        Ok(())
    }
}

/// A port that is attacked.
struct Port {
    address: SocketAddr,
    tls: Option<PortTls>,
}

/// TLS of a port.
struct PortTls {
    client: TlsClient,
    /// A ClientHello in its record.
    hello: Vec<u8>,
    /// Number of completed handshakes.
    handshakes: AtomicUsize,
}

impl Port {
    fn with_tls(address: SocketAddr, root: &str, options: ClientTls) -> Result<Self> {
        let client = TlsClient::new(SERVER_NAME, root, &options)?;
        let tls = PortTls { hello: client.hello()?, client, handshakes: AtomicUsize::new(0) };
        Ok(Self { address, tls: Some(tls) })
    }

    /// One connection.
    async fn attack(&self, random: &mut StdRng) -> Result<()> {
        let connection = TcpStream::connect(self.address).await?;
        match &self.tls {
            Some(tls) => tls.attack(connection, random).await,
            None => Ok(send(connection, &noise(random)).await?),
        }
    }
}

impl PortTls {
    /// One connection: noise without TLS, the header of a record without its body, a part of a ClientHello, a whole one whose
    /// client leaves when the server has answered, or noise after the handshake.
    async fn attack(&self, mut connection: TcpStream, random: &mut StdRng) -> Result<()> {
        match random.random_range(0..8) {
            0 => send(connection, &noise(random)).await?,
            1 => send(connection, &self.hello[..RECORD_HEADER_BYTES]).await?,
            2 => send(connection, &self.hello[..random.random_range(1..self.hello.len())]).await?,
            3 => {
                connection.write_all(&self.hello).await?;
                connection.read_u8().await?;
            }
            _ => {
                let connection = self.client.handshake(connection).await?;
                self.handshakes.fetch_add(1, Ordering::Relaxed);
                send(connection, &noise(random)).await?;
            }
        }
        Ok(())
    }
}

/// Bytes that are not a request: none, random bytes, a part of the preface of HTTP/2, a TLS record that is longer than
/// permitted, or HTTP/2 with frames that are not requests.
fn noise(random: &mut StdRng) -> Vec<u8> {
    let mut bytes = match random.random_range(0..6) {
        0 => return Vec::new(),
        1 => Vec::new(),
        2 => PREFACE[..random.random_range(1..PREFACE.len())].to_vec(),
        3 => [&b"\x16\x03\x01"[..], &[0xff; 2]].concat(),
        _ => PREFACE.to_vec(),
    };
    let length = random.random_range(0..4096);
    bytes.extend((0..length).map(|_| random.random::<u8>()));
    bytes
}

/// Sends bytes, and reads until the server closes the connection.
async fn send(mut connection: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> io::Result<()> {
    connection.write_all(bytes).await?;
    // TLS may hold back a part of them.
    connection.flush().await?;
    let mut answer = [0; 1024];
    while connection.read(&mut answer).await? > 0 {}
    Ok(())
}
