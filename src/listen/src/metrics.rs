//! Metrics of listeners.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_telemetry::Count;

/// Label `port`: the name of a port.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct PortLabel {
    port: &'static str,
}

/// Labels of closed connections.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ClosedLabel {
    port: &'static str,
    reason: &'static str,
}

/// Metrics of all ports. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ListenMetrics {
    connections: Family<PortLabel, Gauge>,
    pending: Family<PortLabel, Gauge>,
    closed: Family<ClosedLabel, Count>,
    accept_errors: Family<PortLabel, Count>,
}

impl ListenMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("sluice_connections", "Open connections by port", self.connections.clone());
        registry.register(
            "sluice_pending_connections",
            "Open connections without a request yet that are served, by port",
            self.pending.clone(),
        );
        registry.register(
            "sluice_closed_connections",
            "Connections that a limit closed, by port and reason",
            self.closed.clone(),
        );
        registry.register(
            "sluice_accept_errors",
            "Failures to accept a connection, for example because of too many open files, by port",
            self.accept_errors.clone(),
        );
    }

    pub(crate) fn connections(&self, port: &'static str) -> Gauge {
        self.connections.get_or_create(&PortLabel { port }).clone()
    }

    pub(crate) fn pending(&self, port: &'static str) -> Gauge {
        self.pending.get_or_create(&PortLabel { port }).clone()
    }

    pub(crate) fn closed(&self, port: &'static str, reason: &'static str) {
        self.closed.get_or_create(&ClosedLabel { port, reason }).inc();
    }

    pub(crate) fn accept_errors(&self, port: &'static str) -> Count {
        self.accept_errors.get_or_create(&PortLabel { port }).clone()
    }
}
