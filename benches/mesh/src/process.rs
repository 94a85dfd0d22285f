//! CPU time and memory of a process.

use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Memory in KiB.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Memory {
    pub(crate) resident_kib: u64,
    pub(crate) peak_kib: u64,
}

/// Raises the limit of open files for this process and its children as far as the system allows.
pub(crate) fn raise_limits() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // If the limit stays low, opening a socket fails with an error that says so.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// A process, without its children.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    status: PathBuf,
    clock: ClockId,
}

impl Process {
    pub(crate) fn new(pid: u32) -> Result<Self> {
        let number = i32::try_from(pid).context("the process id is too large")?;
        let clock = clock_getcpuclockid(Pid::from_raw(number)).with_context(|| format!("find process {pid}"))?;
        Ok(Self { status: PathBuf::from(format!("/proc/{pid}/status")), clock })
    }

    /// CPU time of all its threads so far, including ended ones, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let time = self.clock.now().context("read the CPU time")?;
        Ok(std::time::Duration::from(time).as_secs_f64())
    }

    /// Lets the peak of the memory begin at its present size. False if the system does not allow it.
    pub(crate) fn reset_peak(&self) -> bool {
        std::fs::write(self.status.with_file_name("clear_refs"), "5").is_ok()
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        let status = std::fs::read_to_string(&self.status).context("read the server's memory")?;
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
    fn cpu_and_memory_are_measured() -> Result<()> {
        let own = Process::new(std::process::id())?;
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
