//! Readiness to serve proxies (O06, S25).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The reasons why proxies cannot be served yet. The process is ready if there are none.
#[derive(Debug, Default)]
pub struct Readiness(Mutex<BTreeSet<&'static str>>);

/// Delays readiness until one component is ready: it is dropped then.
#[derive(Debug)]
pub struct ReadinessGuard {
    readiness: Arc<Readiness>,
    reason: &'static str,
}

impl Drop for ReadinessGuard {
    fn drop(&mut self) {
        self.readiness.lock().remove(self.reason);
    }
}

impl Readiness {
    /// Makes the process not ready, for this reason, until the guard is dropped.
    #[must_use]
    pub fn guard(self: &Arc<Self>, reason: &'static str) -> ReadinessGuard {
        self.block(reason);
        ReadinessGuard { readiness: self.clone(), reason }
    }

    /// Makes the process not ready for good, for this reason, such as a shutdown.
    pub fn block(&self, reason: &'static str) {
        self.lock().insert(reason);
    }

    /// The reasons, in alphabetical order.
    #[must_use]
    pub fn pending(&self) -> Vec<&'static str> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
