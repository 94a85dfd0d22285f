//! Retries, of a route or of the mesh.

use sluice_model::HttpRetry;

use crate::fields::Fields;

/// An `HTTPRetry`; what is wrong in it is noted.
pub fn parse_http_retry(fields: &Fields<'_>) -> HttpRetry {
    let retry = HttpRetry {
        attempts: fields.integer("attempts"),
        per_try_timeout: fields.opt_timeout("perTryTimeout"),
        retry_on: fields.text("retryOn"),
        retry_remote_localities: fields.opt_bool("retryRemoteLocalities"),
        retry_ignore_previous_hosts: fields.opt_bool("retryIgnorePreviousHosts"),
        backoff: fields.opt_timeout("backoff"),
    };
    if retry.attempts < 0 {
        fields.reject("attempts", "attempts cannot be negative");
    }
    let configured =
        retry.per_try_timeout.is_some() || !retry.retry_on.is_empty() || retry.retry_remote_localities.is_some();
    if retry.attempts == 0 && configured {
        fields.reject("attempts", "retries are configured but switched off by zero attempts");
    }
    for written in retry.retry_on.split(',').filter(|_| !retry.retry_on.is_empty()) {
        let condition = written.trim();
        let status = condition.parse::<u16>().ok().filter(|status| (100..600).contains(status));
        if status.is_none() && !condition.is_empty() && !RETRY_CONDITIONS.contains(&condition) {
            fields.reject("retryOn", format!("`{condition}` is no condition of a retry"));
        } else if written != condition || condition.is_empty() || status.is_some_and(|status| !is_known(status)) {
            fields.refuse("retryOn", format!("`{written}` is no condition of a retry"));
        }
    }
    retry
}

/// Whether HTTP has a name for this status.
fn is_known(status: u16) -> bool {
    matches!(status, 100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451)
        || matches!(status, 500..=508 | 510 | 511)
}

/// The conditions Envoy knows, for HTTP and gRPC.
const RETRY_CONDITIONS: [&str; 16] = [
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "envoy-ratelimited",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];
