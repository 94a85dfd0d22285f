//! CPU time and memory of a process.

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
pub(crate) use sluice_testkit::memory::Memory;
use sluice_testkit::memory::reset_peak;

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
    pid: u32,
    clock: ClockId,
}

impl Process {
    pub(crate) fn new(pid: u32) -> Result<Self> {
        let number = i32::try_from(pid).context("the process id is too large")?;
        let clock = clock_getcpuclockid(Pid::from_raw(number)).with_context(|| format!("find process {pid}"))?;
        Ok(Self { pid, clock })
    }

    /// CPU time of all its threads so far, including ended ones, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let time = self.clock.now().context("read the CPU time")?;
        Ok(std::time::Duration::from(time).as_secs_f64())
    }

    /// Lets the peak of the memory begin at its present size. False if the system does not allow it.
    pub(crate) fn reset_peak(&self) -> bool {
        reset_peak(self.pid).is_ok()
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        Memory::of(self.pid)
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
