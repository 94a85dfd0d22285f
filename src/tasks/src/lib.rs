//! Supervision of long-running tasks and threads. Each has a name. If one panics or ends early, it is restarted where
//! its state permits that ([`restart`], [`restart_with`]), and otherwise the process ends with its name ([`Tasks`]).

mod attempts;
mod cpu_priority;
#[cfg(debug_assertions)]
pub mod faults;
#[cfg(not(debug_assertions))]
#[path = "no_faults.rs"]
mod faults;
mod group;
mod metrics;
mod restart;
mod runtime;
mod sleep;
mod thread;

pub use attempts::FailedAttempts;
pub use cpu_priority::{ShortRequests, lower_thread_priority};
pub use group::{TaskFailure, Tasks};
pub use metrics::{count_restart, restarting};
pub use restart::{catch_panic, restart, restart_with};
pub use runtime::DedicatedRuntime;
pub use sleep::sleep_until_due;
pub use thread::{NamedThread, ThreadEnd};

use std::any::Any;
use std::panic::resume_unwind;

use prometheus_client::registry::Registry;

/// Registers the metrics of tasks.
pub fn register(registry: &mut Registry) {
    metrics::register(registry);
    attempts::register(registry);
}

/// What follows when a task or thread panics.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Reaction {
    /// The task is restarted.
    TaskRestarts,
    /// The thread is restarted.
    ThreadRestarts,
    /// The process ends.
    TaskEndsProcess,
    /// The owner of the thread decides: most end the process.
    ThreadEnds,
}

/// A task or thread that panicked.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(String);

impl Panicked {
    /// The panic of this payload.
    #[must_use]
    pub fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self(text.unwrap_or_else(|| "without a message".to_owned()))
    }

    /// Continues the panic, without logging it again.
    pub fn resume(self) -> ! {
        resume_unwind(Box::new(self.0))
    }
}
