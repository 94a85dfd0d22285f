//! The application in a pod of the end-to-end tests: it answers HTTP, and sends the requests it is told to.
//!
//! Every HTTP request is answered with one JSON object that says who answered and what arrived. Commands come as JSON
//! lines on standard input, and each is answered by one JSON line on standard output (see `sluice_testkit::pods::app`).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Parser;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluice_testkit::pods::app::{Answer, Call, Reply};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

#[derive(Parser)]
#[command(about = "The application in a pod of the end-to-end tests")]
struct Args {
    /// Address to listen on, may repeat; `none` for a client only.
    #[arg(long = "listen")]
    listen: Vec<SocketAddr>,
    /// Name it answers with.
    #[arg(long)]
    name: String,
    /// Version it answers with.
    #[arg(long, default_value = "v1")]
    version: String,
}

/// Answers to one address are at most this long.
const MAX_BODY_BYTES: usize = 1 << 20;

struct App {
    name: String,
    version: String,
    served: AtomicU64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let app = Arc::new(App { name: args.name, version: args.version, served: AtomicU64::new(0) });
    for address in args.listen {
        let listener = TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
        tokio::spawn(accept(listener, app.clone()));
    }
    let (replies, mut queue) = mpsc::channel::<Reply>(64);
    tokio::spawn(async move {
        let mut out = tokio::io::stdout();
        while let Some(reply) = queue.recv().await {
            let mut line = serde_json::to_vec(&reply).unwrap_or_default();
            line.push(b'\n');
            if out.write_all(&line).await.is_err() || out.flush().await.is_err() {
                return;
            }
        }
    });
    // Tell the parent that every listener is open.
    replies.send(Reply::ready()).await.context("report ready")?;
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = commands.next_line().await.context("read a command")? {
        let call: Call = serde_json::from_str(&line).with_context(|| format!("parse the command {line}"))?;
        let replies = replies.clone();
        tokio::spawn(async move {
            let reply = run(call).await;
            let _ = replies.send(reply).await;
        });
    }
    Ok(())
}

async fn accept(listener: TcpListener, app: Arc<App>) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else { continue };
        let app = app.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(app.clone(), peer, request));
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Answers with what arrived. `?status=503` answers with that status, `?delay-ms=200` waits first.
async fn answer(
    app: Arc<App>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let served = app.served.fetch_add(1, Ordering::Relaxed) + 1;
    let query = request.uri().query().unwrap_or_default().to_owned();
    let option =
        |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok());
    if let Some(delay) = option("delay-ms") {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let body = serde_json::json!({
        "name": app.name,
        "version": app.version,
        "served": served,
        "peer": peer.ip().to_string(),
        "method": request.method().as_str(),
        "path": request.uri().path_and_query().map(ToString::to_string),
        "host": request.headers().get("host").and_then(|h| h.to_str().ok())
            .or_else(|| request.uri().host()),
        "headers": request.headers().iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect::<std::collections::BTreeMap<_, _>>(),
    });
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    if let Some(status) = option("status").and_then(|s| StatusCode::from_u16(u16::try_from(s).ok()?).ok()) {
        *response.status_mut() = status;
    }
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn run(call: Call) -> Reply {
    let id = call.id;
    let started = Instant::now();
    let outcome = match tokio::time::timeout(Duration::from_millis(call.timeout_ms), send(call)).await {
        Ok(outcome) => outcome.map_err(|e| format!("{e:#}")),
        Err(_) => Err("timed out".to_owned()),
    };
    Reply { id, elapsed_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX), outcome }
}

/// One request on a connection of its own, so that nothing is pooled between two of them.
async fn send(call: Call) -> Result<Answer> {
    let stream = TcpStream::connect(call.address).await.with_context(|| format!("connect to {}", call.address))?;
    let mut request = Request::builder().method(call.method.as_str()).uri(&call.path).header("host", &call.host);
    for (name, value) in &call.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(call.body))).context("build the request")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("handshake")?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.context("send the request")?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES)
        .collect()
        .await
        .map_err(|e| anyhow::anyhow!("read the body: {e}"))?
        .to_bytes();
    Ok(Answer {
        status: head.status.as_u16(),
        headers: head
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}
