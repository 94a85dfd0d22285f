//! OpenTelemetry traces of changes: their settings, spans, and export over OTLP.
//!
//! A trace is made when all proxies have acknowledged a change, from times that are recorded anyway. Nothing is recorded
//! for it while the change is under way.

mod change;
mod client;
mod error;
mod exporter;
mod settings;

pub use change::{AcknowledgedProxy, ChangeTrace, ChangedObject, TraceId, TraceOutcome};
pub use error::ExportError;
pub use exporter::TraceExporter;
pub use settings::{TraceSettingError, TraceSettings};
