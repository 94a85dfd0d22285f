//! Metrics of the webhooks, with istiod's names (O13).

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sluice_telemetry::{Count, register_counts};

/// Upper bounds of the buckets of the injection time in seconds: those of istiod, and three below them, because an injection
/// takes milliseconds.
const INJECTION_SECONDS: [f64; 11] = [0.001, 0.005, 0.025, 0.1, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0];

/// Labels of a valid object. Kinds that are not known have the label values `other`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
pub(crate) struct PassedLabels {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) resource: &'static str,
}

/// Labels of an object that is refused, or not judged.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
pub(crate) struct FailedLabels {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) reason: &'static str,
}

/// Label `status` of requests that are not answered with a review.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
pub(crate) struct StatusLabel {
    pub(crate) status: u16,
}

/// Metrics of the webhooks. Clones share them.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    pub(crate) injections: Count,
    pub(crate) injected: Count,
    pub(crate) failed: Count,
    pub(crate) skipped: Count,
    pub(crate) injection_time: Histogram,
    pub(crate) config_errors: Count,
    pub(crate) validation_passed: Family<PassedLabels, Count>,
    pub(crate) validation_failed: Family<FailedLabels, Count>,
    pub(crate) validation_http_errors: Family<StatusLabel, Count>,
    /// TLS handshakes of webhook calls that failed.
    pub failed_handshakes: Count,
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        Self {
            injections: Count::default(),
            injected: Count::default(),
            failed: Count::default(),
            skipped: Count::default(),
            injection_time: Histogram::new(INJECTION_SECONDS),
            config_errors: Count::default(),
            validation_passed: Family::default(),
            validation_failed: Family::default(),
            validation_http_errors: Family::default(),
            failed_handshakes: Count::default(),
        }
    }
}

impl WebhookMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let counts = [
            ("sidecar_injection_requests_total", "Requests to inject a pod", &self.injections),
            ("sidecar_injection_success_total", "Pods that were injected", &self.injected),
            ("sidecar_injection_failure_total", "Pods that were denied, and requests that failed", &self.failed),
            ("sidecar_injection_skip_total", "Pods that are not to be injected", &self.skipped),
            ("sluice_injection_config_errors", "Injection configurations that were not valid", &self.config_errors),
            (
                "sluice_webhook_failed_handshakes",
                "TLS handshakes of webhook calls that failed",
                &self.failed_handshakes,
            ),
        ];
        register_counts(registry, counts);
        registry.register(
            "sidecar_injection_time_seconds",
            "Time to answer a request to inject a pod",
            self.injection_time.clone(),
        );
        registry.register("galley_validation_passed", "Valid objects", self.validation_passed.clone());
        registry.register("galley_validation_failed", "Objects that were refused", self.validation_failed.clone());
        registry.register(
            "galley_validation_http_error",
            "Requests to validate an object that were no reviews, by HTTP status",
            self.validation_http_errors.clone(),
        );
    }
}
