//! Responses in the form of an API server's.

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use bytes::Bytes;
use serde_json::{Value, json};

pub(super) fn status(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message,
    });
    json_response(code, &status)
}

pub(super) fn json_response(code: StatusCode, value: &Value) -> Response<Body> {
    text_response(code, value.to_string())
}

pub(super) fn text_response(code: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// A response whose connection breaks after half of the text.
pub(super) fn broken_response(text: String) -> Response<Body> {
    let half = Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]);
    let parts = [Ok(half), Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))];
    let mut response = Response::new(Body::from_stream(futures::stream::iter(parts)));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
