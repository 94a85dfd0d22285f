//! Requests to servers of modules and registries: bounded in time and size, tried again, redirected with care.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, LOCATION, USER_AGENT};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use rand::Rng as _;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sluice_parse::forbidden_address;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tracing::debug;
use zeroize::Zeroizing;

use crate::settings::WasmSettings;

/// Most redirections that are followed.
const MOST_REDIRECTIONS: usize = 10;

/// Makes requests.
pub(super) struct Client {
    tls: Option<Arc<ClientConfig>>,
    blocked: Vec<IpNet>,
    timeout: Duration,
    attempts: u32,
    pause: Duration,
    most_bytes: usize,
}

/// What is asked for.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) uri: Uri,
    pub(super) accept: &'static str,
    /// The header's value; it goes nowhere but to this very server.
    pub(super) authorization: Option<Zeroizing<String>>,
    /// The server need not show who it is.
    pub(super) insecure: bool,
}

/// What a server says.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no answer.
enum Failure {
    /// It may work the next time.
    Passing(anyhow::Error),
    Final(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Final(error)
    }
}

impl Client {
    pub(super) fn new(settings: &WasmSettings, tls: Option<ClientConfig>) -> Self {
        let tls = tls.map(|mut tls| {
            tls.alpn_protocols = vec![b"http/1.1".to_vec()];
            Arc::new(tls)
        });
        Self {
            tls,
            blocked: settings.blocked.clone(),
            timeout: settings.request_timeout,
            attempts: settings.attempts,
            pause: settings.pause,
            most_bytes: settings.most_bytes,
        }
    }

    /// Asks, several times if need be, and follows redirections.
    ///
    /// # Errors
    /// There is no answer, or it is too long. An answer that says no is one.
    pub(super) async fn get(&self, ask: &Ask) -> Result<Answer> {
        let mut pause = self.pause;
        for attempt in 1.. {
            let failure = match tokio::time::timeout(self.timeout, self.follow(ask)).await {
                Ok(Ok(answer)) if !is_passing(answer.status) || attempt >= self.attempts => return Ok(answer),
                Ok(Ok(answer)) => anyhow!("the answer is {}", answer.status),
                Ok(Err(Failure::Final(error))) => return Err(error),
                Ok(Err(Failure::Passing(error))) => error,
                Err(_) => anyhow!("no answer within {:?}", self.timeout),
            };
            if attempt >= self.attempts {
                return Err(failure);
            }
            debug!(target: "wasm", attempt, "{}: {failure:#}", shown(&ask.uri.to_string()));
            // Proxies that start together need not ask together.
            let jitter = rand::rng().random_range(0.5..1.5);
            tokio::time::sleep(pause.mul_f64(jitter)).await;
            pause = pause.mul_f64(1.5);
        }
        bail!("it was not asked for")
    }

    async fn follow(&self, ask: &Ask) -> Result<Answer, Failure> {
        let mut ask = ask.clone();
        for _ in 0..=MOST_REDIRECTIONS {
            let answer = self.request(&ask).await?;
            let next = answer.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            let Some(next) = next.filter(|_| answer.status().is_redirection()) else { return self.read(answer).await };
            let from = std::mem::take(&mut ask.uri);
            let next: Uri = resolve(&from, next).parse().context("it is redirected to what is no address")?;
            if from.scheme() != next.scheme() && from.scheme_str() == Some("https") && !ask.insecure {
                return Err(anyhow!("it is redirected from TLS to plaintext").into());
            }
            if server_of(&from) != server_of(&next) {
                ask.authorization = None;
            }
            ask.uri = next;
        }
        Err(anyhow!("it is redirected too often").into())
    }

    async fn request(&self, ask: &Ask) -> Result<http::Response<Incoming>, Failure> {
        let authority = ask.uri.authority().context("the address has no host")?;
        let host = authority.host().trim_matches(['[', ']']);
        let (secure, default) = match ask.uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(anyhow!("the address is neither of http nor of https").into()),
        };
        let path = ask.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path)
            .header(HOST, without_user(authority.as_str()))
            .header(USER_AGENT, concat!("sluice-agent/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, ask.accept)
            .body(Empty::<Bytes>::new())
            .context("the address is none")?;
        if let Some(authorization) = &ask.authorization {
            let value = HeaderValue::from_str(authorization);
            let Ok(mut value) = value else { return Err(anyhow!("the credentials cannot be sent").into()) };
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let stream = self.connect(host, authority.port_u16().unwrap_or(default)).await?;
        if !secure {
            return send(stream, request).await;
        }
        let config = match (ask.insecure, &self.tls) {
            (true, _) => Arc::new(sluice_crypto::takes_everybody().context("set up TLS")?),
            (false, Some(config)) => Arc::clone(config),
            (false, None) => return Err(anyhow!("the machine has no roots to verify servers with").into()),
        };
        let name = ServerName::try_from(host.to_owned()).with_context(|| format!("{host:?} is no name of a server"))?;
        let stream = TlsConnector::from(config).connect(name, stream).await;
        let stream = stream.with_context(|| format!("verify {host}")).map_err(Failure::Passing)?;
        send(stream, request).await
    }

    /// Connects to an address of the host that may be asked. The name is looked up once, so that what is checked is what
    /// is connected to.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, Failure> {
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => {
                let found = tokio::net::lookup_host((host, port)).await.with_context(|| format!("find {host}"));
                found.map_err(Failure::Passing)?.collect()
            }
        };
        let mut last = Failure::Final(anyhow!("{host} has no address"));
        for address in found {
            last = match forbidden_address(address.ip(), &self.blocked) {
                Some(reason) => Failure::Final(anyhow!("connect to {host}: {reason}")),
                None => match TcpStream::connect(address).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => Failure::Passing(anyhow!(error).context(format!("connect to {host}:{port}"))),
                },
            };
        }
        Err(last)
    }

    async fn read(&self, answer: http::Response<Incoming>) -> Result<Answer, Failure> {
        let (head, mut body) = answer.into_parts();
        let too_long = || Failure::Final(anyhow!("the answer is longer than {} bytes", self.most_bytes));
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.context("read the answer").map_err(Failure::Passing)?;
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > self.most_bytes - bytes.len() {
                return Err(too_long());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Answer { status: head.status, headers: head.headers, body: bytes.into() })
    }
}

async fn send<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<http::Response<Incoming>, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let exchange = async {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the answer's body, or when that is dropped.
        tokio::spawn(connection);
        sender.send_request(request).await
    };
    exchange.await.context("exchange HTTP").map_err(Failure::Passing)
}

/// Whether a server may answer otherwise the next time.
fn is_passing(status: StatusCode) -> bool {
    let lasting = [
        StatusCode::NOT_IMPLEMENTED,
        StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        StatusCode::NETWORK_AUTHENTICATION_REQUIRED,
    ];
    status.is_server_error() && !lasting.contains(&status)
}

/// Whom an address is of.
fn server_of(uri: &Uri) -> (Option<&str>, Option<&str>) {
    (uri.scheme_str(), uri.authority().map(|authority| without_user(authority.as_str())))
}

/// A host without who may have been named before it.
fn without_user(authority: &str) -> &str {
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// An address as a log may show it: without user, password and parameters.
pub(super) fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", without_user(authority))
}

/// The address a redirection leads to.
fn resolve(from: &Uri, to: &str) -> String {
    let scheme = from.scheme_str().unwrap_or("http");
    let origin = format!("{scheme}://{}", from.authority().map_or("", |authority| without_user(authority.as_str())));
    if to.contains("://") {
        to.to_owned()
    } else if to.starts_with("//") {
        format!("{scheme}:{to}")
    } else if to.starts_with('/') {
        format!("{origin}{to}")
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{origin}{folder}/{to}")
    }
}

/// An answer that says yes.
///
/// # Errors
/// It says no.
pub(super) fn accepted(answer: Answer) -> Result<Answer> {
    ensure!(answer.status.is_success(), "the answer is {}", answer.status);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_what_may_be_secret() {
        assert_eq!(shown("https://me:hush@h:1/a?token=hush#x"), "https://h:1/a");
        assert_eq!(shown("oci://h/a@sha256:1"), "oci://h/a@sha256:1");
        assert_eq!(shown("x"), "x");
    }

    #[test]
    fn redirections_may_be_relative() {
        let from = "https://u@h:1/a/b?c".parse().expect("an address");
        for (to, expected) in
            [("http://x/y", "http://x/y"), ("//x/y", "https://x/y"), ("/y", "https://h:1/y"), ("y", "https://h:1/a/y")]
        {
            assert_eq!(resolve(&from, to), expected);
        }
    }

    #[test]
    fn only_some_refusals_pass() {
        let passing = |code: u16| is_passing(StatusCode::from_u16(code).expect("a status"));
        assert!([500, 502, 503].into_iter().all(passing));
        assert!(![404, 401, 501, 505, 511].into_iter().any(passing));
    }
}
