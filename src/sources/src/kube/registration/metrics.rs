//! Metrics of registration, with istiod's names (O13).

use prometheus_client::registry::Registry;
use sluice_telemetry::{Count, register_counts};

/// Number of written WorkloadEntries of workloads that register themselves. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RegistrationMetrics {
    /// Entries that were created.
    pub(super) created: Count,
    /// Existing entries whose proxies have connected.
    pub(super) connected: Count,
    /// Entries whose proxies have disconnected.
    pub(super) disconnected: Count,
    /// Entries that were deleted.
    pub(super) deleted: Count,
    /// Writes that failed, and proxies whose WorkloadGroup does not exist.
    pub(super) errors: Count,
}

impl RegistrationMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let counts = [
            ("auto_registration_success_total", "WorkloadEntries that were created for proxies", &self.created),
            ("auto_registration_updates_total", "Existing WorkloadEntries whose proxies connected", &self.connected),
            ("auto_registration_unregister_total", "WorkloadEntries whose proxies disconnected", &self.disconnected),
            ("auto_registration_deletes_total", "WorkloadEntries of proxies that have gone, deleted", &self.deleted),
            ("auto_registration_errors_total", "Failed registrations of workloads", &self.errors),
        ];
        register_counts(registry, counts);
    }
}
