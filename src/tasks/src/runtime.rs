//! A runtime beside the main one.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime with threads of its own, as many as there are CPUs: its tasks do not wait for those of other runtimes.
///
/// Its tasks are cancelled when it is dropped, which can be done on any thread.
#[derive(Debug)]
pub struct DedicatedRuntime {
    handle: Handle,
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
}

impl DedicatedRuntime {
    /// Starts the threads. Each is named `name` and calls `on_start` first.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn new(name: &str, on_start: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.enable_all().thread_name(name).on_thread_start(on_start);
        let runtime = builder.build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// The handle with which tasks are spawned.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for DedicatedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The value may be dropped on a thread of another runtime, which must not block.
            runtime.shutdown_background();
        }
    }
}
