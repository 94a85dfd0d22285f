//! Telemetry (T01): what is measured, traced and logged.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::{Attachment, CustomTag, Decimal, Text, Timestamp};

/// The sides of a proxy that something holds for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum WorkloadMode {
    /// Both.
    #[default]
    ClientAndServer,
    /// The way out, and gateways.
    Client,
    /// The way in.
    Server,
}

impl WorkloadMode {
    /// Whether something of this mode holds for a side: the server's or the client's.
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
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Telemetry {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Older ones come first.
    pub created: Timestamp,
    /// The workloads it is for.
    pub attachment: Attachment,
    /// Metrics, later entries over earlier ones.
    pub metrics: Vec<TelemetryMetrics>,
    /// Tracing, later entries over earlier ones.
    pub tracing: Vec<TelemetryTracing>,
    /// Access logs, later entries over earlier ones.
    pub access_logging: Vec<TelemetryLogging>,
}

/// An entry of `metrics`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TelemetryMetrics {
    /// Names of providers; empty is those of the entry before.
    pub providers: Vec<Text>,
    /// Changes to metrics.
    pub overrides: Vec<MetricsOverride>,
    /// Time between reports of open TCP connections, if set.
    pub reporting_interval: Option<Duration>,
}

/// The metrics an override is for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum MetricMatch {
    /// All of Istio's own.
    #[default]
    All,
    /// The one of that name: a word of Istio's API such as `REQUEST_COUNT`, or a custom metric.
    Named(Text),
}

/// A change to metrics.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MetricsOverride {
    /// Which.
    pub metric: MetricMatch,
    /// On which side.
    pub mode: WorkloadMode,
    /// They are not reported; `None` leaves it as it is.
    pub disabled: Option<bool>,
    /// Tags by name: an expression, or none to remove the tag.
    pub tags: BTreeMap<Text, Option<Text>>,
}

/// A tag of spans.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum TraceTag {
    /// A constant, variable or header.
    Plain(CustomTag),
    /// Text with Envoy's substitutions.
    Format(Text),
}

/// An entry of `tracing`. `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TelemetryTracing {
    /// On which side.
    pub mode: WorkloadMode,
    /// Names of providers, of which the first is used; empty is those of the entry before.
    pub providers: Vec<Text>,
    /// Percent of requests.
    pub random_sampling: Option<Decimal>,
    /// No spans.
    pub disable_span_reporting: Option<bool>,
    /// Tags by name: all of them are replaced.
    pub custom_tags: Option<BTreeMap<Text, TraceTag>>,
    /// Request ids decide what is sampled.
    pub use_request_id: Option<bool>,
    /// Tags about the mesh.
    pub enable_istio_tags: Option<bool>,
    /// The context is not handed on.
    pub disable_context_propagation: Option<bool>,
}

/// An entry of `accessLogging`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TelemetryLogging {
    /// On which side.
    pub mode: WorkloadMode,
    /// Names of providers; empty is those of the entry before.
    pub providers: Vec<Text>,
    /// Not logged.
    pub disabled: bool,
    /// CEL expression an entry must satisfy, if any.
    pub filter: Option<Text>,
}
