//! HTTP requests to servers of this pod: Envoy's admin interface, the application, `wait`.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use sluice_http_client::{HttpClient, HttpClientOptions, HttpRequest, Url};

/// Size limit of a response body, unless the caller sets one: statistics and configuration dumps of large meshes.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Time limit of a request, unless the caller sets one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// A client for servers of this pod. It does not verify certificates, as the kubelet does not in probes, and does not follow
/// redirects.
///
/// # Errors
/// TLS cannot be set up.
pub(crate) fn client(source: Option<IpAddr>) -> Result<HttpClient> {
    let tls = sluice_crypto::client_without_verification().context("set up TLS")?;
    let options = HttpClientOptions { tls: Some(tls), local_address: source, ..HttpClientOptions::default() };
    HttpClient::new(options).context("set up the HTTP client")
}

/// A GET request to a host (name or address) of this pod.
///
/// # Errors
/// Host and path do not form a valid URL.
pub(crate) fn get(scheme: &str, host: &str, port: u16, path: &str) -> Result<HttpRequest> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let text = format!("{scheme}://{host}:{port}{path}");
    let url: Url = text.parse().with_context(|| format!("URL {text:?}"))?;
    Ok(HttpRequest { timeout: REQUEST_TIMEOUT, max_body_bytes: MAX_BODY_BYTES, ..HttpRequest::get(url) })
}
