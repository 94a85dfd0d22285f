//! Restarts of a task that panics or fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::error;

use crate::metrics::{WaitingTask, count_restart};
use crate::{Panicked, Reaction, faults};

/// Wait before the first restart. It doubles with each further one.
const FIRST_RESTART_WAIT: Duration = Duration::from_millis(500);
/// Longest wait before a restart.
const MAX_RESTART_WAIT: Duration = Duration::from_secs(30);
/// A task that runs for this time is considered healthy: its next restart waits for [`FIRST_RESTART_WAIT`].
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// Runs a future; an error if it panics.
///
/// # Errors
/// The future panics. Its state is dropped.
pub async fn catch_panic<T>(task: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(task).catch_unwind().await.map_err(|payload| Panicked::new(&*payload))
}

/// Runs the task that `make` makes, and makes another one each time that it panics or fails, after a wait. Returns the
/// result of the first one that succeeds. The task is on the heap: it can be large, and each future around it would move and hold a
/// copy, which exceeds the stack of a thread in builds without optimisation.
pub async fn restart<T, F>(name: &str, make: impl FnMut() -> F) -> T
where
    F: Future<Output = anyhow::Result<T>> + Send,
{
    let mut make = make;
    let mut failures = 0;
    loop {
        let started = Instant::now();
        let cause = match catch_panic(faults::run(name, Reaction::TaskRestarts, async { Box::pin(make()).await })).await
        {
            Ok(Ok(result)) => return result,
            Ok(Err(error)) => error,
            Err(panic) => panic.into(),
        };
        wait_for_restart(name, &cause, started, &mut failures).await;
    }
}

/// As [`restart`], for a task whose state outlives it. The task must accept the state that a panic leaves.
pub async fn restart_with<S, T>(
    name: &str,
    state: &mut S,
    mut run: impl for<'a> FnMut(&'a mut S) -> BoxFuture<'a, T>,
) -> T {
    let mut failures = 0;
    loop {
        let started = Instant::now();
        match catch_panic(faults::run(name, Reaction::TaskRestarts, async { run(&mut *state).await })).await {
            Ok(result) => return result,
            Err(panic) => wait_for_restart(name, &panic.into(), started, &mut failures).await,
        }
    }
}

/// Runs the thread that `run` runs, and runs it again each time that it panics, after a wait. `run` must accept the state that a
/// panic leaves.
pub(crate) fn restart_thread(name: &str, mut run: impl FnMut()) {
    let mut failures = 0;
    loop {
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| faults::run_thread(name, Reaction::ThreadRestarts, &mut run)));
        let Err(payload) = result else { return };
        let wait = next_wait(name, &Panicked::new(&*payload).into(), started, &mut failures);
        let waiting = WaitingTask::new(name);
        std::thread::sleep(wait);
        drop(waiting);
        count_restart(name);
    }
}

/// Logs a failure. Returns the wait before the restart.
fn next_wait(name: &str, cause: &anyhow::Error, started: Instant, failures: &mut u32) -> Duration {
    if started.elapsed() >= HEALTHY_AFTER {
        *failures = 0;
    }
    let wait = restart_wait(*failures);
    *failures += 1;
    error!(task = name, cause = format!("{cause:#}"), ?wait, "task failed and is restarted");
    wait
}

async fn wait_for_restart(name: &str, cause: &anyhow::Error, started: Instant, failures: &mut u32) {
    let wait = next_wait(name, cause, started, failures);
    let waiting = WaitingTask::new(name);
    tokio::time::sleep(wait).await;
    drop(waiting);
    count_restart(name);
}

/// The wait after this number of earlier failures.
fn restart_wait(failures: u32) -> Duration {
    FIRST_RESTART_WAIT.saturating_mul(2u32.saturating_pow(failures)).min(MAX_RESTART_WAIT)
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::restarting;

    fn metrics() -> String {
        let mut registry = Registry::default();
        crate::register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
        text
    }

    #[tokio::test]
    async fn task_that_panics_or_fails_is_restarted_with_a_growing_wait_and_counted() {
        let mut starts = 0;
        let result = restart("reader of the test", || {
            starts += 1;
            let number = starts;
            async move {
                match number {
                    1 => panic!("a bug"),
                    2 => anyhow::bail!("the listener failed"),
                    number => Ok(number),
                }
            }
        })
        .await;
        assert_eq!(result, 3);
        assert_eq!(
            [0, 1, 2, 6, 99].map(|failures| restart_wait(failures).as_millis()),
            [500, 1000, 2000, 30_000, 30_000]
        );
        assert!(metrics().contains("sluice_task_restarts_total{task=\"reader of the test\"} 2"), "{}", metrics());
    }

    #[tokio::test]
    async fn waiting_task_is_named_and_keeps_its_state() {
        let mut state = Vec::new();
        let mut running = Box::pin(restart_with("watch of the test", &mut state, |state: &mut Vec<bool>| {
            async move {
                state.push(restarting().contains(&"watch of the test".to_owned()));
                assert!(state.len() > 2, "a bug");
            }
            .boxed()
        }));
        assert!(running.as_mut().now_or_never().is_none(), "it waits");
        assert!(restarting().contains(&"watch of the test".to_owned()));
        running.await;
        assert_eq!(state, [false; 3], "it does not wait while it runs");
    }
}
