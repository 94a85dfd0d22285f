//! Probes of the application over HTTP, TCP and gRPC.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, StatusCode, header};
use prost::Message;
use rustls::ClientConfig;
use sluice_http_client::{HttpClient, HttpError, HttpRequest, HttpResponse, LongBody};
use tokio::net::{TcpSocket, TcpStream, lookup_host};

use super::https_probe;
use crate::codec::Raw;
use crate::connection;
use crate::local_http;

/// Bytes of a response body that are passed on; the rest is dropped.
const MAX_BODY_BYTES: usize = 10 << 10;
const MAX_REDIRECTS: usize = 10;

/// The target of a probe.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Target {
    Http { tls: bool, path: String },
    Tcp,
    Grpc { service: String },
}

/// A probe of the application.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Probe {
    pub(crate) target: Target,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) timeout: Duration,
}

/// Source address of probes: the injector's traffic rules pass connections from it to the application unchanged, like those
/// of the kubelet.
fn source_address(host: &str) -> IpAddr {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 6]),
        _ => IpAddr::from([127, 0, 0, 6]),
    }
}

/// Sends probes.
#[derive(Clone, Debug)]
pub(crate) struct Prober {
    from_ipv4: HttpClient,
    from_ipv6: HttpClient,
    /// The client for machines that do not have the source address.
    from_any: HttpClient,
    /// TLS of probes that offer HTTP/2.
    http2: Option<Arc<ClientConfig>>,
}

impl Prober {
    /// A prober. With `http2`, it offers HTTP/2 to applications with TLS, as the kubelet does.
    ///
    /// # Errors
    /// The HTTP client cannot be set up.
    pub(crate) fn new(http2: bool) -> Result<Self> {
        Ok(Self {
            from_ipv4: local_http::client(Some(source_address("127.0.0.1")))?,
            from_ipv6: local_http::client(Some(source_address("::1")))?,
            from_any: local_http::client(None)?,
            http2: if http2 { Some(https_probe::tls()?) } else { None },
        })
    }

    /// Sends a probe and returns the result: for HTTP the status and the beginning of the body.
    ///
    /// # Errors
    /// There is no response, or a gRPC service is not serving.
    pub(crate) async fn probe(&self, probe: &Probe, headers: HeaderMap) -> Result<(StatusCode, Bytes)> {
        match &probe.target {
            Target::Http { tls, path } => self.http(probe, *tls, path, headers).await,
            Target::Tcp => {
                let connected = tokio::time::timeout(probe.timeout, connect(&probe.host, probe.port)).await;
                connected.with_context(|| format!("no connection within {:?}", probe.timeout))??;
                Ok((StatusCode::OK, Bytes::new()))
            }
            Target::Grpc { service } => {
                let checked = tokio::time::timeout(probe.timeout, check_grpc(probe, service)).await;
                checked.with_context(|| format!("no response within {:?}", probe.timeout))??;
                Ok((StatusCode::OK, Bytes::new()))
            }
        }
    }

    async fn http(&self, probe: &Probe, tls: bool, path: &str, headers: HeaderMap) -> Result<(StatusCode, Bytes)> {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let mut request = HttpRequest {
            headers,
            timeout: probe.timeout,
            max_body_bytes: MAX_BODY_BYTES,
            long_body: LongBody::Truncate,
            ..local_http::get(if tls { "https" } else { "http" }, &probe.host, probe.port, &path)?
        };
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&request, probe).await?;
            if !response.status.is_redirection() {
                return Ok((response.status, response.body));
            }
            let location = response.headers.get(header::LOCATION).and_then(|location| location.to_str().ok());
            let next = location.and_then(|location| request.url.join(location).ok());
            let Some(next) = next.filter(|next| next.host() == request.url.host()) else {
                // A redirect to another host is a success; without its location it must not be passed on.
                return Ok((StatusCode::OK, Bytes::new()));
            };
            request.url = next;
        }
        bail!("more than {MAX_REDIRECTS} redirects")
    }

    /// Sends one request of a probe.
    async fn send(&self, request: &HttpRequest, probe: &Probe) -> Result<HttpResponse> {
        if let Some(tls) = self.http2.as_ref().filter(|_| request.url.scheme() == "https") {
            let port = request.url.port_or_known_default().unwrap_or(probe.port);
            let connected = tokio::time::timeout(request.timeout, connect(&probe.host, port)).await;
            let stream = connected.with_context(|| format!("no connection within {:?}", request.timeout))??;
            return https_probe::send(request, stream, tls.clone()).await;
        }
        let from_source = if source_address(&probe.host).is_ipv4() { &self.from_ipv4 } else { &self.from_ipv6 };
        // A name may have addresses of the other family only, which the source address cannot reach.
        let is_name = probe.host.parse::<IpAddr>().is_err();
        match from_source.send(request.clone()).await {
            Err(error) if error.is_source_address_unavailable() => Ok(self.from_any.send(request.clone()).await?),
            Err(HttpError::Connect { .. }) if is_name => Ok(self.from_any.send(request.clone()).await?),
            response => Ok(response?),
        }
    }
}

/// A TCP connection for a probe, from the source address of probes if the machine has it.
async fn connect(host: &str, port: u16) -> Result<TcpStream> {
    match connect_from(host, port, Some(source_address(host))).await {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => connect_from(host, port, None).await,
        connected => connected,
    }
    .with_context(|| format!("connect to {host}:{port}"))
}

/// Tries the addresses of the host in order; `source` is used for those of its family.
async fn connect_from(host: &str, port: u16, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in lookup_host((host, port)).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        let connected = async {
            if let Some(source) = source.filter(|source| source.is_ipv4() == address.is_ipv4()) {
                socket.bind(SocketAddr::new(source, 0))?;
            }
            socket.connect(address).await
        };
        match connected.await {
            Ok(stream) => return Ok(stream),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`; status 1 is SERVING.
#[derive(Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

async fn check_grpc(probe: &Probe, service: &str) -> Result<()> {
    let (host, port) = (&probe.host, probe.port);
    let mut client = connection::plaintext(connect(host, port).await?, &format!("{host}:{port}")).await?;
    client.ready().await.context("wait for the connection")?;
    let request = HealthRequest { service: service.to_owned() }.encode_to_vec();
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let response = client.unary(tonic::Request::new(Bytes::from(request)), path, Raw).await;
    let response = response.map_err(|status| anyhow::anyhow!("{:?}: {}", status.code(), status.message()))?;
    match HealthResponse::decode(response.into_inner()).context("decode the response")?.status {
        1 => Ok(()),
        status => bail!("the service is not serving (status {status})"),
    }
}
