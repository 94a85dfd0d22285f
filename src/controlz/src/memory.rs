//! Memory of the process.

use std::fs;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::put;
use serde_json::{Map, Value, json};

use crate::{Topic, fail};

/// Fields of Go's `runtime.MemStats` that have no counterpart: there is no garbage collector.
const ABSENT: [&str; 20] = [
    "BuckHashSys",
    "Frees",
    "GCCPUFraction",
    "GCSys",
    "HeapObjects",
    "LastGC",
    "Lookups",
    "MCacheInuse",
    "MCacheSys",
    "MSpanInuse",
    "MSpanSys",
    "Mallocs",
    "NextGC",
    "NumForcedGC",
    "NumGC",
    "OtherSys",
    "PauseTotalNs",
    "StackInuse",
    "TotalAlloc",
    "HeapReleased",
];

/// The topic of memory. The values of the kernel are under the names of Go's `runtime.MemStats`, which readers of the page
/// expect. Fields without a counterpart are 0.
#[must_use]
pub fn memory() -> Topic {
    Topic::of_value("mem", "Memory Usage", "memory of the process, as the kernel counts it", || {
        let bytes = |name| Value::from(status_kib(name) << 10);
        let mut fields: Map<String, Value> = ABSENT.iter().map(|name| ((*name).to_owned(), json!(0))).collect();
        let resident = status_kib("RssAnon");
        for (name, value) in [
            ("Alloc", bytes("RssAnon")),
            ("HeapAlloc", bytes("RssAnon")),
            ("HeapInuse", bytes("RssAnon")),
            ("HeapIdle", Value::from(status_kib("VmData").saturating_sub(resident) << 10)),
            ("HeapSys", bytes("VmData")),
            ("StackSys", bytes("VmStk")),
            ("Sys", bytes("VmSize")),
            ("Resident", bytes("VmRSS")),
            ("MaxResident", bytes("VmHWM")),
            ("EnableGC", json!(false)),
            ("DebugGC", json!(false)),
            ("BySize", json!([])),
            ("PauseEnd", json!([])),
            ("PauseNs", json!([])),
        ] {
            fields.insert(name.to_owned(), value);
        }
        Value::Object(fields)
    })
    .with_routes(Router::new().route("/memj/forcecollection", put(no_collector)))
}

async fn no_collector() -> Response {
    fail(StatusCode::NOT_IMPLEMENTED, "there is no garbage collector: memory is freed when it is no longer used")
}

/// A value in KiB of a line of `/proc/self/status`; 0 without it.
pub(crate) fn status_kib(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn resident_memory_is_part_of_the_virtual_memory() {
        let (resident, size) = (super::status_kib("VmRSS"), super::status_kib("VmSize"));
        assert!(resident > 100 && size >= resident, "{resident} {size}");
        assert_eq!(super::status_kib("VmNone"), 0);
    }
}
