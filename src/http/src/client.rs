//! The client and its requests.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use ipnet::IpNet;
use reqwest::Url;
use reqwest::redirect::{Attempt, Policy};
use rustls::ClientConfig;

use crate::HttpError;
use crate::error::Refusal;
use crate::resolver::{FilteringResolver, check_literal};

/// When plaintext HTTP is allowed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PlaintextPolicy {
    /// In the request's own URL and in redirects.
    #[default]
    Allowed,
    /// In the request's own URL, and in redirects of plaintext requests.
    NotAfterTls,
    /// Never.
    Refused,
}

/// Settings of a client.
#[derive(Debug, Default)]
pub struct HttpClientOptions {
    /// TLS settings, which verify servers. Without them, requests over TLS fail with [`HttpError::NoRoots`].
    pub tls: Option<ClientConfig>,
    /// Networks that the client never connects to, in addition to link-local addresses and metadata servers of clouds.
    pub blocked: Vec<IpNet>,
    /// When plaintext HTTP is allowed.
    pub plaintext: PlaintextPolicy,
    /// Maximum number of redirects that are followed; with 0, a redirect is the response.
    pub max_redirects: usize,
    /// Source address of connections to addresses of the same family.
    pub local_address: Option<IpAddr>,
    /// Header `User-Agent`; empty for none.
    pub user_agent: &'static str,
}

/// The treatment of a response body that exceeds the limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LongBody {
    /// The request fails.
    #[default]
    Fail,
    /// The rest is dropped.
    Truncate,
}

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// Its method.
    pub method: Method,
    /// Its URL. A user and password in it are ignored: credentials are a header.
    pub url: Url,
    /// Its headers. They replace headers that the client sets.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// Time limit of the whole request: name resolution, connection, redirects and body.
    pub timeout: Duration,
    /// Limit on the size of the response body.
    pub max_body_bytes: usize,
    /// The treatment of a longer body.
    pub long_body: LongBody,
    /// A response of another status than success is [`HttpError::Status`], and its body is not read.
    pub requires_success: bool,
}

impl HttpRequest {
    /// A GET request with a time limit of 3 seconds and a size limit of 64 MiB for the response body.
    #[must_use]
    pub fn get(url: Url) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: Duration::from_secs(3),
            max_body_bytes: 64 << 20,
            long_body: LongBody::Fail,
            requires_success: false,
        }
    }
}

/// A response with any status.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// The address of the server, after redirects.
    pub peer: Option<IpAddr>,
}

/// Sends requests, each on a separate connection. Clones share the settings.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: reqwest::Client,
    blocked: Arc<[IpNet]>,
    plaintext: PlaintextPolicy,
    has_tls: bool,
}

impl HttpClient {
    /// A client with these settings.
    ///
    /// # Errors
    /// TLS cannot be set up, or the settings are invalid.
    pub fn new(options: HttpClientOptions) -> Result<Self, HttpError> {
        let HttpClientOptions { tls, blocked, plaintext, max_redirects, local_address, user_agent } = options;
        let blocked: Arc<[IpNet]> = blocked.into();
        let has_tls = tls.is_some();
        let mut tls = tls.map_or_else(without_roots, Ok)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .http1_only()
            .no_proxy()
            .referer(false)
            .pool_max_idle_per_host(0)
            .local_address(local_address)
            .dns_resolver(Arc::new(FilteringResolver { blocked: blocked.clone() }))
            .redirect(redirects(max_redirects, plaintext, has_tls, blocked.clone()));
        if !user_agent.is_empty() {
            builder = builder.user_agent(user_agent);
        }
        let client = builder.build().map_err(|error| HttpError::setup(&error))?;
        Ok(Self { client, blocked, plaintext, has_tls })
    }

    /// Sends a request and reads the response.
    ///
    /// # Errors
    /// There is no response in time, it is too long, or the URL or a redirect must not be followed. The status of a
    /// response is checked only if the request requires success.
    pub async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let timeout = request.timeout;
        let response = tokio::time::timeout(timeout, self.exchange(request)).await;
        response.unwrap_or(Err(HttpError::Timeout(timeout)))
    }

    /// Sends a request, and passes each part of the response's body to `on_chunk` with the status as it arrives. Returns the
    /// status.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn receive(
        &self,
        request: HttpRequest,
        on_chunk: &mut (dyn FnMut(StatusCode, &[u8]) + Send),
    ) -> Result<StatusCode, HttpError> {
        let timeout = request.timeout;
        let received = tokio::time::timeout(timeout, self.exchange_in_parts(request, on_chunk)).await;
        received.unwrap_or(Err(HttpError::Timeout(timeout))).map(|response| response.status)
    }

    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut body = BytesMut::new();
        let response = self.exchange_in_parts(request, &mut |_, chunk| body.extend_from_slice(chunk)).await?;
        Ok(HttpResponse { body: body.freeze(), ..response })
    }

    /// The response, with an empty body.
    async fn exchange_in_parts(
        &self,
        request: HttpRequest,
        on_chunk: &mut (dyn FnMut(StatusCode, &[u8]) + Send),
    ) -> Result<HttpResponse, HttpError> {
        let HttpRequest { method, mut url, headers, body, max_body_bytes, long_body, requires_success, .. } = request;
        match url.scheme() {
            "http" if self.plaintext != PlaintextPolicy::Refused => {}
            "https" if self.has_tls => {}
            "https" => return Err(HttpError::NoRoots),
            scheme => return Err(Refusal::Scheme(scheme.to_owned()).into()),
        }
        check_literal(&url, &self.blocked)?;
        // `reqwest` would send the user and the password in a header.
        let cannot_have_user = url.set_username("").is_err() || url.set_password(None).is_err();
        let Some(host) = url.host_str().filter(|_| !cannot_have_user) else {
            return Err(HttpError::Url("the URL has no host".to_owned()));
        };
        let host = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let failed = |error: reqwest::Error| HttpError::from_reqwest(&error, &host);
        let mut response = self.client.request(method, url).headers(headers).body(body).send().await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let peer = response.remote_addr().map(|address| address.ip().to_canonical());
        if requires_success && !status.is_success() {
            return Err(HttpError::Status(status));
        }
        let mut free = max_body_bytes;
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if chunk.len() > free && long_body == LongBody::Fail {
                return Err(HttpError::BodyTooLong(max_body_bytes));
            }
            let part = &chunk[..chunk.len().min(free)];
            on_chunk(status, part);
            free -= part.len();
            if free == 0 && long_body == LongBody::Truncate {
                break;
            }
        }
        Ok(HttpResponse { status, headers, body: Bytes::new(), peer })
    }
}

/// TLS without roots, for a client without TLS settings. Requests over TLS fail before they use it.
fn without_roots() -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| HttpError::Setup(error.to_string()))?;
    Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

/// The redirects that are followed. `reqwest` removes credentials when scheme, host or port change.
fn redirects(limit: usize, plaintext: PlaintextPolicy, has_tls: bool, blocked: Arc<[IpNet]>) -> Policy {
    if limit == 0 {
        return Policy::none();
    }
    let check = move |attempt: &Attempt<'_>| {
        if attempt.previous().len() > limit {
            return Err(Refusal::TooManyRedirects(limit));
        }
        let was_tls = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
        let refused = match plaintext {
            PlaintextPolicy::Allowed => false,
            PlaintextPolicy::NotAfterTls => was_tls,
            PlaintextPolicy::Refused => true,
        };
        match attempt.url().scheme() {
            "http" if refused => return Err(Refusal::PlaintextRedirect),
            "https" if !has_tls => return Err(Refusal::NoRoots),
            "http" | "https" => {}
            scheme => return Err(Refusal::Scheme(scheme.to_owned())),
        }
        check_literal(attempt.url(), &blocked)
    };
    Policy::custom(move |attempt| match check(&attempt) {
        Ok(()) => attempt.follow(),
        Err(refusal) => attempt.error(refusal),
    })
}
