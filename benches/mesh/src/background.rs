//! Threads for proxies that are not measured: they get a CPU only when no other thread needs it.

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// The lowest priority.
const LOWEST_PRIORITY: i32 = 19;

/// A runtime with as many such threads as CPUs.
pub(crate) struct Background(Option<Runtime>);

impl Background {
    pub(crate) fn new() -> Result<Self> {
        let lower = || {
            // On Linux, `nice` applies to the calling thread. If it fails, the measured latencies are higher, never
            // lower.
            let _ = rustix::process::nice(LOWEST_PRIORITY);
        };
        let runtime = Builder::new_multi_thread().enable_all().thread_name("background").on_thread_start(lower).build();
        Ok(Self(Some(runtime.context("start background threads")?)))
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.0.as_ref().map(Runtime::handle)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // The value may be dropped on a thread of another runtime, which must not block.
            runtime.shutdown_background();
        }
    }
}
