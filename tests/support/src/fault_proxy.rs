//! A TCP proxy on the loopback that tests make faulty: it freezes, loses the bytes of its connections, refuses
//! connections, or responds itself.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::ports::free_ports;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 16 << 10;

/// What the proxy does. Connections are numbered from 1, in the order in which they were accepted.
#[derive(Clone, Debug, Default)]
struct Behaviour {
    /// New connections are refused.
    refuses: bool,
    /// No byte is forwarded on any connection.
    frozen: bool,
    /// Connections up to this number stay open, and all that they send is lost.
    lost: u64,
    /// Connections up to this number are closed.
    closed: u64,
    /// The response to the first HTTP request of a connection, which is not forwarded.
    response: Option<Arc<str>>,
}

/// A running proxy. Its connections end when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    behaviour: watch::Sender<Behaviour>,
    /// Number of accepted connections.
    accepted: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl FaultProxy {
    /// A proxy on a free port that forwards to `target`.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let [port] = free_ports()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(address).await.context("listen for connections to forward")?;
        let (behaviour, receiver) = watch::channel(Behaviour::default());
        let accepted = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(accept(listener, address, target, receiver, accepted.clone()));
        Ok(Self { address, behaviour, accepted, task })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of connections so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Forwards no byte until [`restore`](Self::restore). Connections stay open, and new ones are accepted.
    pub fn freeze(&self) {
        self.behaviour.send_modify(|behaviour| behaviour.frozen = true);
    }

    /// Loses all that the connections that are open now send from now on, for ever, and keeps them open. New connections
    /// are forwarded.
    pub fn lose_connections(&self) {
        let accepted = self.accepted();
        self.behaviour.send_modify(|behaviour| behaviour.lost = accepted);
    }

    /// Closes all connections.
    pub fn close_connections(&self) {
        let accepted = self.accepted();
        self.behaviour.send_modify(|behaviour| behaviour.closed = accepted);
    }

    /// Closes all connections, and refuses new ones until [`restore`](Self::restore).
    pub fn refuse(&self) {
        self.behaviour.send_modify(|behaviour| {
            behaviour.refuses = true;
            behaviour.closed = self.accepted();
        });
    }

    /// Closes all connections. Until [`restore`](Self::restore), each new connection gets this response to its first
    /// HTTP request, and is closed.
    pub fn respond(&self, status: &str, content_type: &str, body: &str) {
        let length = body.len();
        let response = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n\
             {body}"
        );
        self.behaviour.send_modify(|behaviour| {
            behaviour.closed = self.accepted();
            behaviour.response = Some(response.into());
        });
    }

    /// Forwards again. Bytes that were lost stay lost, and connections that lose bytes continue to do so.
    pub fn restore(&self) {
        self.behaviour.send_modify(|behaviour| {
            behaviour.refuses = false;
            behaviour.frozen = false;
            behaviour.response = None;
        });
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts connections. While they are refused, the listener is closed.
async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    target: SocketAddr,
    mut behaviour: watch::Receiver<Behaviour>,
    accepted: Arc<AtomicU64>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        if behaviour.borrow_and_update().refuses {
            listener = None;
            if behaviour.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Some(open) = &listener else {
            // The port is reserved for this process, so this fails only until the old listener is closed.
            match TcpListener::bind(address).await {
                Ok(bound) => listener = Some(bound),
                Err(_) => tokio::task::yield_now().await,
            }
            continue;
        };
        tokio::select! {
            changed = behaviour.changed() => if changed.is_err() { return },
            connection = open.accept() => {
                let Ok((connection, _)) = connection else { continue };
                let number = accepted.fetch_add(1, Ordering::SeqCst) + 1;
                if behaviour.borrow().refuses {
                    continue;
                }
                connections.spawn(serve(connection, target, number, behaviour.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves a connection until it ends or is closed.
async fn serve(client: TcpStream, target: SocketAddr, number: u64, behaviour: watch::Receiver<Behaviour>) {
    let mut closed = behaviour.clone();
    tokio::select! {
        _ = closed.wait_for(|behaviour| number <= behaviour.closed) => {}
        // It ended by an error of a socket, which is the end of the connection.
        _ = converse(client, target, number, behaviour) => {}
    }
}

async fn converse(
    client: TcpStream,
    target: SocketAddr,
    number: u64,
    mut behaviour: watch::Receiver<Behaviour>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let response = behaviour.borrow_and_update().response.clone();
    if let Some(response) = response {
        return respond(client, &response).await;
    }
    let server = TcpStream::connect(target).await?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        ended = forward(from_client, to_server, number, behaviour.clone()) => ended.map(|never| match never {}),
        ended = forward(from_server, to_client, number, behaviour) => ended.map(|never| match never {}),
    }
}

/// Answers the first HTTP request.
async fn respond(mut client: TcpStream, response: &str) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        if client.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    client.write_all(response.as_bytes()).await?;
    client.shutdown().await
}

/// Forwards bytes in one direction, until a socket ends or fails.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    mut behaviour: watch::Receiver<Behaviour>,
) -> std::io::Result<Infallible> {
    let gone = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        let (is_closed, is_lost) = {
            let behaviour = behaviour.wait_for(|behaviour| !behaviour.frozen).await.map_err(|_| gone())?;
            (number <= behaviour.closed, number <= behaviour.lost)
        };
        // `serve` closes the connection too, but only when its task runs.
        if is_closed {
            return Err(gone());
        }
        if is_lost {
            // The end of one side is lost as well.
            if read == 0 {
                return std::future::pending().await;
            }
            continue;
        }
        if read == 0 {
            return Err(gone());
        }
        to.write_all(&buffer[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that returns each byte, and a proxy before it.
    async fn proxied_echo() -> FaultProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let target = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = connection.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        FaultProxy::start(target).await.expect("a proxy")
    }

    async fn connect(proxy: &FaultProxy) -> TcpStream {
        TcpStream::connect(proxy.address()).await.expect("connect")
    }

    /// A connection after a repair, whose effect comes when the task of the proxy runs.
    async fn connect_when_restored(proxy: &FaultProxy) -> TcpStream {
        loop {
            if let Ok(connection) = TcpStream::connect(proxy.address()).await {
                return connection;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Whether the connection answers. A connection that loses bytes is recognised by another one that answers later.
    async fn echoes(connection: &mut TcpStream) -> bool {
        let mut byte = [0];
        connection.write_all(b"x").await.is_ok() && matches!(connection.read(&mut byte).await, Ok(1))
    }

    #[tokio::test]
    async fn lost_connections_stay_open_and_new_ones_work() {
        let proxy = proxied_echo().await;
        let mut old = connect(&proxy).await;
        assert!(echoes(&mut old).await);
        proxy.lose_connections();
        old.write_all(b"x").await.expect("the connection is open");
        assert!(echoes(&mut connect(&proxy).await).await);
        let mut byte = [0];
        assert!(old.try_read(&mut byte).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }

    #[tokio::test]
    async fn frozen_bytes_arrive_after_the_thaw() {
        let proxy = proxied_echo().await;
        let mut connection = connect(&proxy).await;
        assert!(echoes(&mut connection).await);
        proxy.freeze();
        connection.write_all(b"y").await.expect("the connection is open");
        proxy.restore();
        let mut byte = [0];
        assert_eq!(connection.read(&mut byte).await.expect("it answers"), 1);
        assert_eq!(&byte, b"y");
    }

    #[tokio::test]
    async fn refused_connections_are_accepted_after_the_repair() {
        let proxy = proxied_echo().await;
        let mut connection = connect(&proxy).await;
        assert!(echoes(&mut connection).await);
        proxy.refuse();
        assert!(!echoes(&mut connection).await, "it is closed");
        while TcpStream::connect(proxy.address()).await.is_ok() {
            tokio::task::yield_now().await;
        }
        proxy.restore();
        let mut connection = connect_when_restored(&proxy).await;
        assert!(echoes(&mut connection).await);
    }

    /// The proxy's tasks run on other threads, which may run later than what a test does next.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_forwarded_once_connections_are_refused() {
        let proxy = proxied_echo().await;
        for _ in 0..500 {
            let mut old = connect_when_restored(&proxy).await;
            assert!(echoes(&mut old).await);
            proxy.refuse();
            assert!(!echoes(&mut old).await, "an open connection");
            if let Ok(mut new) = TcpStream::connect(proxy.address()).await {
                assert!(!echoes(&mut new).await, "a new connection");
            }
            proxy.restore();
        }
    }

    #[tokio::test]
    async fn a_response_replaces_that_of_the_target() {
        let proxy = proxied_echo().await;
        proxy.respond("404 Not Found", "application/json", "{}");
        let mut connection = connect(&proxy).await;
        connection.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("send a request");
        let mut response = String::new();
        connection.read_to_string(&mut response).await.expect("a response");
        assert!(response.starts_with("HTTP/1.1 404 Not Found\r\n") && response.ends_with("\r\n\r\n{}"), "{response}");
    }
}
