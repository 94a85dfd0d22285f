//! Clients whose errors name the address of the API server, and reports of an unreachable API server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::client::ClientBuilder;
use kube::{Client, Config};
use tower::BoxError;
use tower::timeout::TimeoutLayer;
use tower::util::MapErrLayer;
use tracing::{debug, info, warn};

use crate::error::UnreachableServer;

/// Time between two warnings of one unreachable API server.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Time limit for the beginning of a response. The API server ends a request after 60 seconds, except a watch, whose
/// response begins immediately.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(70);

/// A client whose connection errors name the address of the API server.
///
/// # Errors
/// The configuration cannot be used, for instance its TLS material.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    let address: Arc<str> = config.cluster_url.to_string().into();
    let name_server = MapErrLayer::new(move |error: BoxError| -> BoxError {
        // The client's own errors, such as missing credentials, are not about the connection.
        match error.is::<kube::Error>() {
            true => error,
            false => Box::new(UnreachableServer { address: address.to_string(), cause: error }),
        }
    });
    let limit = TimeoutLayer::new(RESPONSE_TIMEOUT);
    Ok(ClientBuilder::try_from(config)?.with_layer(&limit).with_layer(&name_server).build())
}

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

    /// A request got a response.
    pub(crate) fn succeeded(&self, cluster: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.is_unreachable) {
            info!(cluster, "API server is reachable again");
            state.warned = None;
        }
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
