//! Requests to the Kubernetes API with objects as JSON.

use http::{Method, Request, header};
use kube::Client;
use serde_json::Value;

/// Sends a request with an object as its body, if there is one, within [`sluice_kube::REQUEST_TIMEOUT`], and returns the object in the response. The body of a
/// `PATCH` is a merge patch.
pub(super) async fn send(
    client: &Client,
    method: Method,
    uri: String,
    body: Option<&Value>,
) -> Result<Value, kube::Error> {
    let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(header::CONTENT_TYPE, content_type)
        .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
        .map_err(kube::Error::HttpError)?;
    sluice_kube::request(client, request).await
}
