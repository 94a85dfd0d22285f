//! Handlers: functions that are called with the changes of a collection (K01, K02, K13).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::feed::{Batch, Event, Feed, SnapshotPublisher};
use crate::metrics::panic_message;
use crate::output::Published;
use crate::value::{Key, Value};

/// What a handler gets first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExistingState {
    /// The records that exist, as additions. Whenever it is registered, a handler gets each record exactly once.
    Include,
    /// Only changes from now on.
    Skip,
}

/// A registered handler. It is unregistered when this is dropped.
///
/// A handler is synced when its collection is synced, and it has returned from the call with the last of the initial
/// records.
#[must_use = "dropping the registration unregisters the handler"]
pub struct HandlerRegistration {
    state: Arc<HandlerState>,
    publisher: Arc<SnapshotPublisher>,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct HandlerState {
    is_unregistered: AtomicBool,
    progress: Mutex<HandlerProgress>,
    changed: Condvar,
}

#[derive(Default)]
struct HandlerProgress {
    is_synced: bool,
    has_ended: bool,
    /// The panic that ended it, if one did.
    panic: Option<String>,
}

impl Engine {
    /// Calls `handler` with each change of a collection, first with all records as additions.
    ///
    /// Each handler has a thread of its own, and takes the changes in the order of epochs and keys. A handler that blocks
    /// delays no other handler and no epoch. No queue grows meanwhile: when it returns, it gets the net change of each
    /// record since its last call. Code on an async runtime reads a [`Feed`] instead.
    ///
    /// If the handler panics, this is logged, and it is not called again ([`HandlerRegistration::panic`]).
    ///
    /// # Panics
    /// When no thread can be started.
    pub fn register<K: Key, V: Value>(
        &self,
        of: &Published<K, V>,
        mut handler: impl FnMut(&Event<K, V>) + Send + 'static,
    ) -> HandlerRegistration {
        self.register_batch(of, ExistingState::Include, move |events| events.iter().for_each(&mut handler))
    }

    /// As [`Self::register`], with all changes between two calls at once. No call has an empty list.
    ///
    /// # Panics
    /// When no thread can be started.
    pub fn register_batch<K: Key, V: Value>(
        &self,
        of: &Published<K, V>,
        existing: ExistingState,
        mut handler: impl FnMut(&[Event<K, V>]) + Send + 'static,
    ) -> HandlerRegistration {
        let (of, name) = (of.clone(), of.name().to_owned());
        let mut feed = self.feed().only(&of);
        let first = feed.try_next();
        let node = of.node;
        let call = move |batch: &Batch| {
            let events: Vec<Event<K, V>> = batch.events(&of).collect();
            if !events.is_empty() {
                handler(&events);
            }
        };
        let first = first.filter(|batch| existing == ExistingState::Include && !batch.is_empty());
        let state = Arc::new(HandlerState::default());
        // Without initial records there is nothing to wait for.
        state.lock().is_synced = first.is_none() && feed.seen().node_synced(node);
        let (publisher, clock) = (feed.publisher().clone(), self.clock().clone());
        let handling = Handling { state: state.clone(), feed, node, call: Box::new(call) };
        let thread = std::thread::Builder::new().name("sluice-handler".to_owned());
        let thread = match thread.spawn(move || handling.run(&name, first)) {
            Ok(thread) => thread,
            Err(error) => panic!("start the thread of a handler: {error}"),
        };
        HandlerRegistration { state, publisher, clock, thread: Some(thread) }
    }
}

/// A handler on its thread.
struct Handling {
    state: Arc<HandlerState>,
    feed: Feed,
    node: usize,
    call: Box<dyn FnMut(&Batch) + Send>,
}

impl Handling {
    fn run(mut self, name: &str, first: Option<Batch>) {
        let state = self.state.clone();
        let result = catch_unwind(AssertUnwindSafe(|| self.handle(first)));
        let panic = result.err().map(|payload| panic_message(&*payload));
        if let Some(message) = &panic {
            tracing::error!(collection = %name, %message, "handler panicked; it is not called again");
        }
        state.update(|progress| {
            progress.has_ended = true;
            progress.panic = panic;
        });
    }

    /// Until the handler is unregistered or the engine stops.
    fn handle(&mut self, first: Option<Batch>) {
        let mut batch = first;
        loop {
            if let Some(batch) = batch.take() {
                if self.state.is_unregistered() {
                    return;
                }
                (self.call)(&batch);
            }
            // Only now: the handler has returned from the call with the records of this snapshot.
            if self.feed.seen().node_synced(self.node) {
                self.state.update(|progress| progress.is_synced = true);
            }
            let state = &self.state;
            if !self.feed.wait_for_change(|| state.is_unregistered()) || state.is_unregistered() {
                return;
            }
            batch = self.feed.try_next();
        }
    }
}

impl HandlerState {
    fn is_unregistered(&self) -> bool {
        self.is_unregistered.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, HandlerProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut HandlerProgress)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl HandlerRegistration {
    /// Whether the handler is synced.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.state.lock().is_synced
    }

    /// Waits until the handler is synced. False when the time limit passes, or the handler ends before it is synced.
    #[must_use]
    pub fn wait_synced(&self, limit: Duration) -> bool {
        let deadline = self.clock.now().saturating_add(limit);
        let mut progress = self.state.lock();
        loop {
            let left = deadline.saturating_sub(self.clock.now());
            if progress.is_synced || progress.has_ended || left.is_zero() {
                return progress.is_synced;
            }
            progress = self.state.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The panic that ended the handler, if one did.
    #[must_use]
    pub fn panic(&self) -> Option<String> {
        self.state.lock().panic.clone()
    }

    /// Unregisters the handler, as dropping does. A call in progress goes on, and none follows.
    pub fn unregister(self) {}

    /// Unregisters the handler, and waits until a call in progress has returned. The handler itself must not call this.
    pub fn unregister_and_wait(mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the handler was logged when it occurred.
            let _ = thread.join();
        }
    }

    /// Keeps the handler until the engine stops.
    pub fn keep(mut self) {
        self.thread = None;
    }

    fn stop(&self) {
        self.state.is_unregistered.store(true, Ordering::Release);
        self.publisher.interrupt();
    }
}

impl Drop for HandlerRegistration {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

impl std::fmt::Debug for HandlerRegistration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerRegistration").field("is_synced", &self.is_synced()).finish()
    }
}
