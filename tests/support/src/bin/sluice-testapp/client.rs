//! Sends one request, on a connection of its own, so that nothing is pooled between two of them; or on one that was
//! kept.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluice_testkit::pods::app::{AppProtocol, AppReply, AppRequest, AppResponse, Tls};
use sluice_testkit::pods::identity::{certificates, private_key};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// An answer is at most this long.
const MAX_BODY_BYTES: usize = 1 << 20;

pub(crate) async fn run(call: AppRequest) -> AppReply {
    let id = call.id;
    let started = Instant::now();
    let outcome = match tokio::time::timeout(Duration::from_millis(call.timeout_ms), connect(call)).await {
        Ok(outcome) => outcome.map_err(|e| format!("{e:#}")),
        Err(_) => Err("timed out".to_owned()),
    };
    AppReply { id, elapsed_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX), outcome }
}

/// Connections that wait for the next call.
static KEPT: Mutex<BTreeMap<SocketAddr, Vec<SendRequest<Full<Bytes>>>>> = Mutex::new(BTreeMap::new());

/// A connection to an address that is open.
async fn kept(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let pop = || KEPT.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&address).and_then(Vec::pop);
    while let Some(mut sender) = pop() {
        if sender.ready().await.is_ok() {
            return Ok(sender);
        }
    }
    let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn on_kept(call: AppRequest) -> Result<AppResponse> {
    let address = call.address;
    let mut sender = kept(address).await?;
    let answer = answer(sender.send_request(request(call)?).await.context("send the request")?).await?;
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).entry(address).or_default().push(sender);
    Ok(answer)
}

async fn connect(call: AppRequest) -> Result<AppResponse> {
    if call.kept {
        return on_kept(call).await;
    }
    let stream = TcpStream::connect(call.address).await.with_context(|| format!("connect to {}", call.address))?;
    match &call.tls {
        None => speak(stream, call).await,
        Some(tls) => {
            let name = ServerName::try_from(tls.server_name.clone()).context("the server name is one")?;
            let connector = TlsConnector::from(Arc::new(config(tls)?));
            speak(connector.connect(name, stream).await.context("TLS handshake")?, call).await
        }
    }
}

fn config(tls: &Tls) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.roots)? {
        roots.add(certificate).context("take a root")?;
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            builder.with_client_auth_cert(certificates(chain)?, private_key(key)?).context("take the identity")?
        }
    };
    config.alpn_protocols = tls.alpn.iter().map(|name| name.clone().into_bytes()).collect();
    Ok(config)
}

async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, call: AppRequest) -> Result<AppResponse> {
    if call.wire == AppProtocol::Raw {
        return exchange_lines(stream, &call.body).await;
    }
    let wire = call.wire;
    let request = request(call)?;
    if wire == AppProtocol::Http2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.context("hello")?;
        tokio::spawn(connection);
        answer(sender.send_request(request).await.context("send the request")?).await
    } else {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("handshake")?;
        tokio::spawn(connection);
        answer(sender.send_request(request).await.context("send the request")?).await
    }
}

fn request(call: AppRequest) -> Result<Request<Full<Bytes>>> {
    let uri = match call.wire {
        // HTTP/2 has the host in the request's own line.
        AppProtocol::Http2 => {
            format!("{}://{}{}", if call.tls.is_some() { "https" } else { "http" }, call.host, call.path)
        }
        _ => call.path.clone(),
    };
    let mut request = Request::builder().method(call.method.as_str()).uri(uri);
    if call.wire == AppProtocol::Http1 {
        request = request.header("host", &call.host);
    }
    for (name, value) in &call.headers {
        request = request.header(name, value);
    }
    request.body(Full::new(Bytes::from(call.body))).context("build the request")
}

async fn answer(response: Response<Incoming>) -> Result<AppResponse> {
    let (head, body) = response.into_parts();
    let body =
        Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(|e| anyhow!("read the body: {e}"))?.to_bytes();
    Ok(AppResponse {
        status: head.status.as_u16(),
        headers: head
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

async fn exchange_lines<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, text: &str) -> Result<AppResponse> {
    stream.write_all(text.as_bytes()).await.context("write")?;
    let mut line = String::new();
    let length = BufReader::new(stream).read_line(&mut line).await.context("read")?;
    if length == 0 {
        bail!("closed without an answer");
    }
    Ok(AppResponse { status: 0, headers: [].into(), body: line })
}
