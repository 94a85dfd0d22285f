//! The metrics page, and the metrics of the process and the engine (O07, O13).

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Instant, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use sluice_engine::{CollectionMetrics, Engine, EngineMetrics};
use sluice_telemetry::Sample;

use crate::version::BUILD;
use crate::{AdminState, answer, process};

pub(crate) async fn serve(State(state): State<Arc<AdminState>>) -> Response<Body> {
    match text(&state) {
        // Not OpenMetrics: counters keep the names they have in istiod, without a suffix.
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => {
            answer::fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the metrics cannot be encoded: {error}"))
        }
    }
}

/// All metrics in the text format of Prometheus.
pub(crate) fn text(state: &AdminState) -> Result<String, String> {
    let mut text = String::new();
    let registry = state.metrics.lock().unwrap_or_else(PoisonError::into_inner);
    prometheus_client::encoding::text::encode(&mut text, &registry).map_err(|error| error.to_string())?;
    Ok(text)
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
        let engine = self.engine.metrics();
        self.encode_build(&mut out)?;
        encode_process(&mut out)?;
        encode_engine(&mut out, &engine)
    }
}

/// A metric without labels.
fn one(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, metric_type: MetricType, value: f64) -> fmt::Result {
    Sample { value, metric_type }.encode(out.encode_descriptor(name, help, None, metric_type)?)
}

impl AdminMetrics {
    /// Version and age of the process.
    fn encode_build(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (one_build, version) = (Sample { value: 1.0, metric_type: MetricType::Gauge }, BUILD.to_string());
        let mut info = out.encode_descriptor("pilot_info", "Version of this build", None, MetricType::Gauge)?;
        one_build.encode(info.encode_family(&[("version", version.as_str())])?)?;
        let help = "Version of this build, as all components of the mesh have it";
        let mut build = out.encode_descriptor("istio_build", help, None, MetricType::Gauge)?;
        one_build.encode(build.encode_family(&[("component", "pilot"), ("tag", BUILD.tag)])?)?;
        let uptime = self.started.elapsed().as_secs_f64();
        one(out, "istiod_uptime_seconds", "Seconds since the start", MetricType::Gauge, uptime)?;
        let since = self.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let help = "Start time, in seconds since the Unix epoch";
        one(out, "process_start_time_seconds", help, MetricType::Gauge, since.as_secs_f64())
    }
}

fn encode_process(out: &mut DescriptorEncoder<'_>) -> fmt::Result {
    use MetricType::{Counter, Gauge};
    let Some(process) = process::read() else { return Ok(()) };
    for (name, help, metric_type, value) in [
        ("process_cpu_seconds_total", "Seconds of CPU time", Counter, process.cpu_seconds),
        ("process_resident_memory_bytes", "Resident memory in bytes", Gauge, process.resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory in bytes", Gauge, process.virtual_bytes),
        (
            "process_virtual_memory_max_bytes",
            "Limit of virtual memory in bytes; -1 for none",
            Gauge,
            process.max_virtual,
        ),
        ("process_network_receive_bytes_total", "Bytes that this host has received", Counter, process.received_bytes),
        ("process_network_transmit_bytes_total", "Bytes that this host has sent", Counter, process.sent_bytes),
        ("process_open_fds", "Open file descriptors", Gauge, process.open_files),
        ("process_max_fds", "Maximum number of open file descriptors", Gauge, process.max_files),
        ("process_threads", "Threads", Gauge, process.threads),
    ] {
        one(out, name, help, metric_type, value)?;
    }
    Ok(())
}

/// Reads the value of a collection.
type ReadCollection = fn(&CollectionMetrics) -> f64;

/// Metrics of each collection.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
const COLLECTION_METRICS: [(&str, &str, MetricType, ReadCollection); 5] = [
    ("sluice_collection_records", "Number of records", MetricType::Gauge, |it| it.size as f64),
    ("sluice_collection_in_total", "Number of changed records in the inputs", MetricType::Counter, |it| {
        it.records_in as f64
    }),
    ("sluice_collection_out_total", "Number of changed records in the output", MetricType::Counter, |it| {
        it.records_out as f64
    }),
    ("sluice_collection_busy_seconds_total", "Seconds of computation", MetricType::Counter, |it| it.busy.as_secs_f64()),
    ("sluice_collection_panics_total", "Number of closures that panicked", MetricType::Counter, |it| it.panics as f64),
];

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn encode_engine(out: &mut DescriptorEncoder<'_>, engine: &EngineMetrics) -> fmt::Result {
    use MetricType::{Counter, Gauge};
    let size = |collection: &str| {
        let found = engine.collections.iter().find(|it| it.name.as_str() == collection);
        found.map_or(0.0, |it| it.size as f64)
    };
    for (name, help, metric_type, value) in [
        ("pilot_services", "Services of the mesh", Gauge, size("services")),
        ("pilot_virt_services", "VirtualServices of the mesh", Gauge, size("virtual_services")),
        ("sluice_engine_epochs_total", "Epochs committed", Counter, engine.epochs as f64),
        ("sluice_engine_queued", "Queued writes", Gauge, engine.queued as f64),
        ("sluice_engine_busy_seconds_total", "Seconds of committing epochs", Counter, engine.busy.as_secs_f64()),
        ("sluice_engine_last_epoch_seconds", "Seconds of the last epoch", Gauge, engine.last_epoch.as_secs_f64()),
        (
            "sluice_engine_longest_epoch_seconds",
            "Seconds of the longest epoch",
            Gauge,
            engine.longest_epoch.as_secs_f64(),
        ),
    ] {
        one(out, name, help, metric_type, value)?;
    }
    for (name, help, metric_type, read) in COLLECTION_METRICS {
        let mut family = out.encode_descriptor(name, help, None, metric_type)?;
        for collection in &engine.collections {
            let labels = [("collection", collection.name.as_str())];
            let sample = Sample { value: read(collection), metric_type };
            sample.encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
