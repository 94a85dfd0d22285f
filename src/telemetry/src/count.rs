//! Counters and samples with exact names.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

/// A counter with an exact name: OpenMetrics would append `_total`, which dashboards for istiod do not expect (O15).
/// A registry with such counters has to be served as Prometheus text, `text/plain; version=0.0.4`.
#[derive(Clone, Debug, Default)]
pub struct Count(Arc<AtomicU64>);

impl Count {
    /// Adds one.
    pub fn inc(&self) {
        self.inc_by(1);
    }

    /// Adds a number.
    pub fn inc_by(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl TypedMetric for Count {
    const TYPE: MetricType = MetricType::Counter;
}

impl EncodeMetric for Count {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        // The line of a gauge consists of the name, the labels and the value, without a suffix.
        encoder.encode_gauge(&self.get())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Registers counters without labels: name, help, counter.
pub fn register_counts<const N: usize>(registry: &mut Registry, counts: [(&'static str, &'static str, &Count); N]) {
    for (name, help, count) in counts {
        registry.register(name, help, count.clone());
    }
}

/// A value of a metric that is computed at each scrape. As with [`Count`], the name of a counter gets no suffix.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The value.
    pub value: f64,
    /// The type of the metric.
    pub metric_type: MetricType,
}

impl Sample {
    /// A sample of a counter.
    #[must_use]
    pub const fn counter(value: f64) -> Self {
        Self { value, metric_type: MetricType::Counter }
    }
}

impl EncodeMetric for Sample {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        // The line of a gauge consists of the name, the labels and the value, without a suffix.
        encoder.encode_gauge(&self.value)
    }

    fn metric_type(&self) -> MetricType {
        self.metric_type
    }
}

/// The name of a gRPC status code in labels, as Go's libraries write it.
#[must_use]
pub const fn grpc_code_name(code: i32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    if code >= 0 && code < 17 { NAMES[code.unsigned_abs() as usize] } else { "Unknown" }
}
