//! Connections that die while a heartbeat is on its way, and peers that never answer.

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::error::chain;

/// Time limit for noticing a dead connection.
const LIMIT: Duration = Duration::from_secs(10);

/// An API server whose connections can die.
#[derive(Default)]
struct ApiServer {
    /// Number of accepted connections.
    accepted: AtomicUsize,
    /// Connections up to this number are dead: what they send is lost.
    lost: AtomicUsize,
    /// A heartbeat was answered.
    answered: Notify,
    /// A heartbeat was lost.
    unanswered: Notify,
}

impl ApiServer {
    async fn start() -> (Arc<Self>, Client) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("an address");
        let server = Arc::new(Self::default());
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let number = serving.accepted.fetch_add(1, Ordering::SeqCst) + 1;
                let serving = serving.clone();
                tokio::spawn(async move { serving.serve(connection, number).await });
            }
        });
        let uri = format!("http://{address}").parse().expect("a URI");
        (server, client(Config::new(uri)).expect("a client"))
    }

    /// All connections that are open now die.
    fn lose_connections(&self) {
        self.lost.store(self.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Answers heartbeats. A watch receives a byte at the time at which the first heartbeat is lost, and nothing else.
    async fn serve(&self, mut connection: TcpStream, number: usize) -> std::io::Result<()> {
        loop {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                if connection.read_buf(&mut request).await? == 0 {
                    return Ok(());
                }
            }
            if !request.starts_with(b"GET /livez ") {
                let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                connection.write_all(head).await?;
                self.unanswered.notified().await;
                connection.write_all(b"1\r\n{\r\n").await?;
                std::future::pending::<()>().await;
            }
            if number <= self.lost.load(Ordering::SeqCst) {
                self.unanswered.notify_one();
                std::future::pending::<()>().await;
            }
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await?;
            self.answered.notify_one();
        }
    }
}

#[tokio::test]
async fn a_watch_that_received_data_just_before_its_connection_died_is_ended() {
    let (server, client) = ApiServer::start().await;
    let request = Request::get("/api/v1/pods?watch=true").body(Body::empty()).expect("a request");
    let watch = client.send(request).await.expect("a response");
    server.answered.notified().await;
    server.lose_connections();
    let received = tokio::time::timeout(LIMIT, watch.into_body().collect()).await.expect("the watch is ended");
    assert_eq!(received.expect("no error").to_bytes(), "{");
}

#[tokio::test]
async fn request_whose_peer_accepts_and_never_answers_ends_at_its_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let uri = format!("http://{}", listener.local_addr().expect("an address")).parse().expect("a URI");
    let client = client(Config::new(uri)).expect("a client");
    let limit = Duration::from_millis(300);
    let begun = Instant::now();
    let request = Request::get("/api/v1/namespaces/shop").body(Vec::new()).expect("a request");
    let answer = tokio::time::timeout(LIMIT, request_within::<serde_json::Value>(&client, request, limit)).await;
    let error = answer.expect("it ends").expect_err("no answer");
    assert!(chain(&error).contains("no response within 0.3 s"), "{}", chain(&error));
    assert!(begun.elapsed() >= limit);
    // The kernel accepts connections as long as the listener exists.
    drop(listener);
}

/// A test cannot let a machine vanish, so this checks what the kernel is told.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_have_keepalive_and_a_user_timeout() {
    use rustix::net::sockopt;

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let uri = format!("http://{}", listener.local_addr().expect("an address")).parse().expect("a URI");
    let connection = tower::Service::<http::Uri>::call(&mut connector(), uri).await.expect("a connection").into_inner();
    assert_eq!(sockopt::socket_keepalive(&connection), Ok(true));
    assert_eq!(sockopt::tcp_keepidle(&connection), Ok(TCP_KEEPALIVE));
    assert_eq!(sockopt::tcp_keepintvl(&connection), Ok(TCP_KEEPALIVE));
    assert_eq!(sockopt::tcp_keepcnt(&connection), Ok(TCP_KEEPALIVE_PROBES));
    assert_eq!(sockopt::tcp_user_timeout(&connection), Ok(20_000), "milliseconds");
}
