//! Requests to an endpoint, and the errors of its responses.

use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use rustls::ClientConfig;
use sluice_http_client::{HttpClient, HttpClientOptions, HttpRequest};

use super::Endpoint;
use super::error::QueryError;
use super::xds::XdsServer;

/// Time limit of a question. The answer takes less than a second.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the size of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Sends requests to endpoints.
pub(crate) struct Requester {
    authorization: Option<HeaderValue>,
    client: HttpClient,
    pub(super) runtime: tokio::runtime::Runtime,
}

/// Parameters of a page. Empty ones are not sent.
pub(crate) type Parameters<'a> = [(&'a str, &'a str)];

/// A request.
pub(super) struct Question<'q> {
    pub(super) method: Method,
    pub(super) path: &'q str,
    pub(super) parameters: &'q Parameters<'q>,
    pub(super) body: String,
    pub(super) timeout: Duration,
    pub(super) max_answer_bytes: usize,
}

impl<'q> Question<'q> {
    pub(super) fn get(path: &'q str, parameters: &'q Parameters<'q>, timeout: Duration) -> Self {
        let (method, body) = (Method::GET, String::new());
        Self { method, path, parameters, body, timeout, max_answer_bytes: MAX_ANSWER_BYTES }
    }
}

impl Requester {
    pub(super) fn new(token_file: Option<&PathBuf>, tls: Option<ClientConfig>) -> Result<Self, QueryError> {
        let authorization = token_file.map(|path| {
            let failed =
                |error: &dyn std::fmt::Display| QueryError::Flags(format!("--token-file {}: {error}", path.display()));
            let token = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
            let mut header =
                HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|error| failed(&error))?;
            header.set_sensitive(true);
            Ok(header)
        });
        let setup =
            |error: &dyn std::fmt::Display| QueryError::Flags(format!("the HTTP client cannot be set up: {error}"));
        let client = HttpClient::new(HttpClientOptions {
            tls,
            user_agent: "sluicectl",
            max_redirects: 3,
            ..HttpClientOptions::default()
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self {
            authorization: authorization.transpose()?,
            client: client.map_err(|error| setup(&error))?,
            runtime: runtime.map_err(|error| setup(&error))?,
        })
    }

    /// The whole body of the response.
    pub(super) fn body(&self, endpoint: &Endpoint, question: Question<'_>) -> Result<Vec<u8>, QueryError> {
        let mut body = Vec::new();
        self.receive(endpoint, question, &mut |chunk| body.extend_from_slice(chunk))?;
        Ok(body)
    }

    /// Passes the body of the response to `on_chunk` as it arrives.
    pub(super) fn receive(
        &self,
        endpoint: &Endpoint,
        question: Question<'_>,
        on_chunk: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), QueryError> {
        if let Some(xds) = &endpoint.xds {
            let page = self.runtime.block_on(page_over_xds(xds, &question))?;
            on_chunk(&page);
            return Ok(());
        }
        let mut url = endpoint.base.clone();
        url.set_path(question.path);
        {
            let mut query = url.query_pairs_mut();
            query.clear();
            query.extend_pairs(question.parameters.iter().filter(|(_, value)| !value.is_empty()));
        }
        if url.query() == Some("") {
            url.set_query(None);
        }
        let (timeout, max_body_bytes) = (question.timeout, question.max_answer_bytes);
        let mut request = HttpRequest { timeout, max_body_bytes, ..HttpRequest::get(url) };
        request.method = question.method;
        if !question.body.is_empty() {
            request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            request.body = question.body.into();
        }
        request.headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
        let mut refusal = Vec::new();
        let received = self.runtime.block_on(self.client.receive(request, &mut |status, chunk| {
            if status.is_success() { on_chunk(chunk) } else { refusal.extend_from_slice(chunk) }
        }));
        let status = received.map_err(|error| endpoint.unreachable(error))?;
        let text = String::from_utf8_lossy(&refusal).trim().to_owned();
        let address = || endpoint.label();
        match status.as_u16() {
            _ if status.is_success() => Ok(()),
            400 => Err(QueryError::Invalid(text)),
            404 if !text.is_empty() => Err(QueryError::NotFound(text)),
            404 => Err(QueryError::NoPage { address: address(), page: question.path.to_owned() }),
            status => Err(QueryError::Refused { address: address(), status, text }),
        }
    }
}

/// The body of a debug page, or of `/version`, over xDS.
async fn page_over_xds(xds: &XdsServer, question: &Question<'_>) -> Result<Vec<u8>, QueryError> {
    let not_over_xds =
        || QueryError::Flags(format!("{} is not available over xDS; use --address or a port-forward", question.path));
    if question.method != Method::GET {
        return Err(not_over_xds());
    }
    if question.path == "/version" {
        let identifier = xds.identifier(question.timeout).await?;
        let identifier: serde_json::Value = serde_json::from_str(&identifier).unwrap_or_default();
        return Ok(identifier["Info"].to_string().into_bytes());
    }
    let page = question.path.strip_prefix("/debug/").ok_or_else(not_over_xds)?;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(question.parameters.iter().filter(|(_, value)| !value.is_empty()));
    let query = query.finish();
    let page = if query.is_empty() { page.to_owned() } else { format!("{page}?{query}") };
    xds.page(&page, question.timeout).await
}
