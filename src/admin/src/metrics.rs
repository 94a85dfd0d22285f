//! The metrics page, and the metrics of the process and the engine (O07, O13).

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Instant, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use sluice_engine::Engine;

use crate::{AdminState, answer, process};

pub(crate) async fn serve(State(state): State<Arc<AdminState>>) -> Response<Body> {
    let mut text = String::new();
    let registry = state.metrics.lock().unwrap_or_else(PoisonError::into_inner);
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        // Not OpenMetrics: counters keep the names they have in istiod, without a suffix.
        Ok(()) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => {
            answer::fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the metrics cannot be encoded: {error}"))
        }
    }
}

/// Metrics of the process and of the engine, collected at each scrape.
#[derive(Debug)]
pub struct AdminMetrics {
    engine: Engine,
    started: Instant,
    started_at: SystemTime,
}

impl AdminMetrics {
    /// Adds the metrics of this process and of the engine to the registry.
    pub fn register(engine: Engine, registry: &mut Registry) {
        let it = Self { engine, started: Instant::now(), started_at: SystemTime::now() };
        registry.register_collector(Box::new(it));
    }
}

impl Collector for AdminMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let mut one = |name: &str, help: &str, metric_type: MetricType, value: f64| {
            Sample { value, metric_type }.encode(out.encode_descriptor(name, help, None, metric_type)?)
        };
        one(
            "istiod_uptime_seconds",
            "Seconds since the start",
            MetricType::Gauge,
            self.started.elapsed().as_secs_f64(),
        )?;
        let since = self.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        one(
            "process_start_time_seconds",
            "Start time, in seconds since the Unix epoch",
            MetricType::Gauge,
            since.as_secs_f64(),
        )?;
        if let Some(process) = process::read() {
            one("process_cpu_seconds_total", "Seconds of CPU time", MetricType::Counter, process.cpu_seconds)?;
            one(
                "process_resident_memory_bytes",
                "Resident memory in bytes",
                MetricType::Gauge,
                process.resident_bytes,
            )?;
            one("process_virtual_memory_bytes", "Virtual memory in bytes", MetricType::Gauge, process.virtual_bytes)?;
            one("process_open_fds", "Open file descriptors", MetricType::Gauge, process.open_files)?;
            one("process_max_fds", "Maximum number of open file descriptors", MetricType::Gauge, process.max_files)?;
            one("process_threads", "Threads", MetricType::Gauge, process.threads)?;
        }
        let engine = self.engine.metrics();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        {
            one("sluice_engine_epochs_total", "Epochs committed", MetricType::Counter, engine.epochs as f64)?;
            one("sluice_engine_queued", "Queued writes", MetricType::Gauge, engine.queued as f64)?;
        }
        one(
            "sluice_engine_busy_seconds_total",
            "Seconds of committing epochs",
            MetricType::Counter,
            engine.busy.as_secs_f64(),
        )?;
        one(
            "sluice_engine_last_epoch_seconds",
            "Seconds of the last epoch",
            MetricType::Gauge,
            engine.last_epoch.as_secs_f64(),
        )?;
        one(
            "sluice_engine_longest_epoch_seconds",
            "Seconds of the longest epoch",
            MetricType::Gauge,
            engine.longest_epoch.as_secs_f64(),
        )?;

        type Read = fn(&sluice_engine::CollectionMetrics) -> f64;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let families: [(&str, &str, MetricType, Read); 5] = [
            ("sluice_collection_records", "Number of records", MetricType::Gauge, |it| it.size as f64),
            ("sluice_collection_in_total", "Number of changed records in the inputs", MetricType::Counter, |it| {
                it.records_in as f64
            }),
            ("sluice_collection_out_total", "Number of changed records in the output", MetricType::Counter, |it| {
                it.records_out as f64
            }),
            ("sluice_collection_busy_seconds_total", "Seconds of computation", MetricType::Counter, |it| {
                it.busy.as_secs_f64()
            }),
            ("sluice_collection_panics_total", "Number of closures that panicked", MetricType::Counter, |it| {
                it.panics as f64
            }),
        ];
        for (name, help, metric_type, read) in families {
            let mut family = out.encode_descriptor(name, help, None, metric_type)?;
            for collection in &engine.collections {
                let labels = [("collection", collection.name.as_str())];
                let sample = Sample { value: read(collection), metric_type };
                sample.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// A sample whose name has no suffix, whatever its type.
struct Sample {
    value: f64,
    metric_type: MetricType,
}

impl Sample {
    fn encode(&self, encoder: prometheus_client::encoding::MetricEncoder<'_>) -> fmt::Result {
        EncodeMetric::encode(self, encoder)
    }
}

impl EncodeMetric for Sample {
    fn encode(&self, mut encoder: prometheus_client::encoding::MetricEncoder<'_>) -> fmt::Result {
        // A gauge is encoded as name, labels and value, without a suffix.
        encoder.encode_gauge(&self.value)
    }

    fn metric_type(&self) -> MetricType {
        self.metric_type
    }
}
