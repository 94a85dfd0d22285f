//! The requests of one `kube::runtime::watcher`, with waits between watches and consistent streaming lists.
//!
//! The watcher starts the next watch as soon as the server ends one. It requests a streaming list at resourceVersion 0,
//! which is any state that the API server has cached, with the timeout of a watch. The client of this module changes these: a
//! wait follows a watch that ends early, and a streaming list is as recent as a paged list and may take longer. It also
//! limits the time until a response begins, and records what the server sends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{Request, Response, Uri};
use http_body::Body as HttpBody;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use tracing::info;

use crate::api::Api;
use crate::backoff::Backoff;
use crate::error::NoResponse;
use crate::transport::is_watch;
use crate::watch_states::WatchState;

/// A watch that lasts this long resets the backoff.
pub(crate) const MIN_SUCCESSFUL_WATCH: Duration = Duration::from_secs(5);

/// Time after which the server ends a watch that begins with a streaming list.
const STREAMING_LIST_TIMEOUT: Duration = Duration::from_secs(300);

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

    /// The API server is reachable again. The end of a list resets nothing: its watch may fail at once, each time.
    pub(crate) fn reset(&self) {
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
pub(crate) fn client(api: &Api, pace: &Pace, state: &Arc<WatchState>) -> Client {
    let (api, pace, state) = (api.clone(), pace.clone(), state.clone());
    let send = move |request| send(api.clone(), pace.clone(), state.clone(), request);
    Client::new(tower::service_fn(send), "default")
}

async fn send(
    api: Api,
    pace: Pace,
    state: Arc<WatchState>,
    mut request: Request<Body>,
) -> Result<Response<impl HttpBody<Data = bytes::Bytes, Error = kube::Error> + use<>>, kube::Error> {
    let is_watch = is_watch(request.uri());
    if is_watch {
        let wait = pace.state().wait_to_watch(Instant::now());
        tokio::time::sleep(wait).await;
        if let Some(uri) = consistent(request.uri()) {
            *request.uri_mut() = uri;
        }
    }
    // The server responds to a watch before it has events.
    let limit = if is_watch { api.options.response_timeout } else { api.options.list_silence };
    let response = tokio::time::timeout(limit, api.client.send(request)).await;
    let response = response.map_err(|_| kube::Error::Service(Box::new(NoResponse { limit })))??;
    let is_success = response.status().is_success();
    if is_success {
        state.confirmed();
        if is_watch {
            pace.state().accepted = Some(Instant::now());
            api.succeeded();
            report_success(&state);
        }
    }
    Ok(response.map(|body| {
        body.map_frame(move |frame| {
            // The text of an error says nothing about the collection.
            if is_success {
                state.confirmed();
            }
            frame
        })
    }))
}

/// Records that the API server accepts requests for the collection.
pub(crate) fn report_success(state: &WatchState) {
    if let Some(after) = state.succeeded() {
        info!(seconds = after.as_secs_f64(), "no longer fails");
    }
}

/// The request for a streaming list without its resourceVersion: the server then sends its most recent state.
fn consistent(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    if !query.split('&').any(|parameter| parameter == "sendInitialEvents=true") {
        return None;
    }
    let is_kept = |parameter: &&str| *parameter != "resourceVersion=0" && !parameter.starts_with("timeoutSeconds=");
    let mut kept: Vec<&str> = query.split('&').filter(is_kept).collect();
    let timeout = format!("timeoutSeconds={}", STREAMING_LIST_TIMEOUT.as_secs());
    kept.push(&timeout);
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
    fn streaming_list_names_no_resource_version_and_may_take_longer_than_a_watch() {
        let uri = "/api/v1/pods?&watch=true&timeoutSeconds=40&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                   &resourceVersion=0";
        let uri: Uri = uri.parse().expect("a URI");
        let expected =
            "/api/v1/pods?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=300";
        assert_eq!(consistent(&uri).expect("a streaming list"), expected);
        let resumed: Uri = "/api/v1/pods?&watch=true&resourceVersion=0".parse().expect("a URI");
        assert_eq!(consistent(&resumed), None);
    }
}
