//! Retry policies of routes and of `MeshConfig`.

use sluice_model::HttpRetry;

use crate::Fields;
use crate::fields::one_of;

/// Reads an `HTTPRetry` and records findings.
pub(crate) fn parse_http_retry(fields: &Fields<'_>) -> HttpRetry {
    let retry = HttpRetry {
        attempts: fields.integer("attempts"),
        per_try_timeout: fields.opt_timeout("perTryTimeout"),
        retry_on: fields.text("retryOn"),
        retry_remote_localities: fields.opt_bool("retryRemoteLocalities"),
        retry_ignore_previous_hosts: fields.opt_bool("retryIgnorePreviousHosts"),
        backoff: fields.opt_timeout("backoff"),
    };
    if retry.attempts < 0 {
        fields.reject("attempts", "expected an integer of at least 0");
    }
    let configured =
        retry.per_try_timeout.is_some() || !retry.retry_on.is_empty() || retry.retry_remote_localities.is_some();
    if retry.attempts == 0 && configured {
        fields.reject("attempts", "retries are configured, but `attempts: 0` disables them");
    }
    for written in retry.retry_on.split(',').filter(|_| !retry.retry_on.is_empty()) {
        let condition = written.trim();
        let status = condition.parse::<u16>().ok().filter(|status| (100..600).contains(status));
        if status.is_none() && !condition.is_empty() && !RETRY_CONDITIONS.contains(&condition) {
            fields.reject("retryOn", invalid_condition(condition));
        } else if written != condition
            || condition.is_empty()
            || status.is_some_and(|status| !is_registered_status(status))
        {
            fields.refuse("retryOn", invalid_condition(written));
        }
    }
    retry
}

fn invalid_condition(condition: &str) -> String {
    format!(
        "`{condition}` is not a retry condition; expected an HTTP status or {}",
        one_of(RETRY_CONDITIONS.into_iter())
    )
}

/// Whether the status is registered.
fn is_registered_status(status: u16) -> bool {
    matches!(status, 100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451)
        || matches!(status, 500..=508 | 510 | 511)
}

/// Retry conditions of Envoy, for HTTP and gRPC.
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
