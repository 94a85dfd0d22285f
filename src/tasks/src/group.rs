//! The long-running tasks of the process, by name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::{Panicked, Reaction, ThreadEnd, faults, restart};

/// How long after the end of a task another one may report the panic that caused it.
const CAUSE_WAIT: Duration = Duration::from_millis(200);

/// A task that has ended, as the set of tasks reports it.
type EndedTask = Result<(Id, anyhow::Result<()>), JoinError>;

/// A task that runs until the process stops has ended, failed or panicked.
#[derive(Debug, thiserror::Error)]
#[error("task {name}: {cause:#}")]
pub struct TaskFailure {
    /// Its name.
    pub name: Cow<'static, str>,
    /// The reason why it ended.
    pub cause: anyhow::Error,
}

/// Tasks that run until the process stops. If a task ends or panics earlier, the process fails.
#[derive(Debug)]
pub struct Tasks {
    running: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, Cow<'static, str>>,
    requested: CancellationToken,
    stop: CancellationToken,
    /// Cancelled when the first task ends.
    ended: CancellationToken,
}

impl Tasks {
    /// Without tasks. `requested` is cancelled when the process is to stop.
    #[must_use]
    pub fn new(requested: CancellationToken) -> Self {
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        Self { running: JoinSet::new(), names: HashMap::new(), requested, stop, ended }
    }

    /// The token that [`Self::stop_all`] cancels. Tasks end then.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// The token that requests the end of the process.
    #[must_use]
    pub fn requested(&self) -> CancellationToken {
        self.requested.clone()
    }

    /// Runs a task that can fail. The task must end when the process stops.
    pub fn spawn_fallible<E: Into<anyhow::Error>>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let name = name.into();
        let named = name.clone();
        self.run(name, async move { faults::run(&named, Reaction::TaskEndsProcess, task).await.map_err(Into::into) });
    }

    /// As [`Self::spawn`], on the runtime of a handle.
    pub fn spawn_on(&mut self, runtime: &Handle, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let _runtime = runtime.enter();
        self.spawn(name, task);
    }

    fn run(&mut self, name: Cow<'static, str>, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let ended = self.ended.clone().drop_guard();
        // Boxed, because the runtime's code is compiled again for each type of task.
        let task: BoxFuture<'static, anyhow::Result<()>> = Box::pin(task);
        let handle = self.running.spawn(async move {
            // It is dropped after a panic, too.
            let _ended = ended;
            task.await
        });
        self.names.insert(handle.id(), name);
    }

    /// Runs a task that ends when the process stops.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_fallible(name, async move {
            task.await;
            Ok::<_, Infallible>(())
        });
    }

    /// Runs a task that does not use the token, and drops it when the process stops.
    pub fn spawn_until_stop(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.spawn(name, async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Runs a task that `make` makes again each time that it panics. The task must end when the process stops.
    pub fn spawn_restarted<F>(&mut self, name: &'static str, mut make: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.run(name.into(), async move {
            restart(name, move || succeed(make())).await;
            Ok(())
        });
    }

    /// As [`Self::spawn_restarted`], for a task that does not use the token. It is dropped when the process stops.
    pub fn spawn_restarted_until_stop<F>(&mut self, name: &'static str, mut make: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.run(name.into(), async move {
            tokio::select! {
                () = restart(name, move || succeed(make())) => {}
                () = stop.cancelled() => {}
            }
            Ok(())
        });
    }

    /// The process fails if this thread ends before the process stops.
    pub fn watch_thread(&mut self, end: ThreadEnd) {
        let (ThreadEnd { name, ended }, stop) = (end, self.stop.clone());
        self.run(name.into(), async move {
            let ended: Result<(), Panicked> = tokio::select! {
                // Without a result, the thread was not started.
                ended = ended => ended.unwrap_or(Ok(())),
                () = stop.cancelled() => Ok(()),
            };
            Ok(ended?)
        });
    }

    /// Waits for a condition. `None` if the end of the process is requested first.
    ///
    /// # Errors
    /// A task ended or panicked first.
    pub async fn wait_for<T>(&mut self, condition: impl Future<Output = T>) -> Result<Option<T>, TaskFailure> {
        let requested = self.requested.clone();
        tokio::select! {
            biased;
            () = requested.cancelled() => Ok(None),
            Some(ended) = self.running.join_next_with_id() => Err(self.cause_of(ended).await),
            value = condition => Ok(Some(value)),
        }
    }

    /// Waits until the end of the process is requested, or a task has ended or panicked. [`Self::wait_for`] returns then.
    pub fn interrupted(&self) -> impl Future<Output = ()> + use<> {
        let (requested, ended) = (self.requested.clone(), self.ended.clone());
        async move {
            tokio::select! {
                () = requested.cancelled() => {}
                () = ended.cancelled() => {}
            }
        }
    }

    /// Tells all tasks to end.
    pub fn stop_all(&self) {
        self.stop.cancel();
    }

    /// Waits until all tasks have ended after [`Self::stop_all`]. Those named in `last` are stopped by `stop_last` after all
    /// others. Tasks that are still running after `limit` are cancelled.
    pub async fn drain(mut self, limit: Duration, last: &[&str], stop_last: &CancellationToken) {
        let drained = tokio::time::timeout(limit, async {
            loop {
                if self.names.values().all(|name| last.contains(&&**name)) {
                    stop_last.cancel();
                }
                let Some(ended) = self.running.join_next_with_id().await else { return };
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
            let mut tasks: Vec<&str> = self.names.values().map(|name| &**name).collect();
            tasks.sort_unstable();
            warn!(
                limit_seconds = limit.as_secs_f64(),
                tasks = tasks.join(", "),
                "tasks did not end within the shutdown limit and are cancelled"
            );
        }
    }

    /// The failure behind the end of a task: one that only ended may have been fed by a task that panicked, and whose panic
    /// is reported a moment later.
    async fn cause_of(&mut self, ended: EndedTask) -> TaskFailure {
        let is_failure = |ended: &EndedTask| !matches!(ended, Ok((_, Ok(()))));
        let failed = is_failure(&ended);
        let first = self.failure(ended);
        if failed {
            return first;
        }
        let deadline = tokio::time::Instant::now() + CAUSE_WAIT;
        while let Ok(Some(next)) = tokio::time::timeout_at(deadline, self.running.join_next_with_id()).await {
            let failed = is_failure(&next);
            let failure = self.failure(next);
            if failed {
                return failure;
            }
        }
        first
    }

    /// The failure of a task that has ended. Its name is forgotten.
    fn failure(&mut self, ended: EndedTask) -> TaskFailure {
        let (id, cause) = match ended {
            Ok((id, Ok(()))) => (id, anyhow::anyhow!("it ended before the process was stopped")),
            Ok((id, Err(error))) => (id, error),
            Err(error) => (error.id(), error.into()),
        };
        TaskFailure { name: self.names.remove(&id).unwrap_or("unnamed".into()), cause }
    }
}

async fn succeed(task: impl Future<Output = ()>) -> anyhow::Result<()> {
    task.await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NamedThread;

    async fn failure(tasks: &mut Tasks) -> String {
        tasks.wait_for(std::future::pending::<()>()).await.expect_err("the task has ended").to_string()
    }

    #[tokio::test]
    async fn panic_is_the_cause_of_the_end_of_another_task() {
        let mut tasks = Tasks::new(CancellationToken::new());
        let (values, mut fed) = tokio::sync::mpsc::channel::<()>(1);
        tasks.spawn("fed", async move { while fed.recv().await.is_some() {} });
        tasks.spawn("feeder", async move {
            drop(values);
            tokio::time::sleep(Duration::from_millis(20)).await;
            panic!("by the test");
        });
        let failure = tasks.wait_for(std::future::pending::<()>()).await.expect_err("it failed").to_string();
        assert!(failure.starts_with("task feeder: ") && failure.contains("by the test"), "{failure}");
    }

    #[tokio::test]
    async fn task_that_ends_or_panics_is_reported_by_name() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("idle", std::future::pending());
        assert_eq!(tasks.wait_for(async { 7 }).await.expect("no task has ended"), Some(7));
        tasks.spawn("reader", async {});
        assert_eq!(failure(&mut tasks).await, "task reader: it ended before the process was stopped");
        tasks.spawn_fallible("server", async { anyhow::bail!("the listener failed") });
        assert_eq!(failure(&mut tasks).await, "task server: the listener failed");
        tasks.spawn("writer", async { panic!("broken") });
        let error = failure(&mut tasks).await;
        assert!(error.starts_with("task writer: ") && error.contains("panicked"), "{error}");
    }

    #[tokio::test]
    async fn thread_that_ends_or_panics_is_reported_by_name() {
        let mut tasks = Tasks::new(CancellationToken::new());
        let mut watch = |run: fn()| {
            let mut thread = NamedThread::start("files", run).expect("a thread");
            tasks.watch_thread(thread.end().expect("the first call"));
        };
        watch(|| panic!("broken"));
        assert_eq!(failure(&mut tasks).await, "task files: panicked: broken");
        let mut thread = NamedThread::start("files", || {}).expect("a thread");
        tasks.watch_thread(thread.end().expect("the first call"));
        assert_eq!(failure(&mut tasks).await, "task files: it ended before the process was stopped");
    }

    #[tokio::test]
    async fn end_of_a_task_interrupts_the_start() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("idle", std::future::pending());
        let interrupted = tasks.interrupted();
        tasks.spawn("writer", async { panic!("broken") });
        interrupted.await;
        assert!(failure(&mut tasks).await.starts_with("task writer: "));
    }

    #[tokio::test]
    async fn request_to_stop_precedes_tasks_that_end_with_it() {
        let requested = CancellationToken::new();
        let mut tasks = Tasks::new(requested.clone());
        tasks.spawn_until_stop("follower", std::future::pending());
        requested.cancel();
        assert!(tasks.wait_for(std::future::pending::<()>()).await.expect("a stop is not a failure").is_none());
        tasks.stop_all();
        tasks.drain(Duration::from_secs(10), &[], &CancellationToken::new()).await;
    }

    #[tokio::test]
    async fn last_tasks_are_stopped_after_all_others() {
        let mut tasks = Tasks::new(CancellationToken::new());
        let (first_ended, last_stopped) = (CancellationToken::new(), CancellationToken::new());
        let (stop, ended) = (tasks.stop(), first_ended.clone());
        tasks.spawn("streams", async move {
            stop.cancelled().await;
            tokio::task::yield_now().await;
            ended.cancel();
        });
        let (stop, ended) = (last_stopped.clone(), first_ended.clone());
        tasks.spawn("http port", async move {
            stop.cancelled().await;
            assert!(ended.is_cancelled(), "streams end first");
        });
        tasks.stop_all();
        tasks.drain(Duration::from_secs(10), &["http port"], &last_stopped).await;
        assert!(first_ended.is_cancelled() && last_stopped.is_cancelled());
    }
}
