//! The counter of rejected requests for debug pages (O09).

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_telemetry::Count;

/// Label `reason` of rejected requests.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counts rejected requests. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Family<ReasonLabel, Count>);

impl Refusals {
    /// Registers the metric.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Rejected requests for debug pages, by reason: unauthenticated, forbidden, origin";
        registry.register("sluice_debug_refused", help, self.0.clone());
    }

    pub(crate) fn count(&self, reason: &'static str) {
        self.0.get_or_create(&ReasonLabel { reason }).inc();
    }
}
