//! Telemetry (T01): metrics, tracing and access logs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Attachment, CustomTag, Decimal, Text, Timestamp};

/// The traffic directions that a setting applies to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum WorkloadMode {
    /// Both.
    #[default]
    ClientAndServer,
    /// Outbound traffic, and gateways.
    Client,
    /// Inbound traffic.
    Server,
}

impl WorkloadMode {
    /// Whether a setting with this mode applies to the server side or to the client side.
    #[must_use]
    pub fn is_for(self, server: bool) -> bool {
        match self {
            Self::ClientAndServer => true,
            Self::Client => !server,
            Self::Server => server,
        }
    }
}

/// A Telemetry.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Telemetry {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Older ones come first.
    pub created: Timestamp,
    /// Its target.
    pub attachment: Attachment,
    /// Metrics, later entries over earlier ones.
    pub metrics: Vec<TelemetryMetrics>,
    /// Tracing, later entries over earlier ones.
    pub tracing: Vec<TelemetryTracing>,
    /// Access logs, later entries over earlier ones.
    pub access_logging: Vec<TelemetryLogging>,
}

/// An entry of `metrics`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TelemetryMetrics {
    /// Names of providers; empty keeps those of the entry before.
    pub providers: Vec<Text>,
    /// Changes to metrics.
    pub overrides: Vec<MetricsOverride>,
    /// Time between reports of open TCP connections, if set.
    pub reporting_interval: Option<Duration>,
}

/// The metrics that an override applies to.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum MetricMatch {
    /// All standard metrics.
    #[default]
    All,
    /// The metric with that name: an enum value of Istio's API such as `REQUEST_COUNT`, or a custom metric.
    Named(Text),
}

/// A change to metrics.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct MetricsOverride {
    /// The metrics.
    pub metric: MetricMatch,
    /// The traffic directions.
    pub mode: WorkloadMode,
    /// Whether they are disabled; `None` keeps the setting.
    pub disabled: Option<bool>,
    /// Tags by name: an expression, or `None` to remove the tag.
    pub tags: BTreeMap<Text, Option<Text>>,
}

/// A tag of spans.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum TraceTag {
    /// A constant, an environment variable or a header.
    Plain(CustomTag),
    /// Text with Envoy's substitution commands.
    Format(Text),
}

/// An entry of `tracing`. `None` keeps a setting.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TelemetryTracing {
    /// The traffic directions.
    pub mode: WorkloadMode,
    /// Names of providers, of which the first is used; empty keeps those of the entry before.
    pub providers: Vec<Text>,
    /// Share of requests, in percent.
    pub random_sampling: Option<Decimal>,
    /// Whether spans are not reported.
    pub disable_span_reporting: Option<bool>,
    /// Tags by name; they replace all tags of earlier entries.
    pub custom_tags: Option<BTreeMap<Text, TraceTag>>,
    /// Whether request ids decide the sampling.
    pub use_request_id: Option<bool>,
    /// Whether spans have tags about the mesh.
    pub enable_istio_tags: Option<bool>,
    /// Whether the trace context is not propagated.
    pub disable_context_propagation: Option<bool>,
}

/// An entry of `accessLogging`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TelemetryLogging {
    /// The traffic directions.
    pub mode: WorkloadMode,
    /// Names of providers; empty keeps those of the entry before.
    pub providers: Vec<Text>,
    /// Whether logging is disabled.
    pub disabled: bool,
    /// CEL expression an entry must satisfy, if any.
    pub filter: Option<Text>,
}
