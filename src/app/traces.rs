//! Traces of changes.

use std::sync::{Arc, PoisonError};

use sluice_admin::ChangeTracer;
use sluice_traces::TraceExporter;
use tracing::info;

use super::{App, AppError};

impl App {
    /// Traces changes from now on, if traces are on (`OTEL_TRACES_EXPORTER`).
    pub(super) fn trace_changes(&mut self) -> Result<(), AppError> {
        let Some(settings) = &self.config.traces else { return Ok(()) };
        let exporter = TraceExporter::new(settings, env!("CARGO_PKG_VERSION"));
        let exporter = exporter.map_err(AppError::runtime("set up traces"))?;
        let tracer = {
            let mut registry = self.admin.metrics.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::new(ChangeTracer::new(self.admin.clone(), exporter, &mut registry))
        };
        info!(endpoint = %settings.endpoint, share = settings.share, "tracing changes");
        let stop = self.tasks.stop();
        self.tasks.spawn_restarted("change tracer", move || tracer.clone().run(stop.clone()));
        Ok(())
    }
}
