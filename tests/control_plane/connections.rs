//! Attacks on the ports themselves: clients that connect and send nothing, little or slowly, and a process that may open no
//! more files. Meanwhile other clients are served, and memory stays bounded.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::secure::{CertificateRequest, ClientTls, TlsClient, signing_request};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tonic::Code;
use tower::{Service as _, ServiceExt as _};

use crate::identity::mesh::{CART, IdentityFixture, until};

/// Time limit for the end of an attack.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// The address of attackers. Other clients have 127.0.0.1.
const ATTACKER: [u8; 4] = [127, 0, 0, 2];

/// The ports by their names in metrics.
fn ports(mesh: &IdentityFixture) -> [(&'static str, SocketAddr); 4] {
    let server = &mesh.server;
    let secure = server.secure.expect("the port is open");
    [("grpc", server.grpc), ("secure grpc", secure), ("http", server.http), ("monitoring", server.monitoring)]
}

async fn attack(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((IpAddr::from(ATTACKER), 0).into())?;
    socket.connect(to).await
}

/// Bytes of a client of a port that never make a request.
fn endless(port: &str) -> Vec<u8> {
    match port {
        "grpc" => [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0].repeat(1000)].concat(),
        "secure grpc" => [&[0x16, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb, 3, 3][..], &[0; 10_000]].concat(),
        _ => [&b"GET /ready HTTP/1.1\r\nhost: x\r\nx-long: "[..], &[b'x'; 10_000]].concat(),
    }
}

/// Waits until the server closes a connection.
async fn closed(mut socket: impl AsyncRead + Unpin) {
    let read = async { while let Ok(1..) = socket.read(&mut [0; 1024]).await {} };
    tokio::time::timeout(END_TIMEOUT, read).await.expect("the server closes the connection");
}

/// Checks that other clients are served.
async fn check_others(mesh: &IdentityFixture) {
    let (_, csr) = signing_request().expect("a request");
    let channel = mesh.connect(&ClientTls::default()).await;
    CertificateRequest::with_token(&csr, &mesh.token(CART)).send(&channel).await.expect("a certificate");
    assert_eq!(mesh.server.get("/ready").await.expect("an answer").0, 200);
    let mut stream = ads_stream(mesh).await;
    stream.next().await.expect("no error").expect("a response");
}

async fn ads_stream(mesh: &IdentityFixture) -> AdsStream {
    let node = serde_json::json!({"id": "sidecar~10.0.0.1~pod-1.shop~shop.svc.cluster.local", "metadata": {}});
    let identity = Identity::of_node(&node).expect("a node");
    let channel = connect(mesh.server.grpc).await.expect("connect");
    let mut stream = AdsStream::open(channel, Protocol::Delta, identity).expect("a stream");
    stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new()).expect("open");
    stream
}

fn count(metrics: &BTreeMap<String, f64>, name: &str, port: &str, reason: &str) -> f64 {
    let reason = if reason.is_empty() { String::new() } else { format!(",reason=\"{reason}\"") };
    metrics.get(&format!("{name}{{port=\"{port}\"{reason}}}")).copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_request_are_closed_on_each_port() {
    const CONNECTIONS: usize = 50;
    let mesh = IdentityFixture::start(&["--handshakeTimeout=500ms", "--firstRequestTimeout=500ms"]).await;
    check_others(&mesh).await;
    let memory = mesh.server.watch_memory().expect("it runs");
    let mut attackers = JoinSet::new();
    for (name, address) in ports(&mesh) {
        for number in 0..CONNECTIONS {
            let mut socket = attack(address).await.expect("connect");
            let bytes = endless(name);
            attackers.spawn(async move {
                match number % 3 {
                    // Nothing, or the first part.
                    0 => {}
                    1 => socket.write_all(&bytes[..40]).await.expect("send"),
                    // A byte at a time, as long as the server accepts it.
                    _ => {
                        for byte in bytes {
                            let sent = socket.write_all(&[byte]).await;
                            let ended =
                                tokio::time::timeout(Duration::from_millis(20), socket.read(&mut [0; 64])).await;
                            if sent.is_err() || matches!(ended, Ok(Err(_) | Ok(0))) {
                                return;
                            }
                        }
                    }
                }
                closed(socket).await;
            });
        }
    }
    check_others(&mesh).await;
    tokio::time::timeout(END_TIMEOUT, attackers.join_all()).await.expect("all connections are closed");
    let metrics = mesh.metrics().await;
    for (port, reason) in [
        ("grpc", "first_request"),
        ("secure grpc", "handshake"),
        ("http", "first_request"),
        ("monitoring", "first_request"),
    ] {
        let closed = count(&metrics, "sluice_closed_connections", port, reason);
        assert!(closed >= CONNECTIONS as f64, "{port}: {closed} are counted");
        let open = count(&metrics, "sluice_connections", port, "");
        assert!(open < CONNECTIONS as f64, "{port}: {open} are open");
    }
    assert!(mesh.logged("no request arrived in time").len() <= 3, "logged once a minute for each port");
    memory.check_growth("connections without a request").expect("bounded memory");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_complete_tls_and_send_no_request_are_closed() {
    const CONNECTIONS: usize = 30;
    const PORT: &str = "secure grpc";
    let mesh = IdentityFixture::start(&["--firstRequestTimeout=1s"]).await;
    check_others(&mesh).await;
    let memory = mesh.server.watch_memory().expect("it runs");
    let address = mesh.server.secure.expect("the port is open");
    let client = TlsClient::new("istiod.istio-system.svc", &mesh.root(), &ClientTls::default()).expect("valid roots");
    let mut attackers = JoinSet::new();
    for number in 0..CONNECTIONS {
        let socket = attack(address).await.expect("connect");
        let mut socket = client.handshake(socket).await.expect("a handshake");
        attackers.spawn(async move {
            // Nothing, or the beginning of HTTP/2 without a request.
            if number % 2 == 1 {
                socket.write_all(&endless("grpc")[..40]).await.expect("send");
            }
            closed(socket).await;
        });
    }
    check_others(&mesh).await;
    tokio::time::timeout(END_TIMEOUT, attackers.join_all()).await.expect("all connections are closed");
    let metrics = mesh.metrics().await;
    let closed = count(&metrics, "sluice_closed_connections", PORT, "first_request");
    assert!(closed >= CONNECTIONS as f64, "{closed} are counted");
    assert_eq!(count(&metrics, "sluice_closed_connections", PORT, "handshake"), 0.0, "all handshakes were completed");
    let open = count(&metrics, "sluice_connections", PORT, "");
    assert!(open < CONNECTIONS as f64, "{open} are open");
    let logged = || mesh.logged("no request arrived in time").into_iter().filter(|line| line.contains(PORT));
    until("it is logged", async || logged().next()).await;
    assert_eq!(logged().count(), 1, "logged once a minute");
    memory.check_growth("clients that are silent after TLS").expect("bounded memory");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_address_leave_room_for_others() {
    const CONNECTIONS: usize = 150;
    const LIMIT: usize = 100;
    const PENDING_LIMIT: usize = 20;
    let limit = format!("--maxConnectionsPerAddress={LIMIT}");
    let http_limit = format!("--maxHTTPConnectionsPerAddress={LIMIT}");
    let pending = format!("--maxPendingConnectionsPerAddress={PENDING_LIMIT}");
    let timeouts = ["--handshakeTimeout=60s", "--firstRequestTimeout=60s"];
    let mesh = IdentityFixture::start(&[&limit, &http_limit, &pending, timeouts[0], timeouts[1]]).await;
    check_others(&mesh).await;
    let memory = mesh.server.watch_memory().expect("it runs");
    for (name, address) in ports(&mesh) {
        let mut sockets = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut socket = attack(address).await.expect("connect");
            // The server may have closed the connection already.
            let _ = socket.write_all(&endless(name)[..40]).await;
            sockets.push(socket);
        }
        let refused = until("the connections are counted", async || {
            let metrics = mesh.metrics().await;
            let refused = count(&metrics, "sluice_closed_connections", name, "address");
            (refused >= (CONNECTIONS - LIMIT) as f64).then_some(refused)
        });
        assert_eq!(refused.await, (CONNECTIONS - LIMIT) as f64, "{name}");
        // Connections of other clients are pending for a moment.
        until("only the connections within the limit are served", async || {
            let pending = count(&mesh.metrics().await, "sluice_pending_connections", name, "");
            (pending <= PENDING_LIMIT as f64).then_some(())
        })
        .await;
        check_others(&mesh).await;
    }
    memory.check_growth("connections of one address").expect("bounded memory");
}

/// Sends a request on a connection that stays open, and reads the response.
async fn request(socket: &mut TcpStream, path: &str) -> String {
    socket.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.expect("send");
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length: "))
            && body.len() >= length.parse().expect("a number")
        {
            return text;
        }
        assert!(socket.read_buf(&mut answer).await.expect("a response") > 0, "cut off: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_open_files_stop_no_port() {
    let mesh = IdentityFixture::start(&[]).await;
    check_others(&mesh).await;
    let pid = mesh.server.pid().expect("it runs");
    let mut operator = TcpStream::connect(mesh.server.http).await.expect("connect");
    assert!(request(&mut operator, "/ready").await.starts_with("HTTP/1.1 200"));
    let mut stream = ads_stream(&mesh).await;
    stream.next().await.expect("no error").expect("a response");
    let memory = mesh.server.watch_memory().expect("it runs");
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("open files").count();
    let set_limit = |files: usize| {
        let limit = Rlimit { current: u64::try_from(files).ok(), maximum: Some(1024) };
        prlimit(Pid::from_raw(pid.cast_signed()), Resource::Nofile, limit).expect("the limit is set");
    };
    set_limit(open + 8);
    let mut sockets = Vec::new();
    for (_, address) in ports(&mesh) {
        for _ in 0..30 {
            // The connection waits in the queue of the port.
            sockets.push(attack(address).await.expect("connect"));
        }
    }
    let failures = |metrics: &str| {
        let lines = metrics.lines().filter(|line| line.starts_with("sluice_accept_errors{"));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum::<u64>()
    };
    let failed = async {
        loop {
            let failures = failures(&request(&mut operator, "/metrics").await);
            if failures >= 8 {
                return failures;
            }
        }
    };
    let failed = tokio::time::timeout(END_TIMEOUT, failed).await.expect("accepting fails");
    assert!(failed < 1000, "{failed} attempts: it does not pause");
    // Those that are connected are served.
    stream.subscribe(Kind::Lds.type_url(), &[], BTreeMap::new()).expect("open");
    stream.next().await.expect("no error").expect("a response");
    assert!(request(&mut operator, "/ready").await.starts_with("HTTP/1.1 200"));
    let logged = mesh.logged("failed to accept connections").len();
    assert!((1..=4).contains(&logged), "logged {logged} times: once a minute for each port");
    // Ports accept connections again when there are files.
    drop(sockets);
    set_limit(1024);
    check_others(&mesh).await;
    memory.check_growth("too many open files").expect("bounded memory");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_requests_of_an_identity_are_limited() {
    let mesh = IdentityFixture::start(&["--maxCertificateRequests=3"]).await;
    let channel = mesh.connect(&ClientTls::default()).await;
    let memory = mesh.server.watch_memory().expect("it runs");
    let (_, csr) = signing_request().expect("a request");
    let request = async |account: &str| {
        let request = CertificateRequest::with_token(&csr, &mesh.token(account));
        request.send(&channel).await.map(|_| ()).map_err(|status| status.code())
    };
    for _ in 0..3 {
        assert_eq!(request(CART).await, Ok(()));
    }
    for _ in 0..5 {
        assert_eq!(request(CART).await, Err(Code::ResourceExhausted));
    }
    assert_eq!(request("system:serviceaccount:shop:till").await, Ok(()), "another identity");
    assert_eq!(mesh.metrics().await["sluice_certificate_requests_refused"], 5.0);
    until("it is logged", async || mesh.logged("refused certificate requests").pop()).await;
    memory.check_growth("certificate requests").expect("bounded memory");
}

#[tokio::test(flavor = "multi_thread")]
async fn message_of_an_unauthenticated_certificate_request_is_not_read() {
    let mesh = IdentityFixture::start(&[]).await;
    let mut channel = mesh.connect(&ClientTls::default()).await;
    let memory = mesh.server.watch_memory().expect("it runs");
    // The message never arrives.
    let body = Body::from_stream(futures::stream::pending::<std::io::Result<Bytes>>());
    let request = http::Request::post("https://istiod/istio.v1.auth.IstioCertificateService/CreateCertificate")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(body))
        .expect("a request");
    let response = channel.ready().await.expect("connected").call(request);
    let response = tokio::time::timeout(END_TIMEOUT, response).await.expect("an answer").expect("a response");
    assert_eq!(response.headers()["grpc-status"], "16", "unauthenticated");
    memory.check_growth("a message that never arrives").expect("bounded memory");
}
