//! Sends one request: on a new connection, so that requests do not share one, or on a connection that is kept open.

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
use sluice_testkit::hbone::root_store;
use sluice_testkit::pods::app::{AppProtocol, AppReply, AppRequest, AppResponse, Tls};
use sluice_testkit::pods::identity::{certificates, private_key};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UdpSocket};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::server::MAX_DATAGRAM_BYTES;
use crate::tunnel;

/// Largest body of a response.
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

/// Idle connections.
static IDLE_CONNECTIONS: Mutex<BTreeMap<SocketAddr, Vec<SendRequest<Full<Bytes>>>>> = Mutex::new(BTreeMap::new());

/// An idle connection to an address, or a new one.
async fn idle_connection(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let pop = || IDLE_CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&address).and_then(Vec::pop);
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

async fn send_on_idle_connection(call: AppRequest) -> Result<AppResponse> {
    let address = call.address;
    let mut sender = idle_connection(address).await?;
    let response = read_response(sender.send_request(request(call)?).await.context("send the request")?).await?;
    IDLE_CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner).entry(address).or_default().push(sender);
    Ok(response)
}

async fn connect(call: AppRequest) -> Result<AppResponse> {
    if call.protocol == AppProtocol::Datagram {
        return exchange_datagrams(&call).await;
    }
    if call.reuse_connection {
        return send_on_idle_connection(call).await;
    }
    match &call.tunnel {
        Some(tunnel) => exchange_over(tunnel::open(tunnel, call.address).await?, call).await,
        None => {
            let stream = TcpStream::connect(call.address).await;
            exchange_over(stream.with_context(|| format!("connect to {}", call.address))?, call).await
        }
    }
}

async fn exchange_over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    call: AppRequest,
) -> Result<AppResponse> {
    match &call.tls {
        None => exchange(stream, call).await,
        Some(tls) => {
            let name = ServerName::try_from(tls.server_name.clone()).context("parse the server name")?;
            let connector = TlsConnector::from(Arc::new(config(tls)?));
            exchange(connector.connect(name, stream).await.context("TLS handshake")?, call).await
        }
    }
}

fn config(tls: &Tls) -> Result<ClientConfig> {
    let builder = ClientConfig::builder().with_root_certificates(root_store(&tls.roots)?);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(certificates(chain)?, private_key(key)?)
            .context("set the client certificate")?,
    };
    config.alpn_protocols = tls.alpn.iter().map(|name| name.clone().into_bytes()).collect();
    Ok(config)
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    call: AppRequest,
) -> Result<AppResponse> {
    if call.protocol == AppProtocol::Raw {
        return exchange_lines(stream, &call.body).await;
    }
    let protocol = call.protocol;
    let request = request(call)?;
    if protocol == AppProtocol::Http2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .context("HTTP/2 handshake")?;
        tokio::spawn(connection);
        read_response(sender.send_request(request).await.context("send the request")?).await
    } else {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("HTTP/1.1 handshake")?;
        tokio::spawn(connection);
        read_response(sender.send_request(request).await.context("send the request")?).await
    }
}

fn request(call: AppRequest) -> Result<Request<Full<Bytes>>> {
    let uri = match call.protocol {
        // In HTTP/2, the URI has the authority.
        AppProtocol::Http2 => {
            format!("{}://{}{}", if call.tls.is_some() { "https" } else { "http" }, call.host, call.path)
        }
        _ => call.path.clone(),
    };
    let mut request = Request::builder().method(call.method.as_str()).uri(uri);
    if call.protocol == AppProtocol::Http1 {
        request = request.header("host", &call.host);
    }
    for (name, value) in &call.headers {
        request = request.header(name, value);
    }
    request.body(Full::new(Bytes::from(call.body))).context("build the request")
}

async fn read_response(response: Response<Incoming>) -> Result<AppResponse> {
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
        bail!("closed without a response");
    }
    Ok(AppResponse { status: 0, headers: [].into(), body: line })
}

async fn exchange_datagrams(call: &AppRequest) -> Result<AppResponse> {
    let any = SocketAddr::new([0, 0, 0, 0].into(), 0);
    let socket = UdpSocket::bind(any).await.context("open a socket")?;
    socket.connect(call.address).await.with_context(|| format!("connect to {} over UDP", call.address))?;
    socket.send(call.body.as_bytes()).await.context("send a datagram")?;
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    let length = socket.recv(&mut buffer).await.context("receive a datagram")?;
    buffer.truncate(length);
    let body = String::from_utf8_lossy(&buffer).into_owned();
    Ok(AppResponse { status: 0, headers: [].into(), body })
}
