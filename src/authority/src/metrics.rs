//! Metrics of certificate issuing, under istiod's names (O13).

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use sluice_ca::Certificate;
use sluice_telemetry::{Count, register_counts, unix_seconds};

use super::Signer;
use super::grpc_metrics::GrpcMetrics;

/// Label `error` of signing errors.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ErrorLabel {
    error: &'static str,
}

/// Metrics of certificate issuing. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct AuthorityMetrics {
    pub(super) requests: Count,
    pub(super) unauthenticated: Count,
    pub(super) malformed: Count,
    pub(super) unidentified: Count,
    sign_errors: Family<ErrorLabel, Count>,
    pub(super) issued: Count,
    /// Requests that a limit refused.
    pub(super) refused: Count,
    /// Connections of the secure port whose handshake failed.
    pub refused_connections: Count,
    /// Writes of roots into webhook configurations.
    pub(super) patches: PatchMetrics,
    pub(super) grpc: GrpcMetrics,
    signer: Arc<ArcSwapOption<Signer>>,
}

/// Label `name`: a webhook configuration.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct NameLabel {
    name: String,
}

/// Labels of failed writes of a webhook configuration.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct PatchFailureLabel {
    name: String,
    reason: &'static str,
}

/// Label `reason` of failed writes of a configuration for validation: the reason of the API server, or `Unknown`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Metrics of the writes of roots into webhook configurations.
#[derive(Clone, Debug, Default)]
pub(super) struct PatchMetrics {
    attempts: Family<NameLabel, Count>,
    failures: Family<PatchFailureLabel, Count>,
    retries: Family<NameLabel, Count>,
    validation_updates: Count,
    validation_errors: Family<ReasonLabel, Count>,
}

impl PatchMetrics {
    pub(super) fn attempt(&self, name: &str) {
        self.attempts.get_or_create(&NameLabel { name: name.to_owned() }).inc();
    }

    pub(super) fn failure(&self, name: &str) {
        let label = PatchFailureLabel { name: name.to_owned(), reason: "webhook_update_failure" };
        self.failures.get_or_create(&label).inc();
    }

    /// A write after one that failed.
    pub(super) fn retry(&self, name: &str) {
        self.retries.get_or_create(&NameLabel { name: name.to_owned() }).inc();
    }

    /// The configuration for validation was written.
    pub(super) fn validation_updated(&self) {
        self.validation_updates.inc();
    }

    /// The configuration for validation could not be written, with the HTTP status of the answer if there is one.
    pub(super) fn validation_failed(&self, status: Option<u16>) {
        let reason = match status {
            Some(401) => "Unauthorized",
            Some(403) => "Forbidden",
            Some(404) => "NotFound",
            Some(409) => "Conflict",
            Some(422) => "Invalid",
            Some(429) => "TooManyRequests",
            _ => "Unknown",
        };
        self.validation_errors.get_or_create(&ReasonLabel { reason }).inc();
    }
}

impl AuthorityMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        register_counts(
            registry,
            [
                ("citadel_server_csr_count", "Requests for certificates", &self.requests),
                (
                    "citadel_server_authentication_failure_count",
                    "Requests for certificates of callers that are not authenticated",
                    &self.unauthenticated,
                ),
                ("citadel_server_csr_parsing_err_count", "Requests that are malformed or too weak", &self.malformed),
                (
                    "citadel_server_id_extraction_err_count",
                    "Requests of authenticated callers without an identity of the mesh",
                    &self.unidentified,
                ),
                ("citadel_server_success_cert_issuance_count", "Certificates issued", &self.issued),
                (
                    "sluice_certificate_requests_refused",
                    "Requests that were refused because of too many: for an identity in a minute, that have not been read, or that wait for the review of a token",
                    &self.refused,
                ),
                (
                    "sluice_tls_refused",
                    "Connections of the secure port whose handshake failed",
                    &self.refused_connections,
                ),
                (
                    "galley_validation_config_updates",
                    "Writes into configurations of the webhook for validation",
                    &self.patches.validation_updates,
                ),
            ],
        );
        registry.register(
            "citadel_server_csr_sign_err_count",
            "Requests that were not signed, by reason",
            self.sign_errors.clone(),
        );
        registry.register(
            "webhook_patch_attempts_total",
            "Writes of roots into webhook configurations",
            self.patches.attempts.clone(),
        );
        registry.register(
            "webhook_patch_retries_total",
            "Writes of roots into webhook configurations after one that failed",
            self.patches.retries.clone(),
        );
        registry.register(
            "webhook_patch_failures_total",
            "Writes of roots into webhook configurations that failed",
            self.patches.failures.clone(),
        );
        registry.register(
            "galley_validation_config_update_error",
            "Writes into configurations of the webhook for validation that failed",
            self.patches.validation_errors.clone(),
        );
        self.grpc.register(registry);
        registry.register_collector(Box::new(Expiry(self.signer.clone())));
    }

    /// Exports the expiry of the certificates of this signer.
    pub fn watch(&self, signer: Arc<Signer>) {
        self.signer.store(Some(signer));
    }

    pub(super) fn count_sign_error(&self, error: &'static str) {
        self.sign_errors.get_or_create(&ErrorLabel { error }).inc();
    }
}

/// Expiry of the authority's certificates. It is computed at each scrape.
#[derive(Debug)]
struct Expiry(Arc<ArcSwapOption<Signer>>);

impl Collector for Expiry {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(signer) = self.0.load_full() else { return Ok(()) };
        let authority = signer.current();
        let expiry = |der| Certificate::parse("certificate", der).map(|certificate| certificate.not_after).ok();
        let (root, chain) = (authority.roots().first().and_then(|der| expiry(der)), authority.chain().first());
        let certificates = [
            (root, "citadel_server_root_cert_expiry_timestamp", "citadel_server_root_cert_expiry_seconds"),
            (
                chain.and_then(|der| expiry(der)),
                "citadel_server_cert_chain_expiry_timestamp",
                "citadel_server_cert_chain_expiry_seconds",
            ),
        ];
        for (not_after, timestamp, seconds) in certificates {
            let Some(not_after) = not_after else { continue };
            let mut one = |name: &str, help: &str, value: i64| {
                ConstGauge::new(value).encode(out.encode_descriptor(name, help, None, MetricType::Gauge)?)
            };
            one(timestamp, "Expiry, in seconds since the Unix epoch", not_after)?;
            one(seconds, "Seconds until the expiry, negative after it", not_after.saturating_sub(unix_seconds()))?;
        }
        Ok(())
    }
}
