//! Answers requests, and records them.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use sluice_testkit::pods::app::RECEIVED;
use sluice_testkit::pods::identity::{certificates, private_key};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UdpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// Largest datagram.
pub(crate) const MAX_DATAGRAM_BYTES: usize = 1 << 16;

/// Number of the last requests that are recorded.
const MAX_RECORDED_REQUESTS: usize = 5_000;

pub(crate) struct App {
    name: String,
    version: String,
    served: AtomicU64,
    received: Mutex<VecDeque<Value>>,
}

impl App {
    pub(crate) fn new(name: String, version: String) -> Self {
        Self { name, version, served: AtomicU64::new(0), received: Mutex::default() }
    }

    /// The recorded requests whose path contains `marker`.
    fn received(&self, marker: &str) -> Value {
        let Ok(received) = self.received.lock() else { return Value::Null };
        let matches = |request: &&Value| request["path"].as_str().is_some_and(|path| path.contains(marker));
        received.iter().filter(matches).cloned().collect()
    }

    /// Records a request. Returns the number of earlier requests with the same path.
    fn record(&self, request: &Value) -> u64 {
        let Ok(mut received) = self.received.lock() else { return 0 };
        let before = received.iter().filter(|other| other["path"] == request["path"]).count();
        if received.len() == MAX_RECORDED_REQUESTS {
            received.pop_front();
        }
        received.push_back(request.clone());
        before as u64
    }
}

/// TLS properties of a connection, if it uses TLS.
type ConnectionTls = Option<Value>;

pub(crate) async fn serve_http(listener: TcpListener, app: Arc<App>) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else { continue };
        tokio::spawn(serve(stream, peer, None, app.clone()));
    }
}

pub(crate) async fn serve_https(listener: TcpListener, tls: TlsAcceptor, app: Arc<App>) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else { continue };
        let (tls, app) = (tls.clone(), app.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let (_, session) = stream.get_ref();
            let tls_info = json!({
                "serverName": session.server_name(),
                "alpn": session.alpn_protocol().map(String::from_utf8_lossy),
                "clientCertificate": session.peer_certificates().is_some_and(|chain| !chain.is_empty()),
            });
            serve(stream, peer, Some(tls_info), app).await;
        });
    }
}

/// Reads a line, and answers with the application's name and the peer's address.
pub(crate) async fn serve_lines(listener: TcpListener, app: Arc<App>) {
    loop {
        let Ok((mut stream, peer)) = listener.accept().await else { continue };
        let app = app.clone();
        tokio::spawn(async move {
            let mut line = String::new();
            let (read, mut write) = stream.split();
            if BufReader::new(read).read_line(&mut line).await.is_err() {
                return;
            }
            let response = json!({ "name": app.name, "version": app.version,
                "peer": peer.ip().to_string(), "line": line.trim_end() });
            let _ = write.write_all(format!("{response}\n").as_bytes()).await;
        });
    }
}

/// Answers each datagram with the application's name and the peer's address.
pub(crate) async fn serve_datagrams(socket: UdpSocket, app: Arc<App>) {
    let mut buffer = [0; MAX_DATAGRAM_BYTES];
    loop {
        let Ok((length, peer)) = socket.recv_from(&mut buffer).await else { continue };
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        let response = json!({ "name": app.name, "version": app.version, "peer": peer.to_string(), "line": text });
        let _ = socket.send_to(response.to_string().as_bytes(), peer).await;
    }
}

/// Accepts TLS connections with this certificate.
pub(crate) fn acceptor(certificate: &Path, key: &Path, client_roots: Option<&Path>) -> Result<TlsAcceptor> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
    let builder = ServerConfig::builder();
    let builder = match client_roots {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(&read(path)?)? {
                roots.add(root).context("add a client root")?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build();
            builder.with_client_cert_verifier(verifier.context("verify clients")?)
        }
    };
    let mut config = builder
        .with_single_cert(certificates(&read(certificate)?)?, private_key(&read(key)?)?)
        .context("set the certificate")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve<S>(stream: S, peer: SocketAddr, tls_info: ConnectionTls, app: Arc<App>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request| answer(app.clone(), peer, tls_info.clone(), request));
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// Options of the response in the query of a request: `status=503` is the status, `delay-ms=200` a delay. With `only=v2`
/// they apply only in that version of the application, with `first=2` only to the first two requests of this path.
struct ResponseOptions(BTreeMap<String, String>);

impl ResponseOptions {
    fn of(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }

    fn apply(&self, app: &App, before: u64) -> bool {
        let is_version = self.0.get("only").is_none_or(|version| *version == app.version);
        is_version && self.number("first").is_none_or(|first| before < first)
    }
}

async fn answer(
    app: Arc<App>,
    peer: SocketAddr,
    tls_info: ConnectionTls,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let options = ResponseOptions::of(request.uri().query());
    if request.uri().path() == RECEIVED {
        let marker = options.0.get("marker").map(String::as_str).unwrap_or_default();
        return Ok(Response::new(Full::new(Bytes::from(app.received(marker).to_string()))));
    }
    let served = app.served.fetch_add(1, Ordering::Relaxed) + 1;
    let body = json!({
        "name": app.name,
        "version": app.version,
        "served": served,
        "peer": peer.ip().to_string(),
        "protocol": format!("{:?}", request.version()),
        "tls": tls_info,
        "method": request.method().as_str(),
        "path": request.uri().path_and_query().map(ToString::to_string),
        "host": request.headers().get("host").and_then(|h| h.to_str().ok())
            .or_else(|| request.uri().authority().map(http::uri::Authority::as_str)),
        "headers": request.headers().iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect::<BTreeMap<_, _>>(),
    });
    let apply = options.apply(&app, app.record(&body));
    if let Some(delay) = options.number("delay-ms").filter(|_| apply) {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    let status = options.number("status").filter(|_| apply).and_then(|status| u16::try_from(status).ok());
    if let Some(status) = status.and_then(|status| StatusCode::from_u16(status).ok()) {
        *response.status_mut() = status;
    }
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}
