//! What both webhooks answer, and how a request is decided apart from others.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::Json as JsonBody;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value as Json, json};
use sluice_tasks::Panicked;
use tokio::sync::Semaphore;
use tracing::error;

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

/// Largest body of a request that is decided on the thread that has read it. It saves two changes of the thread, each of which can
/// wait for a CPU.
const MAX_INLINE_BODY: usize = 64 << 10;

/// Decides about a request with a body of this size, once there is a permit: a large one on a thread for blocking work.
///
/// # Errors
/// The decision panicked: status 500.
pub(crate) async fn decide<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    body_size: usize,
    decision: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HttpError> {
    // The semaphore is never closed.
    let permit = permits.clone().acquire_owned().await.ok();
    let decision = move || {
        let _permit = permit;
        catch_unwind(AssertUnwindSafe(decision)).map_err(|panic| Panicked::new(&*panic).to_string())
    };
    let decided = match body_size <= MAX_INLINE_BODY {
        true => decision(),
        false => tokio::task::spawn_blocking(decision).await.unwrap_or_else(|cancelled| Err(cancelled.to_string())),
    };
    decided.map_err(|cause| {
        error!(target: "webhook", cause, "a request was not decided");
        HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error: the request was not decided")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_decision_is_status_500_and_frees_its_permit() {
        let permits = Arc::new(Semaphore::new(1));
        for _ in 0..3 {
            for size in [MAX_INLINE_BODY, MAX_INLINE_BODY + 1] {
                let decided: Result<(), _> = decide(&permits, size, || panic!("injected by the test")).await;
                let error = decided.expect_err("a panic");
                assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
                assert!(!error.reason.contains("injected"), "{}", error.reason);
            }
        }
        assert_eq!(decide(&permits, 1, || 7).await.expect("decided"), 7);
    }
}
