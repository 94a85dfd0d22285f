//! Limits of the connections of a port.

use std::time::Duration;

use ipnet::IpNet;

use crate::ListenMetrics;

/// Limits of the connections of a port.
///
/// A connection is *pending* until its first request has arrived: it has not completed its TLS handshake, or has not sent a
/// request yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ListenLimits {
    /// Maximum number of connections. Further ones are closed.
    pub max_connections: usize,
    /// Maximum number of connections from one address. Further ones are closed.
    pub max_connections_per_address: usize,
    /// Maximum number of pending connections that are served. Further ones wait.
    pub max_pending: usize,
    /// Maximum number of pending connections from one address that are served. Further ones wait.
    pub max_pending_per_address: usize,
    /// Time limit of a TLS handshake, and of the wait for it.
    pub handshake_timeout: Duration,
    /// Time limit for the first request, after the handshake.
    pub first_request_timeout: Duration,
    /// Time after which a connection without a request in progress is closed.
    pub idle_timeout: Duration,
    /// Maximum size of the headers of a request in bytes.
    pub max_header_bytes: u32,
}

impl ListenLimits {
    /// Limits of a port whose clients are probes, scrapers of metrics, and the processes of a pod or a node.
    pub const FEW_CLIENTS: Self = Self {
        max_connections: 1000,
        max_connections_per_address: 250,
        max_pending: 256,
        max_pending_per_address: 64,
        handshake_timeout: Duration::from_secs(10),
        first_request_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(300),
        max_header_bytes: 16 << 10,
    };
}

impl Default for ListenLimits {
    fn default() -> Self {
        Self {
            max_connections: 50_000,
            max_connections_per_address: 20_000,
            max_pending: 1024,
            max_pending_per_address: 256,
            handshake_timeout: Duration::from_secs(10),
            first_request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(300),
            max_header_bytes: 16 << 10,
        }
    }
}

impl ListenLimits {
    /// With fewer connections, so that the port needs at most `share` of the files that the process may open.
    #[must_use]
    pub fn within(self, open_files: usize, share: (usize, usize)) -> Self {
        let max = (open_files / share.1 * share.0).max(1);
        Self { max_connections: self.max_connections.min(max), ..self }
    }
}

/// The limits of a port, with its name.
#[derive(Clone, Debug, Default)]
pub struct PortOptions {
    /// Its name in the log and in metrics.
    pub name: &'static str,
    /// Its limits.
    pub limits: ListenLimits,
    /// Address ranges without limits for each address, for example those of gateways that forward connections of many clients.
    pub unlimited_addresses: Vec<IpNet>,
    /// Metrics of all ports.
    pub metrics: ListenMetrics,
}
