//! Retry policies (N19).

use envoy_types::pb::envoy::config::route::v3::RetryPolicy;
use envoy_types::pb::envoy::config::route::v3::retry_policy::{
    RetryBackOff, RetryHostPredicate, RetryPriority, retry_host_predicate, retry_priority,
};
use envoy_types::pb::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
use envoy_types::pb::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use sluice_model::HttpRetry;

use crate::wire::any;
use crate::wire::{duration, uint32};

const OUTBOUND: &str = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";
/// Condition of inbound retries. A request that is reset before it reaches the application is safe to retry.
const INBOUND: &str = "reset-before-request";
const STATUS_CODES: &str = "retriable-status-codes";

/// The retry policy of an outbound route: `default` if the route declares none; `None` if retries are disabled.
///
/// With consistent hashing, the same host is retried unless the policy says otherwise.
#[must_use]
pub(crate) fn build_retry_policy(retry: Option<&HttpRetry>, consistent_hash: bool) -> Option<RetryPolicy> {
    let mut policy = RetryPolicy {
        num_retries: Some(uint32(2)),
        retry_on: OUTBOUND.into(),
        host_selection_retry_max_attempts: 5,
        ..RetryPolicy::default()
    };
    let mut avoid_previous = !consistent_hash;
    if let Some(retry) = retry {
        customise(&mut policy, retry)?;
        policy.per_try_timeout = retry.per_try_timeout.map(duration);
        avoid_previous = retry.retry_ignore_previous_hosts.unwrap_or(avoid_previous);
        if retry.retry_remote_localities == Some(true) {
            let config = any(&PreviousPrioritiesConfig { update_frequency: 2 });
            policy.retry_priority = Some(RetryPriority {
                name: "envoy.retry_priorities.previous_priorities".into(),
                config_type: Some(retry_priority::ConfigType::TypedConfig(config)),
            });
        }
    }
    if avoid_previous {
        let config = any(&PreviousHostsPredicate {});
        policy.retry_host_predicate.push(RetryHostPredicate {
            name: "envoy.retry_host_predicates.previous_hosts".into(),
            config_type: Some(retry_host_predicate::ConfigType::TypedConfig(config)),
        });
    }
    Some(policy)
}

/// The retry policy of an inbound route, which has a single host.
#[must_use]
pub(crate) fn build_inbound_retry_policy(retry: Option<&HttpRetry>) -> Option<RetryPolicy> {
    let mut policy = RetryPolicy { num_retries: Some(uint32(2)), retry_on: INBOUND.into(), ..RetryPolicy::default() };
    if let Some(retry) = retry {
        customise(&mut policy, retry)?;
    }
    Some(policy)
}

/// Attempts, conditions and backoff; `None` if retries are disabled.
fn customise(policy: &mut RetryPolicy, retry: &HttpRetry) -> Option<()> {
    let attempts = u32::try_from(retry.attempts).ok().filter(|attempts| *attempts > 0)?;
    policy.num_retries = Some(uint32(attempts));
    if !retry.retry_on.is_empty() {
        let words = retry.retry_on.split(',').map(str::trim).filter(|word| !word.is_empty());
        let (codes, mut conditions): (Vec<&str>, Vec<&str>) = words.partition(|word| status_code(word).is_some());
        policy.retriable_status_codes = codes.into_iter().filter_map(status_code).collect();
        if !policy.retriable_status_codes.is_empty() && !conditions.iter().any(|word| word.contains(STATUS_CODES)) {
            conditions.push(STATUS_CODES);
        }
        policy.retry_on = conditions.join(",");
        // A list of only status codes leaves an empty entry before `retriable-status-codes`.
        if policy.retry_on == STATUS_CODES && !retry.retry_on.contains(STATUS_CODES) {
            policy.retry_on = format!(",{STATUS_CODES}");
        }
    }
    policy.retry_back_off =
        retry.backoff.map(|backoff| RetryBackOff { base_interval: Some(duration(backoff)), max_interval: None });
    Some(())
}

/// Parses a registered HTTP status code.
fn status_code(word: &str) -> Option<u32> {
    let code: u32 = word.parse().ok()?;
    let known = matches!(code,
        100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451
        | 500..=508 | 510 | 511);
    known.then_some(code)
}
