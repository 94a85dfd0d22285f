//! The HTTP client of the exporter.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::HttpError as ClientError;
use reqwest::Url;
use rustls::ClientConfig;
use sluice_crypto::Roots;
use sluice_http_client::{HttpClient, HttpClientOptions, HttpRequest, LongBody};

use crate::error::ExportError;
use crate::settings::TraceSettings;

/// Limit on the part of a response that is read: it may tell which spans were refused.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Sends requests of the exporter.
#[derive(Debug)]
pub(crate) struct OtlpClient {
    client: HttpClient,
    timeout: Duration,
}

impl OtlpClient {
    /// # Errors
    /// TLS cannot be set up.
    pub(crate) fn new(settings: &TraceSettings) -> Result<Self, ExportError> {
        let tls = if settings.endpoint.scheme() == "https" { Some(tls(settings)?) } else { None };
        let options = HttpClientOptions { tls, user_agent: "sluiced", ..HttpClientOptions::default() };
        let client = HttpClient::new(options).map_err(|error| ExportError::Client(error.to_string()))?;
        Ok(Self { client, timeout: settings.timeout })
    }
}

fn tls(settings: &TraceSettings) -> Result<ClientConfig, ExportError> {
    let roots = settings.roots.clone().map_or(Roots::System, Roots::File);
    sluice_crypto::verified_client(&roots, None, None)
        .map_err(|error| ExportError::Client(format!("OTEL_EXPORTER_OTLP_CERTIFICATE: {error}")))
}

#[async_trait::async_trait]
impl opentelemetry_http::HttpClient for OtlpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let (parts, body) = request.into_parts();
        let sent = self.client.send(HttpRequest {
            method: parts.method,
            headers: parts.headers,
            body,
            timeout: self.timeout,
            max_body_bytes: MAX_RESPONSE_BYTES,
            long_body: LongBody::Truncate,
            ..HttpRequest::get(Url::parse(&parts.uri.to_string())?)
        });
        let answer = sent.await?;
        let mut response = Response::builder().status(answer.status).body(answer.body)?;
        *response.headers_mut() = answer.headers;
        Ok(response)
    }
}
