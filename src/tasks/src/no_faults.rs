//! Supervised tasks and threads without the panics of tests.

use crate::Reaction;

/// Runs a task.
pub(crate) async fn run<T>(_name: &str, _reaction: Reaction, task: impl Future<Output = T>) -> T {
    task.await
}

/// Runs a thread.
pub(crate) fn run_thread(_name: &str, _reaction: Reaction, thread: impl FnOnce()) {
    thread();
}
