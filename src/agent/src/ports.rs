//! Limits of the agent's TCP ports.

use std::time::Duration;

use sluice_listen::{ListenLimits, ListenMetrics, PortOptions};

/// Limits of each port. The clients are probes, scrapers of metrics, and the processes of the pod.
const LIMITS: ListenLimits = ListenLimits {
    max_connections: 1000,
    max_connections_per_address: 250,
    max_pending: 256,
    max_pending_per_address: 64,
    handshake_timeout: Duration::from_secs(10),
    first_request_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(300),
    max_header_bytes: 16 << 10,
};

/// Options of a port.
pub(crate) fn options(name: &'static str, metrics: ListenMetrics) -> PortOptions {
    PortOptions { name, limits: LIMITS, metrics, ..PortOptions::default() }
}
