//! Fetches JSON web key sets with [`HttpClient`].

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::header::{ACCEPT, HeaderValue};
use serde_json::Value;
use sluice_http_client::{HttpClient, HttpClientOptions, HttpError, HttpRequest, PlaintextPolicy, Url};
use sluice_model::JwksKey;
use sluice_tasks::Panicked;

use super::{JwksOptions, tls};

/// Maximum size of a response body.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 10;
/// Path of the OIDC discovery document.
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// A failed fetch. Connection failures, 5xx responses and timeouts are retryable; the schedule retries all failures.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL is malformed, or its scheme is not permitted.
    #[error("`{url}` is not a URL of {schemes}")]
    Url {
        /// The URL.
        url: String,
        /// The permitted schemes.
        schemes: &'static str,
    },
    /// The host has no permitted address.
    #[error("connect to {host}: {reason}")]
    Forbidden {
        /// The host.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The fetch panicked, which is a bug.
    #[error("the fetch {0}")]
    Panicked(#[from] Panicked),
    /// No root certificates are available.
    #[error("no root certificates for the verification of servers")]
    NoRoots,
    /// The connection fails.
    #[error("connect to {host}: {reason}")]
    Connect {
        /// Host and port of the URL.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The HTTP exchange fails.
    #[error("exchange HTTP: {0}")]
    Http(String),
    /// The body cannot be read, or is too large.
    #[error("read the response: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// The status is not a success.
    #[error("the response has status {0}")]
    Status(u16),
    /// There are more redirects than the limit.
    #[error("more than {0} redirects")]
    Redirects(usize),
    /// A redirect leads to a URL that is not permitted.
    #[error("redirect: {0}")]
    Redirect(String),
    /// The discovery document of an issuer with TLS names a key set in plaintext.
    #[error(
        "the discovery document of `{issuer}` names the jwks_uri `{uri}`: only https is accepted for an https issuer"
    )]
    PlaintextKeys {
        /// The issuer.
        issuer: String,
        /// The `jwks_uri` of the document.
        uri: String,
    },
    /// The document is not of the expected form.
    #[error("{0}")]
    Content(&'static str),
    /// No complete response in time.
    #[error("no response within {} s", .0.as_secs_f64())]
    Timeout(Duration),
}

impl From<HttpError> for FetchError {
    fn from(error: HttpError) -> Self {
        match error {
            // The URL of the request has been checked before.
            HttpError::Url(reason) => Self::Redirect(reason),
            HttpError::PlaintextRedirect => Self::Redirect("plaintext is refused".to_owned()),
            HttpError::BlockedAddress { host, reason } => Self::Forbidden { host, reason },
            HttpError::NoRoots => Self::NoRoots,
            HttpError::TooManyRedirects(limit) => Self::Redirects(limit),
            HttpError::Connect { host, reason, .. } => Self::Connect { host, reason },
            HttpError::Exchange(reason) | HttpError::Setup(reason) => Self::Http(reason),
            HttpError::BodyTooLong(_) => Self::Body(error.into()),
            HttpError::Status(status) => Self::Status(status.as_u16()),
            HttpError::Timeout(timeout) => Self::Timeout(timeout),
        }
    }
}

/// Fetches JSON web key sets.
#[derive(Debug)]
pub struct JwksClient {
    /// The client, and the version of the file of roots that it was made with.
    http: Mutex<(Option<FileVersion>, HttpClient)>,
    options: JwksOptions,
    plaintext: PlaintextPolicy,
}

/// Modification time and length of a file.
type FileVersion = (SystemTime, u64);

impl JwksClient {
    /// A client with these options. The file of roots is read again when it has changed.
    ///
    /// # Errors
    /// The HTTP client cannot be set up.
    pub fn new(options: &JwksOptions) -> Result<Self, HttpError> {
        // Keys that an issuer serves over TLS are never fetched in plaintext, where anyone on the way could replace them.
        let plaintext = if options.https_only { PlaintextPolicy::Refused } else { PlaintextPolicy::NotAfterTls };
        let version = file_version(&options.extra_roots);
        let http = Mutex::new((version, http_client(options, plaintext)?));
        Ok(Self { http, options: options.clone(), plaintext })
    }

    /// The client with the current roots.
    fn http(&self) -> Result<HttpClient, HttpError> {
        let version = file_version(&self.options.extra_roots);
        let mut current = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != version {
            *current = (version, http_client(&self.options, self.plaintext)?);
        }
        Ok(current.1.clone())
    }

    /// The text of a key set, from its URL or the one that OIDC discovery names.
    ///
    /// # Errors
    /// The fetch fails or times out, or the document is not a key set.
    pub async fn fetch(&self, key: &JwksKey, timeout: Duration) -> Result<String, FetchError> {
        // Discovery and the request of the key set share the time.
        let fetched = tokio::time::timeout(timeout, async {
            let uri = if key.uri.is_empty() { self.discover(&key.issuer, timeout).await? } else { key.uri.to_string() };
            let text = self.get(&uri, timeout).await?;
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
    async fn discover(&self, issuer: &str, timeout: Duration) -> Result<String, FetchError> {
        let issuer = issuer.strip_suffix('/').unwrap_or(issuer);
        let text = self.get(&format!("{issuer}{DISCOVERY_PATH}"), timeout).await?;
        let configuration: Option<Value> = serde_json::from_str(&text).ok();
        let uri =
            configuration.as_ref().and_then(|configuration| configuration.get("jwks_uri")).and_then(Value::as_str);
        let uri = uri.ok_or(FetchError::Content("the discovery document has no jwks_uri"))?;
        let has_tls = |url: &str| Url::parse(url).is_ok_and(|url| url.scheme() == "https");
        if has_tls(issuer) && !has_tls(uri) {
            return Err(FetchError::PlaintextKeys { issuer: issuer.to_owned(), uri: uri.to_owned() });
        }
        Ok(uri.to_owned())
    }

    async fn get(&self, uri: &str, timeout: Duration) -> Result<String, FetchError> {
        let allows_plaintext = self.plaintext != PlaintextPolicy::Refused;
        let is_allowed = |url: &Url| url.scheme() == "https" || url.scheme() == "http" && allows_plaintext;
        let schemes = if allows_plaintext { "http or https" } else { "https" };
        let url = Url::parse(uri).ok().filter(is_allowed);
        let url = url.ok_or_else(|| FetchError::Url { url: uri.to_owned(), schemes })?;
        let mut request = HttpRequest {
            timeout,
            max_body_bytes: MAX_RESPONSE_BYTES,
            requires_success: true,
            ..HttpRequest::get(url)
        };
        request.headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        let response = self.http()?.send(request).await?;
        String::from_utf8(response.body.into()).map_err(|error| FetchError::Body(error.into()))
    }
}

fn http_client(options: &JwksOptions, plaintext: PlaintextPolicy) -> Result<HttpClient, HttpError> {
    HttpClient::new(HttpClientOptions {
        tls: tls::client_config(&options.extra_roots, options.skip_verify),
        blocked: options.blocked.clone(),
        plaintext,
        max_redirects: MAX_REDIRECTS,
        local_address: None,
        user_agent: concat!("sluice/", env!("CARGO_PKG_VERSION")),
    })
}

/// `None` if the file does not exist.
fn file_version(file: &Path) -> Option<FileVersion> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
