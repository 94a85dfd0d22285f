//! Limits, as typed settings.

use std::num::NonZeroU32;
use std::time::Duration;

use sluice_listen::ListenLimits;

use crate::limit_args::LimitArgs;
use crate::{ConfigError, duration};

/// Limits of connections and of what clients may cause.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LimitsConfig {
    /// Connections of each gRPC port.
    pub grpc: ListenLimits,
    /// Connections of the HTTP and of the monitoring port.
    pub http: ListenLimits,
    /// Certificates that are requested for an identity in a minute.
    pub certificate_requests: NonZeroU32,
    /// ADS streams of a caller.
    pub streams_of_caller: usize,
    /// Maximum memory of the resource names that the streams of a caller subscribe to, in bytes.
    pub name_bytes_of_caller: usize,
    /// Size of the first request of an anonymous ADS stream in bytes.
    pub anonymous_request_bytes: usize,
    /// Concurrent TokenReviews of a cluster.
    pub token_reviews: usize,
    /// Time limit of a TokenReview.
    pub token_review_timeout: Duration,
    /// Longest time for which a change stays in the history.
    pub history_age: Duration,
    /// Maximum memory of the history in bytes.
    pub history_bytes: usize,
}

impl LimitsConfig {
    pub(crate) fn new(args: &LimitArgs) -> Result<Self, ConfigError> {
        let grpc = ListenLimits {
            max_connections: args.max_connections.get(),
            max_connections_per_address: args.max_connections_per_address.get(),
            max_pending: args.max_pending_connections.get(),
            max_pending_per_address: args.max_pending_connections_per_address.get(),
            handshake_timeout: time_limit("--handshakeTimeout", &args.handshake_timeout)?,
            first_request_timeout: time_limit("--firstRequestTimeout", &args.first_request_timeout)?,
            idle_timeout: time_limit("--idleConnectionTimeout", &args.idle_connection_timeout)?,
            max_header_bytes: args.max_header_bytes.get(),
        };
        let http = ListenLimits {
            max_connections: args.max_http_connections.get(),
            max_connections_per_address: args.max_http_connections_per_address.get(),
            ..grpc
        };
        Ok(Self {
            grpc,
            http,
            certificate_requests: args.max_certificate_requests,
            streams_of_caller: args.max_streams_per_caller.get(),
            name_bytes_of_caller: args.max_name_bytes_per_caller.get(),
            anonymous_request_bytes: args.max_anonymous_request_bytes.get(),
            token_reviews: args.max_token_reviews.get(),
            token_review_timeout: time_limit("--tokenReviewTimeout", &args.token_review_timeout)?,
            history_age: time_limit("--historyAge", &args.history_age)?,
            history_bytes: args.history_bytes,
        })
    }
}

/// A time limit, which is not zero.
pub(crate) fn time_limit(flag: &'static str, text: &str) -> Result<Duration, ConfigError> {
    match duration(flag, text)? {
        limit if limit.is_zero() => {
            Err(ConfigError { flag, reason: format!("{text:?} is no time limit: use a duration above 0 such as 10s") })
        }
        limit => Ok(limit),
    }
}
