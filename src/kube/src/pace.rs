//! The requests of one `kube::runtime::watcher`, with waits between watches and consistent streaming lists.
//!
//! The watcher starts the next watch as soon as the server ends one. It requests a streaming list at resourceVersion 0,
//! which is any state that the API server has cached. The client of this module changes both: a wait follows a watch that
//! ends early, and a streaming list is as recent as a paged list.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{Request, Response, Uri};
use kube::Client;
use kube::client::Body;

use crate::api::Api;
use crate::backoff::Backoff;

/// A watch that lasts this long resets the backoff.
const MIN_SUCCESSFUL_WATCH: Duration = Duration::from_secs(5);

/// The waits of one watcher.
#[derive(Clone)]
pub(crate) struct Pace(Arc<Mutex<State>>);

struct State {
    backoff: Backoff,
    /// When the server accepted the last watch; `None` once the end of that watch has been counted.
    accepted: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self(Arc::new(Mutex::new(State { backoff, accepted: None })))
    }

    /// The wait after a failure.
    pub(crate) fn failed(&self) -> Duration {
        let mut state = self.state();
        state.count_last_watch(Instant::now());
        state.backoff.failed()
    }

    /// A list is complete.
    pub(crate) fn listed(&self) {
        self.state().backoff.reset();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts the end of the last watch once, and returns whether it ended early.
    fn count_last_watch(&mut self, now: Instant) -> bool {
        match self.accepted.take() {
            Some(accepted) if now.saturating_duration_since(accepted) < MIN_SUCCESSFUL_WATCH => true,
            Some(_) => {
                self.backoff.reset();
                false
            }
            None => false,
        }
    }

    /// The wait before a watch.
    fn wait_to_watch(&mut self, now: Instant) -> Duration {
        if self.count_last_watch(now) { self.backoff.failed() } else { Duration::ZERO }
    }
}

/// A client for one watcher.
pub(crate) fn client(api: &Api, pace: &Pace) -> Client {
    let (api, pace) = (api.clone(), pace.clone());
    Client::new(tower::service_fn(move |request| send(api.clone(), pace.clone(), request)), "default")
}

async fn send(api: Api, pace: Pace, mut request: Request<Body>) -> Result<Response<Body>, kube::Error> {
    let is_watch = request.uri().query().unwrap_or_default().split('&').any(|parameter| parameter == "watch=true");
    if is_watch {
        let wait = pace.state().wait_to_watch(Instant::now());
        tokio::time::sleep(wait).await;
        if let Some(uri) = consistent(request.uri()) {
            *request.uri_mut() = uri;
        }
    }
    let response = api.client.send(request).await?;
    if is_watch && response.status().is_success() {
        pace.state().accepted = Some(Instant::now());
        api.succeeded();
    }
    Ok(response)
}

/// The request for a streaming list without its resourceVersion: the server then sends its most recent state.
fn consistent(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    if !query.split('&').any(|parameter| parameter == "sendInitialEvents=true") {
        return None;
    }
    let kept: Vec<&str> = query.split('&').filter(|parameter| *parameter != "resourceVersion=0").collect();
    format!("{}?{}", uri.path(), kept.join("&")).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_that_end_early_are_followed_by_growing_waits() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        let (mut state, mut now) = (State { backoff, accepted: None }, Instant::now());
        assert_eq!(state.wait_to_watch(now), Duration::ZERO, "the first watch does not wait");
        for step in [1, 2, 4] {
            state.accepted = Some(now);
            now += Duration::from_millis(10);
            let wait = state.wait_to_watch(now);
            assert!(wait >= Duration::from_secs(step) / 2 && wait <= Duration::from_secs(step), "{step}: {wait:?}");
        }
        state.accepted = Some(now);
        now += MIN_SUCCESSFUL_WATCH;
        assert_eq!(state.wait_to_watch(now), Duration::ZERO);
        assert!(state.backoff.failed() <= Duration::from_secs(1), "the backoff was reset");
    }

    #[test]
    fn streaming_list_names_no_resource_version() {
        let uri = "/api/v1/pods?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0";
        let uri: Uri = uri.parse().expect("a URI");
        let expected = "/api/v1/pods?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(consistent(&uri).expect("a streaming list"), expected);
        let resumed: Uri = "/api/v1/pods?&watch=true&resourceVersion=0".parse().expect("a URI");
        assert_eq!(consistent(&resumed), None);
    }
}
