//! Clients that are no proxies.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Clients at a time.
const CLIENTS: u64 = 200;
/// Longest time that a client keeps a connection.
const CONNECTION_TIME: Duration = Duration::from_millis(500);
/// The preface of HTTP/2 with an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// Running clients. They end when this is dropped.
pub(super) struct HostileClients(JoinSet<()>);

impl HostileClients {
    /// Clients that each attack one of these ports at a time.
    pub(super) fn start(ports: [SocketAddr; 3]) -> Self {
        let mut clients = JoinSet::new();
        for seed in 0..CLIENTS {
            clients.spawn(async move {
                let mut random = StdRng::seed_from_u64(seed);
                loop {
                    // The server may close the connection at any time.
                    let port = ports[random.random_range(0..ports.len())];
                    let _ = tokio::time::timeout(CONNECTION_TIME, attack(port, &mut random)).await;
                    tokio::time::sleep(Duration::from_millis(random.random_range(1..50))).await;
                }
            });
        }
        Self(clients)
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.0.shutdown().await;
        Ok(())
    }
}

/// One connection: nothing, random bytes, a TLS record, or HTTP/2 with frames that are not requests.
async fn attack(port: SocketAddr, random: &mut StdRng) -> std::io::Result<()> {
    let mut connection = TcpStream::connect(port).await?;
    let mut bytes = match random.random_range(0..5) {
        0 => Vec::new(),
        1 => PREFACE[..random.random_range(1..PREFACE.len())].to_vec(),
        2 => [&b"\x16\x03\x01"[..], &[0xff; 2]].concat(),
        _ => PREFACE.to_vec(),
    };
    let noise = random.random_range(0..4096);
    bytes.extend((0..noise).map(|_| random.random::<u8>()));
    connection.write_all(&bytes).await?;
    let mut answer = [0; 1024];
    while connection.read(&mut answer).await? > 0 {}
    Ok(())
}
