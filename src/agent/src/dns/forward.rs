//! Requests to the name servers the pod had, as the bytes they are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rand::seq::SliceRandom as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tracing::debug;

/// Whom to ask.
pub(super) struct Forwarder {
    pub(super) servers: Vec<SocketAddr>,
    pub(super) parallel: bool,
    /// For each of them.
    pub(super) timeout: Duration,
}

impl Forwarder {
    /// The first answer; none if nobody answers.
    pub(super) async fn ask(&self, request: &[u8], udp: bool) -> Option<Vec<u8>> {
        let mut servers = self.servers.clone();
        servers.shuffle(&mut rand::rng());
        if self.parallel {
            let mut answers: FuturesUnordered<_> =
                servers.into_iter().map(|server| self.ask_one(server, request, udp)).collect();
            while let Some(answer) = answers.next().await {
                if answer.is_some() {
                    return answer;
                }
            }
            return None;
        }
        for server in servers {
            if let Some(answer) = self.ask_one(server, request, udp).await {
                return Some(answer);
            }
        }
        None
    }

    async fn ask_one(&self, server: SocketAddr, request: &[u8], udp: bool) -> Option<Vec<u8>> {
        let answer = async { if udp { over_udp(server, request).await } else { over_tcp(server, request).await } };
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                debug!(target: "dns", %server, "a name server failed: {error}");
                None
            }
            Err(_) => {
                debug!(target: "dns", %server, "a name server did not answer in time");
                None
            }
        }
    }
}

/// From a port of its own, so that others can hardly answer in place of the server.
async fn over_udp(server: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let any = if server.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(request).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // The answer has the number of the request.
        if length >= 12 && buffer[..2] == request[..2] {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn over_tcp(server: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(request.len()).map_err(|_| std::io::ErrorKind::InvalidData)?;
    stream.write_u16(length).await?;
    stream.write_all(request).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}
