//! Resident memory of a process, and how far it grows during an attack.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// How much the resident memory of a process may grow at its peak during an attack, in KiB.
pub const MAX_GROWTH_KIB: u64 = 64 << 10;

/// Resident memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Memory {
    /// The present size.
    pub resident_kib: u64,
    /// The largest size since the start of the process, or since [`reset_peak`].
    pub peak_kib: u64,
}

impl Memory {
    /// The memory of a process, without its children.
    ///
    /// # Errors
    /// The process has ended.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().trim_end_matches(" kB").parse().ok()
        };
        Ok(Self {
            resident_kib: field("VmRSS:").context("find VmRSS")?,
            peak_kib: field("VmHWM:").context("find VmHWM")?,
        })
    }
}

/// Lets the peak of the memory of a process begin at its present size.
///
/// # Errors
/// The process has ended, or the system does not allow it.
pub fn reset_peak(pid: u32) -> std::io::Result<()> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// The growth of the resident memory of a process since the start of the watch, at its peak: memory that is released before
/// the growth is read counts. The start of a second watch of the process resets the peak of the first one.
#[derive(Clone, Copy, Debug)]
pub struct MemoryWatch {
    pid: u32,
    before_kib: u64,
}

impl MemoryWatch {
    /// Starts to watch a process.
    ///
    /// # Errors
    /// The process has ended, or the system does not allow to reset the peak.
    pub fn start(pid: u32) -> Result<Self> {
        reset_peak(pid).with_context(|| format!("reset the peak of the memory of process {pid}"))?;
        Ok(Self { pid, before_kib: Memory::of(pid)?.resident_kib })
    }

    /// The growth until now, in KiB.
    ///
    /// # Errors
    /// The process has ended.
    pub fn growth_kib(&self) -> Result<u64> {
        Ok(Memory::of(self.pid)?.peak_kib.saturating_sub(self.before_kib))
    }

    /// Checks that the growth is less than [`MAX_GROWTH_KIB`].
    ///
    /// # Errors
    /// It is not, or the process has ended. The message has the name of the attack.
    pub fn check_growth(&self, attack: &str) -> Result<()> {
        let growth = self.growth_kib()?;
        eprintln!("{attack}: memory grew by {growth} KiB");
        ensure!(growth < MAX_GROWTH_KIB, "{attack}: memory grew by {growth} KiB");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_released_before_the_check_counts() -> Result<()> {
        const BYTES: usize = 128 << 20;
        let watch = MemoryWatch::start(std::process::id())?;
        drop(std::hint::black_box(vec![1_u8; BYTES]));
        let error = watch.check_growth("a large buffer").err().context("the growth is too large")?;
        assert!(error.to_string().starts_with("a large buffer: memory grew by "), "{error:#}");
        let Memory { resident_kib, peak_kib } = Memory::of(std::process::id())?;
        assert!(resident_kib + MAX_GROWTH_KIB < peak_kib, "{resident_kib} KiB of {peak_kib} are resident");
        Ok(())
    }
}
