//! Probes of the application over HTTP, TCP and gRPC.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use prost::Message;

use crate::codec::Raw;
use crate::connection;
use crate::http_client::{Ask, connect};

/// Most bytes of an answer that are passed on.
const MOST_BODY: usize = 10 << 10;
/// Most redirects that are followed.
const MOST_REDIRECTS: usize = 10;

/// What is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Target {
    Http { tls: bool, path: String },
    Tcp,
    Grpc { service: String },
}

/// A probe.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Probe {
    pub(crate) target: Target,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) timeout: Duration,
}

/// Address that probes come from: Envoy passes them on to the application as they are, like those of the kubelet.
fn source(host: &str) -> Option<IpAddr> {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => Some(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 6])),
        _ => Some(IpAddr::from([127, 0, 0, 6])),
    }
}

/// Sends it and says what the application answered: for HTTP status and the beginning of the body.
///
/// # Errors
/// There is no answer, or a gRPC service that does not serve.
pub(crate) async fn probe(probe: &Probe, headers: HeaderMap) -> Result<(StatusCode, Bytes)> {
    match &probe.target {
        Target::Http { tls, path } => http(probe, *tls, path, headers).await,
        Target::Tcp => {
            let connected = tokio::time::timeout(probe.timeout, open(probe)).await;
            connected.with_context(|| format!("no connection within {:?}", probe.timeout))??;
            Ok((StatusCode::OK, Bytes::new()))
        }
        Target::Grpc { service } => {
            let answer = tokio::time::timeout(probe.timeout, grpc(probe, service)).await;
            answer.with_context(|| format!("no answer within {:?}", probe.timeout))??;
            Ok((StatusCode::OK, Bytes::new()))
        }
    }
}

async fn open(probe: &Probe) -> Result<tokio::net::TcpStream> {
    match connect(&probe.host, probe.port, source(&probe.host)).await {
        Ok(stream) => Ok(stream),
        // Where that address is not the machine's, any other does.
        Err(error) if is_no_such_address(&error) => connect(&probe.host, probe.port, None).await,
        Err(error) => Err(error),
    }
}

fn is_no_such_address(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::AddrNotAvailable)
}

async fn http(probe: &Probe, tls: bool, path: &str, headers: HeaderMap) -> Result<(StatusCode, Bytes)> {
    let mut path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let (mut tls, mut port) = (tls, probe.port);
    for _ in 0..=MOST_REDIRECTS {
        let send = |from| {
            let ask = Ask {
                headers: headers.clone(),
                tls,
                from,
                timeout: probe.timeout,
                most: MOST_BODY,
                cut: true,
                ..Ask::new(Method::GET, &probe.host, port, &path)
            };
            ask.send()
        };
        let answer = match send(source(&probe.host)).await {
            Err(error) if is_no_such_address(&error) => send(None).await,
            answer => answer,
        };
        let (status, answered, body) = answer?;
        if !status.is_redirection() {
            return Ok((status, body));
        }
        let location =
            answered.get(header::LOCATION).and_then(|to| to.to_str().ok()).and_then(|to| to.parse::<Uri>().ok());
        let Some(location) = location.filter(|to| to.host().is_none_or(|host| host == probe.host)) else {
            // A redirect to elsewhere is an answer; without its location it must not be passed on.
            return Ok((StatusCode::OK, Bytes::new()));
        };
        if location.host().is_some() {
            tls = location.scheme_str() == Some("https");
            port = location.port_u16().unwrap_or(if tls { 443 } else { 80 });
        }
        path = location.path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    }
    bail!("more than {MOST_REDIRECTS} redirects")
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`; 1 is serving.
#[derive(Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

async fn grpc(probe: &Probe, service: &str) -> Result<()> {
    let mut client = connection::plaintext(open(probe).await?, &format!("{}:{}", probe.host, probe.port)).await?;
    client.ready().await.context("use the connection")?;
    let request = HealthRequest { service: service.to_owned() }.encode_to_vec();
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let answer = client.unary(tonic::Request::new(Bytes::from(request)), path, Raw).await;
    let answer = answer.map_err(|status| anyhow::anyhow!("{:?}: {}", status.code(), status.message()))?;
    match HealthResponse::decode(answer.into_inner()).context("read the answer")?.status {
        1 => Ok(()),
        status => bail!("the service is not serving (status {status})"),
    }
}
