//! Requests to module servers and registries, with retries.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::StatusCode;
use http::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use ipnet::IpNet;
use rand::Rng as _;
use rustls::ClientConfig;
use sluice_http_client::{HttpClient, HttpClientOptions, HttpRequest, HttpResponse, PlaintextPolicy, Url};
use tracing::debug;
use zeroize::Zeroizing;

use crate::settings::WasmSettings;

const MAX_REDIRECTS: usize = 10;
const USER_AGENT: &str = concat!("sluice-agent/", env!("CARGO_PKG_VERSION"));

/// Sends requests. Requests that fail for a temporary reason are repeated.
pub(super) struct RetryingClient {
    /// Verifies servers.
    verifying: Option<ClientConfig>,
    /// For servers that the settings declare as insecure.
    unverified: ClientConfig,
    blocked: Vec<IpNet>,
    request_timeout: Duration,
    max_attempts: u32,
    retry_delay: Duration,
    max_bytes: usize,
}

/// A GET request.
#[derive(Clone)]
pub(super) struct FetchRequest {
    pub(super) url: Url,
    pub(super) accept: &'static str,
    /// Value of the header `Authorization`. It is sent to the origin of `url` only, not to where it redirects.
    pub(super) authorization: Option<Zeroizing<String>>,
    /// `authorization` holds credentials or was received for them: neither the request nor its redirects are plaintext.
    pub(super) is_secret: bool,
    /// Networks that the client does not connect to, in addition to those of the settings.
    pub(super) blocked: Vec<IpNet>,
    /// The server's certificate is not verified.
    pub(super) insecure: bool,
}

impl RetryingClient {
    /// # Errors
    /// TLS cannot be set up.
    pub(super) fn new(settings: &WasmSettings, tls: Option<ClientConfig>) -> Result<Self> {
        Ok(Self {
            verifying: tls,
            unverified: sluice_crypto::client_without_verification().context("set up TLS")?,
            blocked: settings.blocked.clone(),
            request_timeout: settings.request_timeout,
            max_attempts: settings.max_attempts,
            retry_delay: settings.retry_delay,
            max_bytes: settings.max_bytes,
        })
    }

    /// The client for a request. A redirect from TLS to plaintext is an error, unless the server is insecure anyway.
    fn client(&self, fetch: &FetchRequest) -> Result<HttpClient> {
        let plaintext = match (fetch.is_secret, fetch.insecure) {
            (true, _) => PlaintextPolicy::Refused,
            (false, true) => PlaintextPolicy::Allowed,
            (false, false) => PlaintextPolicy::NotAfterTls,
        };
        let client = HttpClient::new(HttpClientOptions {
            tls: if fetch.insecure { Some(self.unverified.clone()) } else { self.verifying.clone() },
            blocked: self.blocked.iter().chain(&fetch.blocked).copied().collect(),
            plaintext,
            max_redirects: MAX_REDIRECTS,
            local_address: None,
            user_agent: USER_AGENT,
        });
        client.context("set up the HTTP client")
    }

    /// Sends a request, repeats it after a temporary failure, and follows redirects.
    ///
    /// # Errors
    /// There is no response, or it is too long. The status of a response is not checked.
    pub(super) async fn get(&self, fetch: &FetchRequest) -> Result<HttpResponse> {
        if fetch.is_secret && fetch.url.scheme() != "https" {
            bail!("credentials are not sent in plaintext: use https");
        }
        let mut request = HttpRequest {
            timeout: self.request_timeout,
            max_body_bytes: self.max_bytes,
            ..HttpRequest::get(fetch.url.clone())
        };
        request.headers.insert(ACCEPT, HeaderValue::from_static(fetch.accept));
        if let Some(authorization) = &fetch.authorization {
            // The error of the conversion is dropped: it may quote the value.
            let Ok(mut value) = HeaderValue::from_str(authorization) else {
                bail!("the credentials cannot be sent in a header")
            };
            value.set_sensitive(true);
            request.headers.insert(AUTHORIZATION, value);
        }
        let client = self.client(fetch)?;
        let mut delay = self.retry_delay;
        for attempt in 1.. {
            let is_last = attempt >= self.max_attempts;
            let failure = match client.send(request.clone()).await {
                Ok(response) if is_last || !is_retryable(response.status) => return Ok(response),
                Ok(response) => format!("the response has status {}", response.status),
                Err(error) if is_last || !error.is_retryable() => return Err(error.into()),
                Err(error) => error.to_string(),
            };
            debug!(target: "wasm", attempt, url = redacted(fetch.url.as_str()), failure, "request failed, it is retried");
            // Proxies that start at the same time should not retry at the same time.
            let jitter = rand::rng().random_range(0.5..1.5);
            tokio::time::sleep(delay.mul_f64(jitter)).await;
            delay = delay.mul_f64(1.5);
        }
        bail!("the number of attempts is 0")
    }
}

/// Whether a later response may have another status.
fn is_retryable(status: StatusCode) -> bool {
    let permanent = [
        StatusCode::NOT_IMPLEMENTED,
        StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        StatusCode::NETWORK_AUTHENTICATION_REQUIRED,
    ];
    status.is_server_error() && !permanent.contains(&status)
}

/// A URL for logs and errors: without the parts that may hold a secret (user, password, query, fragment).
pub(super) fn redacted(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// A response with a success status.
///
/// # Errors
/// The status is not a success.
pub(super) fn success(response: HttpResponse) -> Result<HttpResponse> {
    ensure!(response.status.is_success(), "the response has status {}", response.status);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_url_has_no_part_that_may_be_secret() {
        assert_eq!(redacted("https://me:hush@h:1/a?token=hush#x"), "https://h:1/a");
        assert_eq!(redacted("oci://h/a@sha256:1"), "oci://h/a@sha256:1");
        assert_eq!(redacted("x"), "x");
    }

    #[test]
    fn only_some_server_errors_are_retried() {
        let retryable = |code: u16| is_retryable(StatusCode::from_u16(code).expect("a status"));
        assert!([500, 502, 503].into_iter().all(retryable));
        assert!(![404, 401, 501, 505, 511].into_iter().any(retryable));
    }
}
