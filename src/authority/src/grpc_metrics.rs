//! Metrics of gRPC calls, with the names of Go's gRPC libraries (O13). As in istiod, only calls with one request and one response
//! are counted: those for certificates.

use std::time::Duration;

use http::HeaderMap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sluice_telemetry::{Count, grpc_code_name};

/// Upper bounds of the buckets of the time of a call in seconds.
const CALL_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Labels of a method.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct MethodLabels {
    grpc_type: &'static str,
    grpc_service: &'static str,
    grpc_method: &'static str,
}

/// Labels of a method and the status of its calls.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct CodeLabels {
    grpc_type: &'static str,
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_code: &'static str,
}

/// The method that issues certificates.
const CREATE_CERTIFICATE: MethodLabels = MethodLabels {
    grpc_type: "unary",
    grpc_service: "istio.v1.auth.IstioCertificateService",
    grpc_method: "CreateCertificate",
};

/// Metrics of the calls. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct GrpcMetrics {
    started: Family<MethodLabels, Count>,
    handled: Family<CodeLabels, Count>,
    received: Family<MethodLabels, Count>,
    sent: Family<MethodLabels, Count>,
    seconds: Family<MethodLabels, Histogram>,
}

impl Default for GrpcMetrics {
    fn default() -> Self {
        Self {
            started: Family::default(),
            handled: Family::default(),
            received: Family::default(),
            sent: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(CALL_SECONDS)),
        }
    }
}

impl GrpcMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("grpc_server_started_total", "Calls that have begun", self.started.clone());
        registry.register("grpc_server_handled_total", "Calls that have ended, by status", self.handled.clone());
        registry.register("grpc_server_msg_received_total", "Requests of calls", self.received.clone());
        registry.register("grpc_server_msg_sent_total", "Responses of calls", self.sent.clone());
        registry.register("grpc_server_handling_seconds", "Time of a call", self.seconds.clone());
    }

    /// Counts a call that begins.
    pub(super) fn started(&self) {
        self.started.get_or_create(&CREATE_CERTIFICATE).inc();
    }

    /// Counts a request that was read.
    pub(super) fn received(&self) {
        self.received.get_or_create(&CREATE_CERTIFICATE).inc();
    }

    /// Counts the end of a call with the headers of its response. An error has its status there.
    pub(super) fn handled(&self, headers: &HeaderMap, took: Duration) {
        let status = headers.get("grpc-status").and_then(|status| status.to_str().ok()?.parse().ok()).unwrap_or(0);
        let MethodLabels { grpc_type, grpc_service, grpc_method } = CREATE_CERTIFICATE;
        let labels = CodeLabels { grpc_type, grpc_service, grpc_method, grpc_code: grpc_code_name(status) };
        self.handled.get_or_create(&labels).inc();
        if status == 0 {
            self.sent.get_or_create(&CREATE_CERTIFICATE).inc();
        }
        self.seconds.get_or_create(&CREATE_CERTIFICATE).observe(took.as_secs_f64());
    }
}
