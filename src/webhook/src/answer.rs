//! What both webhooks answer.

use std::fmt;

use axum::Json as JsonBody;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value as Json, json};

/// A request that is not answered with a review.
#[derive(Debug)]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    pub(crate) reason: String,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into() }
    }

    pub(crate) fn into_response(self) -> Response {
        (self.status, format!("{}\n", self.reason)).into_response()
    }
}

/// Checks what does not depend on the review in a request.
pub(crate) fn check_request(headers: &HeaderMap, body: &[u8]) -> Result<(), HttpError> {
    if body.is_empty() {
        return Err(HttpError::new(StatusCode::BAD_REQUEST, "no body found"));
    }
    let content_type = headers.get(header::CONTENT_TYPE).map(header::HeaderValue::as_bytes);
    if content_type != Some(b"application/json") {
        let reason = "invalid Content-Type, want `application/json`";
        return Err(HttpError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason));
    }
    Ok(())
}

pub(crate) fn review_response(review: Json) -> Response {
    JsonBody(review).into_response()
}

/// The response to a body that is no review: it has no UID.
pub(crate) fn not_a_review(error: &dyn fmt::Display) -> Response {
    review_response(json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": "",
            "allowed": false,
            "status": {"metadata": {}, "message": format!("could not decode body: {error}")},
        },
    }))
}
