//! OpenTelemetry traces of changes: their settings, spans, and export over OTLP.
//!
//! A trace is made when all proxies have acknowledged a change, from times that are recorded anyway. Nothing is recorded
//! for it while the change is under way.

mod change;
mod client;
mod exporter;
mod settings;

pub use change::{AcknowledgedProxy, ChangeTrace, ChangedObject, TraceOutcome};
pub use exporter::{ExportError, TraceExporter, TraceId};
pub use settings::{TraceSettingError, TraceSettings};
