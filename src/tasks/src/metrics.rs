//! Restarts of tasks, as a metric and for `/ready`. They are counted for the whole process, because tasks start in all
//! components.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_telemetry::Count;

/// Labels of `sluice_task_restarts_total` and `sluice_task_failed_attempts_total`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
pub(crate) struct TaskLabel {
    pub(crate) task: String,
}

static RESTARTS: LazyLock<Family<TaskLabel, Count>> = LazyLock::new(Family::default);

/// Number of tasks of each name that wait for their restart.
static RESTARTING: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

pub(crate) fn register(registry: &mut Registry) {
    registry.register("sluice_task_restarts_total", "Tasks that failed and were restarted", RESTARTS.clone());
}

/// Counts a restart of a task.
pub fn count_restart(task: &str) {
    RESTARTS.get_or_create(&TaskLabel { task: task.to_owned() }).inc();
}

/// Names of the tasks that wait for their restart.
#[must_use]
pub fn restarting() -> Vec<String> {
    waiting().keys().cloned().collect()
}

fn waiting() -> MutexGuard<'static, BTreeMap<String, usize>> {
    RESTARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names a task as waiting until it is dropped.
pub(crate) struct WaitingTask(String);

impl WaitingTask {
    pub(crate) fn new(task: &str) -> Self {
        *waiting().entry(task.to_owned()).or_default() += 1;
        Self(task.to_owned())
    }
}

impl Drop for WaitingTask {
    fn drop(&mut self) {
        let mut waiting = waiting();
        if let Some(count) = waiting.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.0);
            }
        }
    }
}
