//! Recomputation on request, for closures that read state outside the engine (K11).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::builder::DataflowBuilder;
use crate::collection::Collection;
use crate::input::Input;
use crate::value::Value;

/// Runs closures again that depend on it, by [`Context::depend_on`](crate::Context::depend_on). A clone is another handle.
///
/// Closures should read collections only: then the engine knows what they depend on. A trigger is for state that is
/// outside the engine. The caller triggers after each change of that state. Several triggers before the next epoch run a
/// closure once. A result that is equal to the last one is no change.
#[derive(Clone, Debug)]
pub struct Trigger {
    input: Input<(), u64>,
    count: Arc<AtomicU64>,
}

impl Trigger {
    /// Runs all closures again that depend on the trigger, in the next epoch.
    pub fn trigger(&self) {
        self.input.set((), self.count.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// Marks the initial state outside as complete. Collections that depend on the trigger are not synced before.
    pub fn mark_synced(&self) {
        self.input.mark_synced();
    }
}

/// A value that code outside the graph changes in place, and that closures read as a singleton. A clone is another handle.
#[derive(Clone, Debug)]
pub struct Protected<T> {
    input: Input<(), T>,
    value: Arc<Mutex<T>>,
}

impl<T: Value> Protected<T> {
    /// Changes the value. Closures that read it run again, unless it is as before.
    pub fn modify<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.lock();
        let result = change(&mut value);
        // Under the lock, so that the writes of the input have the order of the changes.
        self.input.set((), value.clone());
        result
    }

    /// The value with all changes, also those that no epoch has yet. Closures must read the collection instead.
    #[must_use]
    pub fn latest(&self) -> T {
        self.lock().clone()
    }

    /// Marks the initial value as complete. Collections that read it are not synced before.
    pub fn mark_synced(&self) {
        self.input.mark_synced();
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        // A panic in `modify` may leave a value half changed, as in any owner of the value.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'s> DataflowBuilder<'s> {
    /// A trigger, and the singleton that closures depend on. With `is_synced`, the state outside is complete from the
    /// start.
    pub fn trigger(&self, name: &str, is_synced: bool) -> (Trigger, Collection<'s, (), u64>) {
        let (input, collection) = self.input_with(name, [((), 0)], is_synced);
        (Trigger { input, count: Arc::default() }, collection)
    }

    /// A value that code outside the graph changes in place, and its singleton. With `is_synced`, the initial value is
    /// complete.
    pub fn protected<T: Value>(
        &self,
        name: &str,
        initial: T,
        is_synced: bool,
    ) -> (Protected<T>, Collection<'s, (), T>) {
        let value = Arc::new(Mutex::new(initial.clone()));
        let (input, collection) = self.input_with(name, [((), initial)], is_synced);
        (Protected { input, value }, collection)
    }
}
