//! CPU time and memory of a process, from /proc.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Memory in KiB.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Memory {
    pub(crate) resident_kib: u64,
    pub(crate) peak_kib: u64,
}

/// A process, its children left out.
#[derive(Clone, Debug)]
pub(crate) struct Process(PathBuf);

impl Process {
    pub(crate) fn new(pid: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{pid}")))
    }

    /// CPU time of all its threads so far, in seconds. A thread that ended is in it by ticks of 10 ms only.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let mut nanos = 0u64;
        for task in std::fs::read_dir(self.0.join("task")).context("read the server's threads")? {
            // A thread may end meanwhile.
            let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
            nanos += text.split_whitespace().next().and_then(|first| first.parse::<u64>().ok()).unwrap_or_default();
        }
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let seconds = nanos as f64 / 1e9;
        Ok(seconds)
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        let status = std::fs::read_to_string(self.0.join("status")).context("read the server's memory")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().trim_end_matches(" kB").parse().ok()
        };
        Ok(Memory {
            resident_kib: field("VmRSS:").context("find VmRSS")?,
            peak_kib: field("VmHWM:").context("find VmHWM")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_memory_show() -> Result<()> {
        let own = Process::new(std::process::id());
        let before = own.cpu()?;
        let mut sum = 0u64;
        for number in 0..3_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_add(number * number));
        }
        assert!(own.cpu()? > before);
        assert!(own.memory()?.resident_kib > 100);
        Ok(())
    }
}
