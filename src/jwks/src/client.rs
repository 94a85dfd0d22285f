//! Fetches JSON web key sets over HTTP and HTTPS.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, LOCATION, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use sluice_model::JwksKey;
use sluice_parse::forbidden_address;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{JwksOptions, tls};

/// Largest response body.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Most redirects of one fetch.
const MAX_REDIRECTS: usize = 10;
/// Path of the OIDC discovery document.
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// A failed fetch. Connection failures, 5xx responses and timeouts are retryable; the schedule retries all.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL is invalid.
    #[error("`{0}` is not a URL of http or https")]
    Address(String),
    /// The host has no permitted address.
    #[error("connect to {host}: {reason}")]
    Forbidden {
        /// The host.
        host: String,
        /// The reason.
        reason: String,
    },
    /// No roots are available.
    #[error("no root certificates for the verification of servers")]
    NoRoots,
    /// The connection fails.
    #[error("connect to {host}: {error}")]
    Connect {
        /// The host.
        host: String,
        /// Why.
        error: std::io::Error,
    },
    /// The HTTP exchange fails.
    #[error("exchange HTTP: {0}")]
    Http(#[from] hyper::Error),
    /// The body cannot be read, or is too large.
    #[error("read the response: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The status is not a success.
    #[error("the response has status {0}")]
    Status(u16),
    /// Too many redirects.
    #[error("more than {MAX_REDIRECTS} redirects")]
    Redirects,
    /// The document is not of the expected form.
    #[error("{0}")]
    Content(&'static str),
    /// No complete response in time.
    #[error("no response within {} s", .0.as_secs_f64())]
    Timeout(Duration),
}

/// Fetches JSON web key sets.
#[derive(Debug)]
pub struct JwksClient {
    tls: Option<Arc<ClientConfig>>,
    blocked: Vec<IpNet>,
    only_secure: bool,
}

impl JwksClient {
    /// A client with these options. The file of roots is read once.
    #[must_use]
    pub fn new(options: &JwksOptions) -> Self {
        let tls = tls::client_config(&options.extra_roots, options.skip_verify);
        Self { tls, blocked: options.blocked.clone(), only_secure: false }
    }

    /// A client that accepts https only, redirects included.
    #[must_use]
    pub fn only_secure(self) -> Self {
        Self { only_secure: true, ..self }
    }

    /// The text of a key set, from its URL or the one that OIDC discovery names.
    ///
    /// # Errors
    /// The fetch fails or times out, or the document is not a key set.
    pub async fn fetch(&self, key: &JwksKey, timeout: Duration) -> Result<String, FetchError> {
        let fetched = tokio::time::timeout(timeout, async {
            let uri = if key.uri.is_empty() { self.discover(&key.issuer).await? } else { key.uri.to_string() };
            let text = self.get(&uri).await?;
            // Only key sets may reach proxies: any other document could be a secret of the server.
            let set: Option<Value> = serde_json::from_str(&text).ok();
            match set.as_ref().and_then(|set| set.get("keys")) {
                Some(Value::Array(_)) => Ok(text),
                _ => Err(FetchError::Content("the document is not a JSON web key set")),
            }
        });
        fetched.await.unwrap_or(Err(FetchError::Timeout(timeout)))
    }

    /// The URL of the key set in the discovery document of an issuer.
    async fn discover(&self, issuer: &str) -> Result<String, FetchError> {
        let issuer = issuer.strip_suffix('/').unwrap_or(issuer);
        let text = self.get(&format!("{issuer}{DISCOVERY_PATH}")).await?;
        let configuration: Option<Value> = serde_json::from_str(&text).ok();
        let uri =
            configuration.as_ref().and_then(|configuration| configuration.get("jwks_uri")).and_then(Value::as_str);
        uri.map(str::to_owned).ok_or(FetchError::Content("the discovery document has no jwks_uri"))
    }

    async fn get(&self, uri: &str) -> Result<String, FetchError> {
        let mut uri = uri.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let parsed: Uri = uri.parse().map_err(|_| FetchError::Address(uri.clone()))?;
            let response = self.request(&parsed).await?;
            let status = response.status();
            if status.is_redirection()
                && let Some(next) = response.headers().get(LOCATION).and_then(|next| next.to_str().ok())
            {
                uri = resolve(&parsed, next);
                continue;
            }
            if !status.is_success() {
                return Err(FetchError::Status(status.as_u16()));
            }
            let body =
                Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await.map_err(FetchError::Body)?;
            return String::from_utf8(body.to_bytes().to_vec()).map_err(|error| FetchError::Body(error.into()));
        }
        Err(FetchError::Redirects)
    }

    async fn request(&self, uri: &Uri) -> Result<Response<Incoming>, FetchError> {
        let bad = || FetchError::Address(uri.to_string());
        let authority = uri.authority().ok_or_else(bad)?;
        let host = authority.host().trim_matches(['[', ']']);
        let (secure, default) = match uri.scheme_str() {
            Some("http") if !self.only_secure => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(bad()),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let shown = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, host)| host);
        let request = Request::get(path)
            .header(HOST, shown)
            .header(USER_AGENT, concat!("sluice/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json, */*")
            .body(Empty::<Bytes>::new())
            .map_err(|_| bad())?;
        let stream = self.connect(host, authority.port_u16().unwrap_or(default)).await?;
        if !secure {
            return send(stream, request).await;
        }
        let config = self.tls.clone().ok_or(FetchError::NoRoots)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|_| bad())?;
        let stream = TlsConnector::from(config).connect(name, stream).await;
        send(stream.map_err(|error| FetchError::Connect { host: host.to_owned(), error })?, request).await
    }

    /// Connects to a permitted address of the host. The name is resolved once: the checked address is the one connected to.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, FetchError> {
        let fail = |error| FetchError::Connect { host: host.to_owned(), error };
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => tokio::net::lookup_host((host, port)).await.map_err(fail)?.collect(),
        };
        let mut last = FetchError::Forbidden { host: host.to_owned(), reason: "the host has no address".to_owned() };
        for address in found {
            last = match forbidden_address(address.ip(), &self.blocked) {
                Some(reason) => FetchError::Forbidden { host: host.to_owned(), reason },
                None => match TcpStream::connect(address).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => fail(error),
                },
            };
        }
        Err(last)
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Incoming>, FetchError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the body of the response, or when the body is dropped.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

/// The target of a redirect.
fn resolve(from: &Uri, to: &str) -> String {
    let origin = |scheme: &str| format!("{scheme}://{}", from.authority().map_or("", |authority| authority.as_str()));
    let scheme = from.scheme_str().unwrap_or("http");
    if to.contains("://") {
        return to.to_owned();
    }
    if let Some(rest) = to.strip_prefix("//") {
        return format!("{scheme}://{rest}");
    }
    if to.starts_with('/') {
        return format!("{}{to}", origin(scheme));
    }
    let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{}{folder}/{to}", origin(scheme))
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn redirects_may_be_relative() {
        let from = "https://h:1/a/b?c".parse().expect("an address");
        let check = |to: &str, expect: &str| assert_eq!(resolve(&from, to), expect);
        check("http://x/y", "http://x/y");
        check("//x/y", "https://x/y");
        check("/y", "https://h:1/y");
        check("y", "https://h:1/a/y");
    }
}
