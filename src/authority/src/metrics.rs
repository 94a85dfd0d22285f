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
use sluice_telemetry::{Count, unix_seconds};

use super::Signer;

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
    pub(super) rate_limited: Count,
    /// Connections of the secure port whose handshake failed.
    pub refused_connections: Count,
    signer: Arc<ArcSwapOption<Signer>>,
}

impl AuthorityMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let mut add = |name: &str, help: &str, count: &Count| registry.register(name, help, count.clone());
        add("citadel_server_csr_count", "Requests for certificates", &self.requests);
        add(
            "citadel_server_authentication_failure_count",
            "Requests for certificates of callers that are not authenticated",
            &self.unauthenticated,
        );
        add("citadel_server_csr_parsing_err_count", "Requests that are malformed or too weak", &self.malformed);
        add(
            "citadel_server_id_extraction_err_count",
            "Requests of authenticated callers without an identity of the mesh",
            &self.unidentified,
        );
        add("citadel_server_success_cert_issuance_count", "Certificates issued", &self.issued);
        add(
            "sluice_certificate_requests_refused",
            "Requests that were refused because of too many for the same identity in a minute",
            &self.rate_limited,
        );
        add("sluice_tls_refused", "Connections of the secure port whose handshake failed", &self.refused_connections);
        registry.register(
            "citadel_server_csr_sign_err_count",
            "Requests that were not signed, by reason",
            self.sign_errors.clone(),
        );
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
        for (name, not_after) in [("root_cert", root), ("cert_chain", chain.and_then(|der| expiry(der)))] {
            let Some(not_after) = not_after else { continue };
            let mut one = |suffix: &str, help: &str, value: i64| {
                let (name, kind) = (format!("citadel_server_{name}_expiry_{suffix}"), MetricType::Gauge);
                ConstGauge::new(value).encode(out.encode_descriptor(&name, help, None, kind)?)
            };
            one("timestamp", "Expiry, in seconds since the Unix epoch", not_after)?;
            one("seconds", "Seconds until the expiry, negative after it", not_after.saturating_sub(unix_seconds()))?;
        }
        Ok(())
    }
}
