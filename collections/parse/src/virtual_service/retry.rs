//! Retries, of a route or of the mesh.

use sluice_model::HttpRetry;

use crate::fields::Fields;

/// An `HTTPRetry`; what is wrong in it is noted.
pub fn parse_http_retry(fields: &Fields<'_>) -> HttpRetry {
    let retry = HttpRetry {
        attempts: fields.integer("attempts"),
        per_try_timeout: fields.opt_duration("perTryTimeout"),
        retry_on: fields.text("retryOn"),
        retry_remote_localities: fields.opt_bool("retryRemoteLocalities"),
        retry_ignore_previous_hosts: fields.opt_bool("retryIgnorePreviousHosts"),
        backoff: fields.opt_duration("backoff"),
    };
    if retry.attempts < 0 {
        fields.reject("attempts", "attempts cannot be negative");
    }
    let configured =
        retry.per_try_timeout.is_some() || !retry.retry_on.is_empty() || retry.retry_remote_localities.is_some();
    if retry.attempts == 0 && configured {
        fields.reject("attempts", "retries are configured but switched off by zero attempts");
    }
    for condition in retry.retry_on.split(',').map(str::trim).filter(|condition| !condition.is_empty()) {
        let is_status = condition.parse::<u16>().is_ok_and(|status| (100..600).contains(&status));
        if !is_status && !RETRY_CONDITIONS.contains(&condition) {
            fields.reject("retryOn", format!("`{condition}` is no condition of a retry"));
        }
    }
    retry
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
