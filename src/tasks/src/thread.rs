//! Threads whose end can be awaited.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::{Builder, JoinHandle};

use tokio::sync::oneshot;

use crate::restart::restart_thread;
use crate::{Panicked, Reaction, faults};

/// A running thread.
#[derive(Debug)]
pub struct NamedThread {
    thread: JoinHandle<()>,
    end: Option<ThreadEnd>,
}

/// The end of a thread, to be passed to [`Tasks::watch_thread`](crate::Tasks::watch_thread).
#[derive(Debug)]
pub struct ThreadEnd {
    pub(crate) name: String,
    pub(crate) ended: oneshot::Receiver<Result<(), Panicked>>,
}

impl NamedThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let task = name.to_owned();
        Self::spawn(name, move || faults::run_thread(&task, Reaction::ThreadEnds, run))
    }

    /// Starts a thread that runs `run`, again each time that it panics, after a wait. `run` must accept the state that a panic
    /// leaves.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start_restarted(name: &str, run: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let task = name.to_owned();
        Self::spawn(name, move || restart_thread(&task, run))
    }

    fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (sender, ended) = oneshot::channel();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(run));
            let end = match &result {
                Ok(()) => Ok(()),
                Err(payload) => Err(Panicked::new(&**payload)),
            };
            // The receiver may not be interested.
            let _ = sender.send(end);
            if let Err(payload) = result {
                resume_unwind(payload);
            }
        })?;
        Ok(Self { thread, end: Some(ThreadEnd { name: name.to_owned(), ended }) })
    }

    /// The end of the thread. `None` from the second call on.
    pub fn end(&mut self) -> Option<ThreadEnd> {
        self.end.take()
    }

    /// Waits until the thread has ended.
    pub fn join(self) {
        // A panic has been logged, and is in `end`.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn thread_that_panics_runs_again_with_its_state() {
        let (sender, runs) = channel();
        let mut count = 0;
        let thread = NamedThread::start_restarted("thread of the test", move || {
            count += 1;
            sender.send(count).expect("the test runs");
            assert!(count > 1, "a bug");
        });
        thread.expect("a thread").join();
        assert_eq!(runs.iter().collect::<Vec<_>>(), [1, 2]);
    }
}
