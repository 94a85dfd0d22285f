//! The long-running tasks of the process, by name.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::AppError;

/// Tasks that run until the process stops. If a task ends or panics earlier, the process fails.
pub(super) struct Tasks {
    running: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
    stop: CancellationToken,
}

impl Tasks {
    /// Without tasks. `stop` is the token that ends the process.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { running: JoinSet::new(), names: HashMap::new(), stop }
    }

    /// The token that ends the process.
    pub(super) fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Runs a task that can fail. The task must end when the process stops.
    pub(super) fn spawn_fallible<E: Into<anyhow::Error>>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let handle = self.running.spawn(async move { task.await.map_err(Into::into) });
        self.names.insert(handle.id(), name);
    }

    /// Runs a task that ends when the process stops.
    pub(super) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_fallible(name, async move {
            task.await;
            Ok::<_, Infallible>(())
        });
    }

    /// Runs a task that does not use the token, and drops it when the process stops.
    pub(super) fn spawn_until_stop(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.spawn(name, async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Waits for a condition. `None` if the process is stopped first.
    ///
    /// # Errors
    /// A task ended or panicked first.
    pub(super) async fn wait_for<T>(&mut self, condition: impl Future<Output = T>) -> Result<Option<T>, AppError> {
        let stop = self.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => Ok(None),
            Some(ended) = self.running.join_next_with_id() => Err(self.failure(ended)),
            value = condition => Ok(Some(value)),
        }
    }

    /// Waits until all tasks have ended after a stop. Tasks that are still running after `limit` are cancelled.
    pub(super) async fn drain(mut self, limit: Duration) {
        let drained = tokio::time::timeout(limit, async {
            while let Some(ended) = self.running.join_next_with_id().await {
                let id = match &ended {
                    Ok((id, _)) => *id,
                    Err(error) => error.id(),
                };
                if !matches!(ended, Ok((_, Ok(())))) {
                    let error = self.failure(ended);
                    error!(%error, "task failed during shutdown");
                }
                self.names.remove(&id);
            }
        });
        if drained.await.is_err() {
            let mut tasks: Vec<&str> = self.names.values().copied().collect();
            tasks.sort_unstable();
            warn!(
                limit_seconds = limit.as_secs_f64(),
                tasks = tasks.join(", "),
                "tasks did not end within the shutdown limit and are cancelled"
            );
        }
    }

    fn failure(&self, ended: Result<(Id, anyhow::Result<()>), JoinError>) -> AppError {
        let (id, cause) = match ended {
            Ok((id, Ok(()))) => (id, anyhow::anyhow!("it ended before the process was stopped")),
            Ok((id, Err(error))) => (id, error),
            Err(error) => (error.id(), error.into()),
        };
        AppError::Task { name: self.names.get(&id).copied().unwrap_or("unnamed"), cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn task_that_ends_or_panics_is_reported_by_name() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("idle", std::future::pending());
        assert_eq!(tasks.wait_for(async { 7 }).await.expect("no task has ended"), Some(7));
        tasks.spawn("reader", async {});
        let error = tasks.wait_for(std::future::pending::<()>()).await.expect_err("the task has ended").to_string();
        assert_eq!(error, "task reader: it ended before the process was stopped");
        tasks.spawn_fallible("server", async { anyhow::bail!("the listener failed") });
        let error = tasks.wait_for(std::future::pending::<()>()).await.expect_err("the task has failed").to_string();
        assert_eq!(error, "task server: the listener failed");
        tasks.spawn("writer", async { panic!("broken") });
        let error = tasks.wait_for(std::future::pending::<()>()).await.expect_err("the task has panicked").to_string();
        assert!(error.starts_with("task writer: ") && error.contains("panicked"), "{error}");
    }

    #[tokio::test]
    async fn stop_precedes_tasks_that_end_with_it() {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        tasks.spawn_until_stop("follower", std::future::pending());
        stop.cancel();
        assert!(tasks.wait_for(std::future::pending::<()>()).await.expect("a stop is not a failure").is_none());
        tasks.drain(Duration::from_secs(10)).await;
    }
}
