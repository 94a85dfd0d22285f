//! Forwards requests to the pod's name servers, without decoding them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rand::seq::SliceRandom as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tracing::debug;

/// The name servers of the pod.
pub(super) struct Forwarder {
    pub(super) servers: Vec<SocketAddr>,
    pub(super) parallel: bool,
    /// Time limit of each server.
    pub(super) timeout: Duration,
}

impl Forwarder {
    /// The first response; `None` if no server responds.
    pub(super) async fn forward(&self, request: &[u8], udp: bool) -> Option<Vec<u8>> {
        let mut servers = self.servers.clone();
        servers.shuffle(&mut rand::rng());
        if self.parallel {
            let mut responses: FuturesUnordered<_> =
                servers.into_iter().map(|server| self.forward_to(server, request, udp)).collect();
            while let Some(response) = responses.next().await {
                if response.is_some() {
                    return response;
                }
            }
            return None;
        }
        for server in servers {
            if let Some(response) = self.forward_to(server, request, udp).await {
                return Some(response);
            }
        }
        None
    }

    async fn forward_to(&self, server: SocketAddr, request: &[u8], udp: bool) -> Option<Vec<u8>> {
        let exchange = async { if udp { over_udp(server, request).await } else { over_tcp(server, request).await } };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(Ok(response)) => Some(response),
            Ok(Err(error)) => {
                debug!(target: "dns", %server, %error, "request to a name server failed");
                None
            }
            Err(_) => {
                debug!(target: "dns", %server, "request to a name server timed out");
                None
            }
        }
    }
}

/// Each request has its own port, which makes forged responses harder.
async fn over_udp(server: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let any = if server.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(request).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // The response has the id of the request.
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
    let mut response = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut response).await?;
    Ok(response)
}
