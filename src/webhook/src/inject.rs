//! `/inject`: decides about the pod of a review.

use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde_json::Value as Json;
use sluice_inject::{Admission, AdmissionReview, InjectContext, ReviewError};
use tracing::{debug, warn};

use crate::Webhooks;
use crate::answer::{HttpError, check_request, not_a_review, review_response};
use crate::clusters::Clusters;
use crate::decision::{DecisionMemory, decide};

/// A request that was decided.
struct Decided {
    response: Json,
    admission: Admission,
}

pub(crate) async fn serve(State(webhooks): State<Webhooks>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let started = Instant::now();
    webhooks.metrics.injections.inc();
    let answered = answer(&webhooks, uri, &headers, body).await;
    webhooks.metrics.injection_time.observe(started.elapsed().as_secs_f64());
    answered.unwrap_or_else(|error| {
        webhooks.metrics.failed.inc();
        let (status, reason) = (error.status.as_u16(), error.reason.as_str());
        // Any client can cause the others.
        if error.status.is_server_error() {
            warn!(target: "webhook", status, reason, "injection request failed");
        } else {
            debug!(target: "webhook", status, reason, "injection request failed");
        }
        error.into_response()
    })
}

async fn answer(webhooks: &Webhooks, uri: Uri, headers: &HeaderMap, body: Bytes) -> Result<Response, HttpError> {
    check_request(headers, &body)?;
    let (deciding, reviewed) = (webhooks.clone(), body.clone());
    let decided = decide(&webhooks.deciding, &body, DecisionMemory::INJECTION, move || {
        let path = percent_decode_str(uri.path()).decode_utf8_lossy();
        deciding.inject(&path, &reviewed)
    });
    let decided = decided.await??;
    Ok(match decided {
        Ok(Decided { response, admission }) => {
            let metrics = &webhooks.metrics;
            match admission {
                Admission::Unchanged => metrics.skipped.inc(),
                Admission::Patched(_) => metrics.injected.inc(),
                Admission::Denied(reason) => {
                    metrics.failed.inc();
                    debug!(target: "webhook", reason, "pod denied");
                }
            }
            review_response(response)
        }
        Err(error) => {
            webhooks.metrics.failed.inc();
            not_a_review(&error)
        }
    })
}

impl Webhooks {
    fn inject(&self, path: &str, body: &[u8]) -> Result<Result<Decided, ReviewError>, HttpError> {
        let review = match AdmissionReview::parse(body) {
            Ok(review) => review,
            Err(error) => return Ok(Err(error)),
        };
        let injector = self.injection.as_ref().and_then(|configuration| configuration.injector());
        let injector = injector.ok_or_else(|| {
            let reason = "no valid injection configuration has been read yet";
            HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
        })?;
        let snapshot = self.engine.snapshot();
        let proxy_configs: Vec<_> = snapshot.iter(&self.handles.proxy_configs).map(|(_, resource)| resource).collect();
        let clusters = Clusters { snapshot: &snapshot, handles: &self.handles, native_sidecars: self.native_sidecars };
        let context = InjectContext { path, proxy_configs: &proxy_configs, clusters: &clusters };
        let admission = injector.inject(&review, &context);
        Ok(Ok(Decided { response: review.respond(&admission), admission }))
    }
}

#[cfg(test)]
mod tests;
