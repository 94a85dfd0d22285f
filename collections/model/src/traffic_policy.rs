//! Traffic policies of clients: the settings that DestinationRules and the mesh config share.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Text;

/// TCP keepalive probes; `None` uses the value of the operating system.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TcpKeepalive {
    /// Failed probes before the connection is closed, 0 if unset.
    pub probes: u32,
    /// Idle time before the first probe.
    pub time: Option<Duration>,
    /// Time between probes.
    pub interval: Option<Duration>,
}

/// Limits of connections; zero and `None` are unset.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ConnectionPool {
    /// For all traffic.
    pub tcp: Option<TcpSettings>,
    /// For HTTP.
    pub http: Option<HttpSettings>,
}

/// TCP part of a [`ConnectionPool`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TcpSettings {
    /// Maximum number of connections to a host.
    pub max_connections: i32,
    /// Connect timeout.
    pub connect_timeout: Option<Duration>,
    /// Keepalive probes.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// Maximum duration of a connection.
    pub max_connection_duration: Option<Duration>,
    /// Idle timeout.
    pub idle_timeout: Option<Duration>,
}

/// When clients upgrade connections to HTTP/2.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum H2Upgrade {
    /// As in the mesh config.
    #[default]
    Default,
    /// Never.
    DoNotUpgrade,
    /// Always.
    Upgrade,
}

/// HTTP part of a [`ConnectionPool`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpSettings {
    /// Maximum number of requests that wait for a connection.
    pub http1_max_pending_requests: i32,
    /// Maximum number of active requests.
    pub http2_max_requests: i32,
    /// Number of requests after which a connection is closed.
    pub max_requests_per_connection: i32,
    /// Maximum number of active retries.
    pub max_retries: i32,
    /// Idle timeout.
    pub idle_timeout: Option<Duration>,
    /// Upgrade to HTTP/2.
    pub h2_upgrade_policy: H2Upgrade,
    /// Use the protocol of the client's connection.
    pub use_client_protocol: bool,
    /// Maximum number of concurrent streams of an HTTP/2 connection.
    pub max_concurrent_streams: i32,
    /// HTTP/2 pings: (interval, timeout).
    pub http2_keep_alive: Option<(Option<Duration>, Option<Duration>)>,
}

/// When a host is ejected; `None` is unset, and a zero count disables its check.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct OutlierDetection {
    /// Old form of `consecutive_gateway_errors`, 0 if unset.
    pub consecutive_errors: i32,
    /// Distinguish local errors from errors of the host.
    pub split_external_local_origin_errors: bool,
    /// Consecutive local errors.
    pub consecutive_local_origin_failures: Option<u32>,
    /// Consecutive gateway errors.
    pub consecutive_gateway_errors: Option<u32>,
    /// Consecutive 5xx responses.
    pub consecutive_5xx_errors: Option<u32>,
    /// Interval of the analysis.
    pub interval: Option<Duration>,
    /// Minimum ejection time.
    pub base_ejection_time: Option<Duration>,
    /// Maximum share of ejected hosts, in percent, 0 if unset.
    pub max_ejection_percent: i32,
    /// Share of healthy hosts below which load balancing ignores health, in percent, 0 if unset.
    pub min_health_percent: i32,
    /// Status codes that count as errors.
    pub http_error_codes: Vec<u32>,
}

/// TLS mode of clients.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ClientTlsMode {
    /// Plain text.
    #[default]
    Disable,
    /// TLS without a client certificate.
    Simple,
    /// Mutual TLS with the configured certificate.
    Mutual,
    /// Mutual TLS with the workload certificate.
    IstioMutual,
}

/// The object with the certificates of a client's TLS.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ClientCredential {
    /// None: certificates are in files, and roots are those of the operating system unless a file has them.
    #[default]
    None,
    /// The object with this name, such as `NAME` of a Secret or `configmap://NAMESPACE/NAME`; never empty.
    Named(Text),
    /// None can be used, so every connection fails.
    Unusable,
}

impl ClientCredential {
    /// The credential of the field `credentialName`.
    #[must_use]
    pub fn named(name: Text) -> Self {
        if name.is_empty() { Self::None } else { Self::Named(name) }
    }

    /// The name of the object, if there is one.
    #[must_use]
    pub fn name(&self) -> Option<&Text> {
        match self {
            Self::Named(name) => Some(name),
            Self::None | Self::Unusable => None,
        }
    }

    /// Whether certificates are in files.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// TLS settings of clients.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ClientTls {
    /// Mode.
    pub mode: ClientTlsMode,
    /// File of the client certificate.
    pub client_certificate: Text,
    /// File of its key.
    pub private_key: Text,
    /// File of the roots.
    pub ca_certificates: Text,
    /// The object with these, in place of files.
    pub credential: ClientCredential,
    /// Accepted names in the certificate of the server.
    pub subject_alt_names: Vec<Text>,
    /// SNI.
    pub sni: Text,
    /// Whether the server is not verified; `None` is the default of the mesh.
    pub insecure_skip_verify: Option<bool>,
    /// File of revoked certificates.
    pub ca_crl: Text,
}

/// Load balancing by locality.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct LocalityLb {
    /// `false` disables it; unset is the setting of the mesh, or else enabled.
    pub enabled: Option<bool>,
    /// Shares of traffic.
    pub distribute: Vec<LocalityDistribute>,
    /// Failover between regions: (from, to).
    pub failover: Vec<(Text, Text)>,
    /// Labels that define the failover priority, most important first.
    pub failover_priority: Vec<Text>,
}

/// Distribution of the traffic from one locality.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct LocalityDistribute {
    /// `region/zone/subzone`, the last part may be `*`.
    pub from: Text,
    /// Weights of the destination localities, in percent.
    pub to: BTreeMap<Text, u32>,
}

/// Envoy's own zone-aware routing.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ZoneAwareLb {
    /// Whether it is enabled; unset is false.
    pub enabled: Option<bool>,
    /// Failover between regions: (from, to).
    pub failover: Vec<(Text, Text)>,
    /// Labels that define the failover priority, most important first.
    pub failover_priority: Vec<Text>,
    /// Minimum number of hosts for it to apply.
    pub min_cluster_size: Option<u64>,
}

/// Retry policy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpRetry {
    /// Number of retries; zero disables them.
    pub attempts: i32,
    /// Timeout of each try.
    pub per_try_timeout: Option<Duration>,
    /// Conditions, comma-separated; empty is the default set.
    pub retry_on: Text,
    /// Whether retries also use other localities; unset is the default.
    pub retry_remote_localities: Option<bool>,
    /// Whether retries avoid hosts that already failed the request; unset is the default.
    pub retry_ignore_previous_hosts: Option<bool>,
    /// Time between tries.
    pub backoff: Option<Duration>,
}
