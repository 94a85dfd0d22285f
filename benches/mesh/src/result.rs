//! The result of a run, as stored in JSON.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::change::ChangeKind;
use crate::process::Memory;
use crate::shape::Shape;
use crate::shared::Traffic;
use crate::statistics::of;

/// Shares of proxies at which a latency distribution is stored.
pub(crate) const SHARES: [f64; 21] =
    [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0];

/// A whole run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RunResult {
    pub(crate) machine: Machine,
    /// The measured build: `git describe` in the directory of the binary.
    pub(crate) commit: String,
    /// Day of the run, as `YYYY-MM-DD`.
    #[serde(default)]
    pub(crate) date: String,
    pub(crate) shape: Shape,
    pub(crate) proxies: usize,
    pub(crate) protocol: String,
    /// Where objects were written.
    #[serde(default)]
    pub(crate) driver: String,
    /// Proxies subscribed virtual hosts one by one.
    #[serde(default)]
    pub(crate) virtual_hosts: bool,
    /// Proxies subscribed endpoints one by one.
    #[serde(default)]
    pub(crate) endpoints_by_locality: bool,
    /// From the start of the process to ready; none for a server that was running.
    pub(crate) ready_seconds: Option<f64>,
    /// The same for every start; `ready_seconds` is their median.
    #[serde(default)]
    pub(crate) starts_seconds: Vec<f64>,
    pub(crate) ready_memory: Option<Memory>,
    pub(crate) connect: StormResult,
    pub(crate) changes: Vec<ChangeResult>,
    pub(crate) storms: Vec<StormResult>,
    pub(crate) end_memory: Option<Memory>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    pub(crate) model: String,
    pub(crate) memory_mib: u64,
    /// Load average over a minute at the start of the run.
    pub(crate) load: f64,
}

impl Machine {
    pub(crate) fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        Self {
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            model: value(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            memory_mib: memory.trim_end_matches(" kB").parse::<u64>().unwrap_or_default() / 1024,
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default(),
        }
    }
}

/// All changes of a kind.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ChangeResult {
    pub(crate) kind: ChangeKind,
    /// Proxies that it affects.
    pub(crate) affected: usize,
    pub(crate) rounds: Vec<Round>,
    /// How long the same bytes take to as many readers through bare sockets.
    #[serde(default)]
    pub(crate) loopback_ms: Option<f64>,
}

/// One change.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Round {
    /// From the write to the first and the last proxy that holds it, in milliseconds; none if it affects no proxy.
    pub(crate) first_ms: Option<f64>,
    pub(crate) last_ms: Option<f64>,
    /// Latency over proxies at [`SHARES`].
    pub(crate) distribution_ms: Vec<f64>,
    /// Proxies that it did not reach in time.
    pub(crate) missed: usize,
    pub(crate) traffic: Traffic,
    pub(crate) server_cpu_seconds: Option<f64>,
    pub(crate) own_cpu_seconds: f64,
}

/// Many streams at once.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct StormResult {
    pub(crate) name: String,
    /// From the start until each proxy had everything, in milliseconds at [`SHARES`].
    pub(crate) distribution_ms: Vec<f64>,
    pub(crate) missed: usize,
    pub(crate) traffic: Traffic,
    pub(crate) server_cpu_seconds: Option<f64>,
    pub(crate) own_cpu_seconds: f64,
    pub(crate) memory: Option<Memory>,
    /// The memory before the storm, of the same process.
    #[serde(default)]
    pub(crate) memory_before: Option<Memory>,
    /// How long the same bytes take to as many readers through bare sockets.
    #[serde(default)]
    pub(crate) loopback_ms: Option<f64>,
    /// Changes made during the storm, if any.
    #[serde(default)]
    pub(crate) beside: Option<ConcurrentChanges>,
}

impl StormResult {
    /// The peak of the memory above the memory before the storm, in KiB. The peak is that of the process so far, so the
    /// growth is at most this.
    pub(crate) fn growth_kib(&self) -> Option<u64> {
        Some(self.memory?.peak_kib.saturating_sub(self.memory_before?.resident_kib))
    }
}

/// Milliseconds until changes reached their last proxy, before and during a storm.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ConcurrentChanges {
    pub(crate) kind: ChangeKind,
    pub(crate) quiet_ms: Vec<f64>,
    pub(crate) storm_ms: Vec<f64>,
}

impl ConcurrentChanges {
    /// Medians, and their ratio.
    pub(crate) fn medians(&self) -> (f64, f64, f64) {
        let (quiet, storm) = (of(self.quiet_ms.iter().copied(), 0.5), of(self.storm_ms.iter().copied(), 0.5));
        (quiet, storm, if quiet > 0.0 { storm / quiet } else { 0.0 })
    }
}

impl RunResult {
    /// Writes it as JSON.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }
}

/// Reads results.
pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<RunResult>> {
    paths.iter().map(|path| read(path)).collect()
}

pub(crate) fn read(path: &Path) -> Result<RunResult> {
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a result of a run", path.display()))
}
