//! How a client talks to a service: the settings DestinationRules and the mesh config share.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::Text;

/// TCP keepalive probes; `None` leaves the value to the operating system.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TcpKeepalive {
    /// Probes without an answer before the connection is dead, 0 if unset.
    pub probes: u32,
    /// Idle time before the first probe.
    pub time: Option<Duration>,
    /// Time between probes.
    pub interval: Option<Duration>,
}

/// Limits of connections; zero and `None` are unset.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ConnectionPool {
    /// For all traffic.
    pub tcp: Option<TcpSettings>,
    /// For HTTP.
    pub http: Option<HttpSettings>,
}

/// TCP part of a [`ConnectionPool`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TcpSettings {
    /// Most connections to a host.
    pub max_connections: i32,
    /// Time to connect.
    pub connect_timeout: Option<Duration>,
    /// Keepalive probes.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// Longest life of a connection.
    pub max_connection_duration: Option<Duration>,
    /// Longest time without bytes.
    pub idle_timeout: Option<Duration>,
}

/// When a client asks for an upgrade to HTTP/2.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum H2Upgrade {
    /// As the mesh says.
    #[default]
    Default,
    /// Never.
    DoNotUpgrade,
    /// Always.
    Upgrade,
}

/// HTTP part of a [`ConnectionPool`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpSettings {
    /// Most requests waiting for a connection.
    pub http1_max_pending_requests: i32,
    /// Most requests under way.
    pub http2_max_requests: i32,
    /// Requests a connection serves before it is closed.
    pub max_requests_per_connection: i32,
    /// Most retries under way.
    pub max_retries: i32,
    /// Longest time without requests.
    pub idle_timeout: Option<Duration>,
    /// Upgrade to HTTP/2.
    pub h2_upgrade_policy: H2Upgrade,
    /// Keep the protocol the client used.
    pub use_client_protocol: bool,
    /// Most streams on an HTTP/2 connection.
    pub max_concurrent_streams: i32,
    /// HTTP/2 pings: (interval, timeout).
    pub http2_keep_alive: Option<(Option<Duration>, Option<Duration>)>,
}

/// When a host is taken out of balancing; `None` is unset, and a zero count disables its check.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct OutlierDetection {
    /// Old form of `consecutive_gateway_errors`, 0 if unset.
    pub consecutive_errors: i32,
    /// Tell errors of the local side from those of the host.
    pub split_external_local_origin_errors: bool,
    /// Local errors in a row.
    pub consecutive_local_origin_failures: Option<u32>,
    /// Gateway errors in a row.
    pub consecutive_gateway_errors: Option<u32>,
    /// 5xx in a row.
    pub consecutive_5xx_errors: Option<u32>,
    /// Time between sweeps.
    pub interval: Option<Duration>,
    /// Shortest time out.
    pub base_ejection_time: Option<Duration>,
    /// Most hosts out, in percent, 0 if unset.
    pub max_ejection_percent: i32,
    /// Below this share of healthy hosts balancing ignores health, in percent, 0 if unset.
    pub min_health_percent: i32,
    /// Status codes that count as errors.
    pub http_error_codes: Vec<u32>,
}

/// Kind of TLS a client starts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ClientTlsMode {
    /// Plain text.
    #[default]
    Disable,
    /// TLS without a client certificate.
    Simple,
    /// With the certificate named.
    Mutual,
    /// With the workload's own certificate.
    IstioMutual,
}

/// TLS a client starts.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ClientTls {
    /// Kind.
    pub mode: ClientTlsMode,
    /// File of the client certificate.
    pub client_certificate: Text,
    /// File of its key.
    pub private_key: Text,
    /// File of the roots.
    pub ca_certificates: Text,
    /// Secret with any of these.
    pub credential_name: Text,
    /// Names the server's certificate may have.
    pub subject_alt_names: Vec<Text>,
    /// Server name to send.
    pub sni: Text,
    /// Do not verify the server; `None` is the default of the mesh.
    pub insecure_skip_verify: Option<bool>,
    /// File of revoked certificates.
    pub ca_crl: Text,
}

/// Balancing by locality.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct LocalityLb {
    /// `false` switches it off; unset is as the mesh says, or on.
    pub enabled: Option<bool>,
    /// Shares of traffic.
    pub distribute: Vec<LocalityDistribute>,
    /// Where traffic of a region goes when that is unhealthy: (from, to).
    pub failover: Vec<(Text, Text)>,
    /// Labels, most important first, that decide priority.
    pub failover_priority: Vec<Text>,
}

/// Shares of traffic that leaves one locality.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct LocalityDistribute {
    /// `region/zone/subzone`, the last part may be `*`.
    pub from: Text,
    /// Weight a destination locality, in percent.
    pub to: BTreeMap<Text, u32>,
}

/// Envoy's own zone-aware routing.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ZoneAwareLb {
    /// On or off; unset is off.
    pub enabled: Option<bool>,
    /// Where traffic of a region goes when that is unhealthy: (from, to).
    pub failover: Vec<(Text, Text)>,
    /// Labels, most important first, that decide priority.
    pub failover_priority: Vec<Text>,
    /// Fewest hosts for it to apply.
    pub min_cluster_size: Option<u64>,
}

/// How often and when a request is tried again.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpRetry {
    /// Retries; zero switches them off.
    pub attempts: i32,
    /// Time for each try.
    pub per_try_timeout: Option<Duration>,
    /// Conditions, comma-separated; empty is the default set.
    pub retry_on: Text,
    /// Also try hosts of other localities; unset is the default.
    pub retry_remote_localities: Option<bool>,
    /// Do not choose a host that already failed the request; unset is the default.
    pub retry_ignore_previous_hosts: Option<bool>,
    /// Time between tries.
    pub backoff: Option<Duration>,
}
