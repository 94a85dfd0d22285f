use std::net::SocketAddr;
use std::time::Duration;

use axum::routing::{get, put};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::{ListenLimits, PortOptions};

use super::*;

/// A server with short time limits.
async fn server(limits: ListenLimits) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = tcp.local_addr().expect("an address");
    let listener = Listener::new(tcp, PortOptions { name: "test", limits, ..PortOptions::default() });
    let router = Router::new()
        .route("/small", get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.ip().to_string()))
        .route("/large", get(async || vec![b'x'; 64 << 20]))
        .route("/echo", put(async |body: Bytes| body));
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve_http(listener, router, BodyLimits::new(1 << 20, 1 << 20), stop.clone()));
    (address, stop, serving)
}

fn short() -> ListenLimits {
    let limit = Duration::from_millis(200);
    ListenLimits {
        handshake_timeout: limit,
        first_request_timeout: limit,
        idle_timeout: limit,
        max_header_bytes: 8 << 10,
        ..ListenLimits::default()
    }
}

/// Sends parts, and reads until the server closes the connection.
async fn exchange(address: SocketAddr, parts: &[&[u8]]) -> String {
    let mut socket = TcpStream::connect(address).await.expect("connect");
    for part in parts {
        if socket.write_all(part).await.is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut answer)).await.expect("an end");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn slow_or_large_headers_and_bodies_end_the_connection() {
    let (address, ..) = server(short()).await;
    assert_eq!(exchange(address, &[]).await, "", "a client that sends nothing");
    assert_eq!(exchange(address, &[b"GET /small HTTP/1.1\r\nhost: x\r\nx-"]).await, "", "a part of the headers");
    let idle = exchange(address, &[b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n"]).await;
    assert!(idle.starts_with("HTTP/1.1 200") && idle.ends_with("127.0.0.1"), "answered, then closed: {idle}");
    let large = format!("GET /small HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n", "x".repeat(9 << 10));
    let large = exchange(address, &[large.as_bytes()]).await;
    assert!(large.starts_with("HTTP/1.1 431"), "{large}");
    let slow = exchange(address, &[b"PUT /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc"]).await;
    assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    let endless =
        exchange(address, &[b"PUT /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n", &[b'x'; 1 << 20]]);
    let endless = endless.await;
    assert!(endless.is_empty() || endless.starts_with("HTTP/1.1 413"), "{endless}");
    let body = exchange(address, &[b"PUT /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"]).await;
    assert!(body.starts_with("HTTP/1.1 200") && body.ends_with("abc"), "{body}");
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let (address, stop, serving) = server(short()).await;
    let mut socket = TcpStream::connect(address).await.expect("connect");
    socket.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("a request");
    // The client reads the first bytes only. The server ends after it has closed the connection.
    socket.readable().await.expect("the begin of the response");
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(20), serving).await.expect("an end").expect("no panic");
    let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
    while let Ok(read @ 1..) = socket.read(&mut buffer).await {
        received += read;
    }
    assert!(received < 64 << 20, "the response is cut off");
}

#[tokio::test]
async fn silent_connections_do_not_keep_others_waiting_beyond_the_time_limit() {
    let limits = ListenLimits { max_connections_per_address: 8, max_pending_per_address: 2, ..short() };
    let (address, ..) = server(limits).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.expect("connect"));
    }
    // Connections beyond the limit are closed; those within it time out, and free their slots.
    for socket in &mut silent {
        let mut end = [0];
        let _ = tokio::time::timeout(Duration::from_secs(20), socket.read(&mut end)).await.expect("an end");
    }
    let answer = exchange(address, &[b"GET /small HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"]).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
