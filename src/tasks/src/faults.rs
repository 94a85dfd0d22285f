//! Panics that tests inject into supervised tasks and threads, by name. Release builds do not
//! contain this module. A feature would compile all crates above this one twice for the tests.

mod requests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use futures::FutureExt as _;
use tokio::sync::Notify;

use crate::Reaction;

#[derive(Default)]
struct FaultPoint {
    panic: Arc<Notify>,
    running: Vec<Reaction>,
    /// Number of ends by a panic.
    panics: usize,
}

static POINTS: Mutex<BTreeMap<String, FaultPoint>> = Mutex::new(BTreeMap::new());

fn points() -> MutexGuard<'static, BTreeMap<String, FaultPoint>> {
    POINTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a task of this name panic, now or when it starts. A thread panics when it starts.
pub fn inject_panic(name: &str) {
    points().entry(name.to_owned()).or_default().panic.notify_one();
}

/// The tasks and threads that run, and what follows when they panic.
#[must_use]
pub fn running() -> BTreeMap<String, Reaction> {
    points().iter().filter_map(|(name, point)| Some((name.clone(), *point.running.last()?))).collect()
}

/// Lists a task or thread as running until it is dropped.
struct RunningPoint<'n>(&'n str, Reaction);

impl<'n> RunningPoint<'n> {
    fn new(name: &'n str, reaction: Reaction) -> (Self, Arc<Notify>) {
        static FOLLOW: Once = Once::new();
        FOLLOW.call_once(requests::follow);
        let mut points = points();
        let point = points.entry(name.to_owned()).or_default();
        point.running.push(reaction);
        (Self(name, reaction), point.panic.clone())
    }
}

impl Drop for RunningPoint<'_> {
    fn drop(&mut self) {
        let mut points = points();
        let Some(point) = points.get_mut(self.0) else { return };
        if let Some(at) = point.running.iter().position(|reaction| *reaction == self.1) {
            point.running.swap_remove(at);
        }
        // Counted with the end: a task that runs after a counted panic has been restarted.
        point.panics += usize::from(std::thread::panicking());
    }
}

/// Runs a task, which panics when a test injects that.
pub(crate) async fn run<T>(name: &str, reaction: Reaction, task: impl Future<Output = T>) -> T {
    let (_running, panic) = RunningPoint::new(name, reaction);
    tokio::select! {
        biased;
        () = panic.notified() => panic!("injected by a test"),
        result = task => result,
    }
}

/// Runs a thread, which panics at its start when a test injects that.
pub(crate) fn run_thread(name: &str, reaction: Reaction, thread: impl FnOnce()) {
    let (_running, panic) = RunningPoint::new(name, reaction);
    assert!(panic.notified().now_or_never().is_none(), "injected by a test");
    thread();
}
