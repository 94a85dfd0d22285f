//! Small HTTP requests to this machine and the application: one connection each, nothing kept.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

/// A request.
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    /// Host or address.
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) path: &'a str,
    pub(crate) headers: HeaderMap,
    /// TLS that trusts everybody, as Kubernetes does for probes.
    pub(crate) tls: bool,
    /// Address the connection comes from.
    pub(crate) from: Option<IpAddr>,
    pub(crate) timeout: Duration,
    /// Most bytes of a body; a longer one is an error, or cut if `cut`.
    pub(crate) most: usize,
    pub(crate) cut: bool,
}

impl<'a> Ask<'a> {
    pub(crate) fn new(method: Method, host: &'a str, port: u16, path: &'a str) -> Self {
        Self {
            method,
            host,
            port,
            path,
            headers: HeaderMap::new(),
            tls: false,
            from: None,
            timeout: Duration::from_secs(3),
            most: 64 << 20,
            cut: false,
        }
    }

    /// Sends it and reads the answer.
    ///
    /// # Errors
    /// There is no answer within the timeout, or it is too long.
    pub(crate) async fn send(self) -> Result<(StatusCode, HeaderMap, Bytes)> {
        let timeout = self.timeout;
        let Ok(answer) = tokio::time::timeout(timeout, self.send_unlimited()).await else {
            bail!("no answer within {timeout:?}");
        };
        answer
    }

    async fn send_unlimited(self) -> Result<(StatusCode, HeaderMap, Bytes)> {
        let stream = connect(self.host, self.port, self.from).await?;
        let mut request = http::Request::new(Empty::<Bytes>::new());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.path.parse().with_context(|| format!("path {:?}", self.path))?;
        *request.headers_mut() = self.headers;
        if !request.headers().contains_key(http::header::HOST) {
            let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.to_owned() };
            request.headers_mut().insert(http::header::HOST, format!("{host}:{}", self.port).parse()?);
        }
        let response = if self.tls {
            let name = ServerName::try_from(self.host.to_owned()).context("name of the server")?;
            let connector = TlsConnector::from(Arc::new(sluice_crypto::takes_everybody().context("set up TLS")?));
            let stream = connector.connect(name, stream).await.context("begin TLS")?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        } else {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        };
        let (head, mut body) = response.into_parts();
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.context("read the answer")?.into_data() else { continue };
            let room = self.most - read.len();
            ensure!(self.cut || data.len() <= room, "the answer is longer than {} bytes", self.most);
            read.extend_from_slice(&data[..data.len().min(room)]);
            if read.len() == self.most {
                break;
            }
        }
        Ok((head.status, head.headers, read.freeze()))
    }
}

/// Connects, perhaps from a given address of this machine.
///
/// # Errors
/// Nobody takes the connection.
pub(crate) async fn connect(host: &str, port: u16, from: Option<IpAddr>) -> Result<TcpStream> {
    let mut last = None;
    for address in lookup_host((host, port)).await.with_context(|| format!("find {host}"))? {
        let attempt = async {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            if let Some(from) = from.filter(|from| from.is_ipv4() == address.is_ipv4()) {
                socket.bind(SocketAddr::new(from, 0))?;
            }
            socket.connect(address).await
        };
        match attempt.await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("connect to {host}:{port}")),
        None => bail!("{host} has no address"),
    }
}
