//! The flags of limits, as typed.

use std::num::{NonZeroU32, NonZeroUsize};

use clap::Args;

/// Flags of limits.
#[derive(Clone, Debug, Args)]
pub struct LimitArgs {
    /// Maximum number of connections of each gRPC port. Further ones are closed. A port never uses more than 3/8 of the files
    /// that the process may open.
    #[arg(
        long = "maxConnections",
        alias = "max-connections",
        env = "SLUICE_MAX_CONNECTIONS",
        value_name = "NUMBER",
        default_value = "50000",
        global = true,
        help_heading = "Limits"
    )]
    pub max_connections: NonZeroUsize,
    /// Maximum number of connections of a gRPC port from one address (IPv6: one /64 network). Further ones are closed.
    /// Addresses of TRUSTED_GATEWAY_CIDR have no such limit.
    #[arg(
        long = "maxConnectionsPerAddress",
        alias = "max-connections-per-address",
        env = "SLUICE_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "NUMBER",
        default_value = "20000",
        global = true,
        help_heading = "Limits"
    )]
    pub max_connections_per_address: NonZeroUsize,
    /// Maximum number of connections of each port that have not sent a request yet and are served, TLS handshakes included.
    /// Further ones wait.
    #[arg(
        long = "maxPendingConnections",
        alias = "max-pending-connections",
        env = "SLUICE_MAX_PENDING_CONNECTIONS",
        value_name = "NUMBER",
        default_value = "1024",
        global = true,
        help_heading = "Limits"
    )]
    pub max_pending_connections: NonZeroUsize,
    /// The same from one address (IPv6: one /64 network).
    #[arg(
        long = "maxPendingConnectionsPerAddress",
        alias = "max-pending-connections-per-address",
        env = "SLUICE_MAX_PENDING_CONNECTIONS_PER_ADDRESS",
        value_name = "NUMBER",
        default_value = "256",
        global = true,
        help_heading = "Limits"
    )]
    pub max_pending_connections_per_address: NonZeroUsize,
    /// Maximum number of connections of the HTTP, the monitoring, the webhook and the ControlZ port, each. Further ones are
    /// closed. A port never uses more than 1/16 of the files that the process may open.
    #[arg(
        long = "maxHTTPConnections",
        alias = "max-http-connections",
        env = "SLUICE_MAX_HTTP_CONNECTIONS",
        value_name = "NUMBER",
        default_value = "1000",
        global = true,
        help_heading = "Limits"
    )]
    pub max_http_connections: NonZeroUsize,
    /// Maximum number of connections of the HTTP, the monitoring, the webhook and the ControlZ port from one address (IPv6:
    /// one /64 network), each. Further ones are closed.
    #[arg(
        long = "maxHTTPConnectionsPerAddress",
        alias = "max-http-connections-per-address",
        env = "SLUICE_MAX_HTTP_CONNECTIONS_PER_ADDRESS",
        value_name = "NUMBER",
        default_value = "250",
        global = true,
        help_heading = "Limits"
    )]
    pub max_http_connections_per_address: NonZeroUsize,
    /// Time limit of a TLS handshake, and of the wait of a connection for its handshake.
    #[arg(
        long = "handshakeTimeout",
        alias = "handshake-timeout",
        env = "SLUICE_HANDSHAKE_TIMEOUT",
        value_name = "DURATION",
        default_value = "10s",
        global = true,
        help_heading = "Limits"
    )]
    pub handshake_timeout: String,
    /// Time limit for the first request of a connection, after the handshake.
    #[arg(
        long = "firstRequestTimeout",
        alias = "first-request-timeout",
        env = "SLUICE_FIRST_REQUEST_TIMEOUT",
        value_name = "DURATION",
        default_value = "10s",
        global = true,
        help_heading = "Limits"
    )]
    pub first_request_timeout: String,
    /// Time after which a connection without a request or stream is closed.
    #[arg(
        long = "idleConnectionTimeout",
        alias = "idle-connection-timeout",
        env = "SLUICE_IDLE_CONNECTION_TIMEOUT",
        value_name = "DURATION",
        default_value = "5m",
        global = true,
        help_heading = "Limits"
    )]
    pub idle_connection_timeout: String,
    /// Maximum size of the headers of a request in bytes.
    #[arg(
        long = "maxHeaderBytes",
        alias = "max-header-bytes",
        env = "SLUICE_MAX_HEADER_BYTES",
        value_name = "BYTES",
        default_value = "16384",
        global = true,
        help_heading = "Limits"
    )]
    pub max_header_bytes: NonZeroU32,
    /// Maximum number of certificates that are requested for an identity in a minute. Further requests are refused with
    /// RESOURCE_EXHAUSTED.
    #[arg(
        long = "maxCertificateRequests",
        alias = "max-certificate-requests",
        env = "SLUICE_MAX_CERTIFICATE_REQUESTS",
        value_name = "NUMBER",
        default_value = "6000",
        global = true,
        help_heading = "Limits"
    )]
    pub max_certificate_requests: NonZeroU32,
    /// Maximum number of ADS streams of a caller on each port: an identity, or the address of an anonymous caller. Further
    /// ones are refused with RESOURCE_EXHAUSTED.
    #[arg(
        long = "maxStreamsPerCaller",
        alias = "max-streams-per-caller",
        env = "SLUICE_MAX_STREAMS_PER_CALLER",
        value_name = "NUMBER",
        default_value = "20000",
        global = true,
        help_heading = "Limits"
    )]
    pub max_streams_per_caller: NonZeroUsize,
    /// Maximum memory in bytes of the resource names that the ADS streams of a caller subscribe to, on each port. Equal sets of
    /// names count once. A stream that exceeds it ends with RESOURCE_EXHAUSTED.
    #[arg(
        long = "maxNameBytesPerCaller",
        alias = "max-name-bytes-per-caller",
        env = "SLUICE_MAX_NAME_BYTES_PER_CALLER",
        value_name = "BYTES",
        default_value = "268435456",
        global = true,
        help_heading = "Limits"
    )]
    pub max_name_bytes_per_caller: NonZeroUsize,
    /// Maximum size in bytes of the first request of an ADS stream whose caller is anonymous.
    #[arg(
        long = "maxAnonymousRequestBytes",
        alias = "max-anonymous-request-bytes",
        env = "SLUICE_MAX_ANONYMOUS_REQUEST_BYTES",
        value_name = "BYTES",
        default_value = "2097152",
        global = true,
        help_heading = "Limits"
    )]
    pub max_anonymous_request_bytes: NonZeroUsize,
    /// Maximum number of concurrent TokenReviews of a cluster. Further ones wait.
    #[arg(
        long = "maxTokenReviews",
        alias = "max-token-reviews",
        env = "SLUICE_MAX_TOKEN_REVIEWS",
        value_name = "NUMBER",
        default_value = "64",
        global = true,
        help_heading = "Limits"
    )]
    pub max_token_reviews: NonZeroUsize,
    /// Time limit of a TokenReview, the wait for it included.
    #[arg(
        long = "tokenReviewTimeout",
        alias = "token-review-timeout",
        env = "SLUICE_TOKEN_REVIEW_TIMEOUT",
        value_name = "DURATION",
        default_value = "10s",
        global = true,
        help_heading = "Limits"
    )]
    pub token_review_timeout: String,
    /// Longest time for which a change stays in the history that `sluicectl why`, `wait` and `history` read.
    #[arg(
        long = "historyAge",
        alias = "history-age",
        env = "SLUICE_HISTORY_AGE",
        value_name = "DURATION",
        default_value = "1h",
        global = true,
        help_heading = "Limits"
    )]
    pub history_age: String,
    /// Maximum memory of the history in bytes, of which each changed key counts as 256; 0 keeps no history.
    #[arg(
        long = "historyBytes",
        alias = "history-bytes",
        env = "SLUICE_HISTORY_BYTES",
        value_name = "NUMBER",
        default_value = "67108864",
        global = true,
        help_heading = "Limits"
    )]
    pub history_bytes: usize,
}
