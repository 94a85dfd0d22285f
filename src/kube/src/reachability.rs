//! Reports of an unreachable API server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

/// Time between two warnings of one unreachable API server.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Reports of one API server, shared by all its watches: one line a minute, not one for each kind and attempt.
#[derive(Clone, Default)]
pub(crate) struct Reachability(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_unreachable: bool,
    warned: Option<Instant>,
}

impl Reachability {
    /// A request got no response.
    pub(crate) fn failed(&self, cluster: &str, error: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_unreachable = true;
        let now = Instant::now();
        if state.is_due(now) {
            state.warned = Some(now);
            warn!(cluster, error, "API server is unreachable, retrying; reported once a minute");
        } else {
            debug!(cluster, error, "API server is unreachable, retrying");
        }
    }

    /// A request got a response. True if the API server was unreachable before.
    pub(crate) fn succeeded(&self, cluster: &str) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recovered = std::mem::take(&mut state.is_unreachable);
        if recovered {
            info!(cluster, "API server is reachable again");
        }
        recovered
    }
}

impl State {
    fn is_due(&self, now: Instant) -> bool {
        self.warned.is_none_or(|at| now.saturating_duration_since(at) >= WARNING_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_server_is_reported_once_a_minute() {
        let now = Instant::now();
        let mut state = State::default();
        assert!(state.is_due(now));
        state.warned = Some(now);
        assert!(!state.is_due(now + Duration::from_secs(59)));
        assert!(state.is_due(now + WARNING_INTERVAL));
    }
}
