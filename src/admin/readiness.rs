//! Whether proxies can be served (O06, S25).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;

use crate::admin::AdminState;

/// What is still being waited for.
#[derive(Debug, Default)]
pub struct Readiness(Mutex<BTreeSet<&'static str>>);

impl Readiness {
    /// Ready once each of these is done.
    #[must_use]
    pub fn waiting_for(steps: &[&'static str]) -> Self {
        Self(Mutex::new(steps.iter().copied().collect()))
    }

    /// Says that a step is done.
    pub fn done(&self, step: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(step);
    }

    /// Says that a step has to be waited for again, such as the end of a shutdown.
    pub fn wait_for(&self, step: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(step);
    }

    /// What is not done yet, in order of names; nothing when ready.
    #[must_use]
    pub fn pending(&self) -> Vec<&'static str> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

pub(super) async fn ready(State(state): State<Arc<AdminState>>) -> (StatusCode, String) {
    match state.readiness.pending().as_slice() {
        [] => (StatusCode::OK, "ready\n".to_owned()),
        pending => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", pending.join(", "))),
    }
}
