//! Limits of the agent's TCP ports.

use sluice_listen::{ListenLimits, ListenMetrics, PortOptions};

/// Options of a port.
pub(crate) fn options(name: &'static str, metrics: ListenMetrics) -> PortOptions {
    PortOptions { name, limits: ListenLimits::FEW_CLIENTS, metrics, ..PortOptions::default() }
}
