//! Lists and watches one collection of an API server.
//!
//! ```text
//! List ──ok──▶ Watch ──ended, silent──▶ Watch, from the last resourceVersion
//!  ▲  ▲          │ └───failed──▶ wait, Watch
//!  │  └──────────┘ resourceVersion expired (410); wait if it is that of a recent list
//!  └─ failed, silent: wait          not found (404), and discovery says that the kind is not served: end
//! ```
//!
//! `kube::runtime::watcher` sends the requests and keeps the resourceVersion. It requests streaming lists
//! (`sendInitialEvents`) where the API server supports them, and lists in pages otherwise. This module passes batches of
//! raw objects to the receiver, and decides what follows a failure.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt, Stream, StreamExt};
use kube::runtime::watcher;
use serde_json::Value;
use tracing::{Instrument as _, debug, error_span, info, warn};

use crate::api::{Api, ApiError, Resource};
use crate::backoff::Backoff;
use crate::pace::{self, MIN_SUCCESSFUL_WATCH, Pace};
use crate::raw_object::RawObject;
use crate::watch_states::{WatchGuard, WatchState};

/// Time between two lists of a collection that the API server does not serve.
const ABSENT_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of events of a watch in one call of the receiver.
const MAX_EVENTS_PER_BATCH: usize = 1024;

/// An event of a watch.
#[derive(Debug)]
pub enum WatchEvent {
    /// The object was added or modified.
    Apply(Value),
    /// The object was deleted; this is its last state.
    Delete(Value),
}

/// Receives the objects of a collection.
pub trait Receiver: Send {
    /// A list begins. Objects that are not in it have been deleted once it ends.
    fn begin_list(&mut self);
    /// Objects of the list.
    fn listed(&mut self, objects: Vec<Value>);
    /// The list is complete.
    fn end_list(&mut self);
    /// Events of a watch, in order.
    fn watched(&mut self, events: Vec<WatchEvent>);
    /// The API server does not serve the kind: no objects exist.
    fn absent(&mut self);
}

/// Lists and watches a collection.
pub struct ListWatch<R> {
    api: Api,
    resource: Resource,
    pace: Pace,
    receiver: R,
    /// The list in progress; `None` while watching.
    list: Option<List>,
    /// When the last list ended.
    listed: Option<Instant>,
    /// Number of lists in succession whose resourceVersion expired at once.
    expired_early: usize,
    state: WatchGuard,
}

/// A list in progress.
struct List {
    started: Instant,
    objects: usize,
    /// The API server has answered 404 although discovery has the kind.
    was_not_found: bool,
}

impl Default for List {
    fn default() -> Self {
        Self { started: Instant::now(), objects: 0, was_not_found: false }
    }
}

/// A failure that ends a batch.
enum Failure {
    /// The watcher reports an error.
    Watcher(watcher::Error),
    /// The list in progress has received no data for [`KubeOptions::list_silence`](crate::KubeOptions::list_silence).
    Silent,
}

/// What follows a failure.
enum Next {
    /// The watcher continues.
    Continue,
    /// A new watcher lists.
    ListAgain,
    /// The kind is not served.
    End,
}

impl<R: Receiver> ListWatch<R> {
    /// Lists and watches `resource` for `receiver`.
    #[must_use]
    pub fn new(api: Api, resource: Resource, backoff: Backoff, receiver: R) -> Self {
        let state = api.add_state(&resource);
        let pace = Pace::new(backoff);
        Self { api, resource, pace, receiver, list: None, listed: None, expired_early: 0, state }
    }

    /// Runs forever. While the API server does not serve the kind, the collection is absent. A new call lists again.
    pub async fn run(&mut self) {
        loop {
            self.run_while_served().await;
            tokio::task::block_in_place(|| self.receiver.absent());
            tokio::time::sleep(ABSENT_INTERVAL).await;
        }
    }

    /// Runs until discovery says that the API server does not serve the kind in this version. A new call lists again.
    pub async fn run_while_served(&mut self) {
        let cluster = self.api.cluster();
        // The level of an error, so that every message inside names the cluster and the kind.
        let span = error_span!("kube_watch", cluster, kind = %self.resource);
        async move {
            let client = pace::client(&self.api, &self.pace, self.state());
            match self.resource.metadata_only {
                true => self.list_and_watch::<true>(&client).await,
                false => self.list_and_watch::<false>(&client).await,
            }
            debug!("the API server does not serve the kind");
        }
        .instrument(span)
        .await;
    }

    /// The receiver.
    pub fn into_receiver(self) -> R {
        self.receiver
    }

    fn state(&self) -> &Arc<WatchState> {
        &self.state.state
    }

    /// Runs a watcher, and a new one each time that it has to list again.
    async fn list_and_watch<const METADATA_ONLY: bool>(&mut self, client: &kube::Client) {
        self.expired_early = 0;
        loop {
            let streams_list = self.api.streams_lists();
            let mut events = pin!(self.watcher::<METADATA_ONLY>(client, streams_list));
            self.list = Some(List::default());
            loop {
                let mut batch = Vec::new();
                let result = self.next_batch(events.as_mut(), &mut batch).await;
                if !batch.is_empty() {
                    // The receiver may wait for a full queue, which must not block other tasks of this thread.
                    tokio::task::block_in_place(|| self.deliver(batch));
                }
                let Err(failure) = result else { continue };
                match self.failed(failure, streams_list).await {
                    Next::Continue => {}
                    Next::ListAgain => break,
                    Next::End => return,
                }
            }
        }
    }

    /// The events of one watcher. The stream does not end by itself.
    fn watcher<const METADATA_ONLY: bool>(
        &self,
        client: &kube::Client,
        streams_list: bool,
    ) -> impl Stream<Item = watcher::Result<watcher::Event<RawObject<METADATA_ONLY>>>> + Send + use<METADATA_ONLY, R>
    {
        let (client, kind) = (client.clone(), &self.resource.kind);
        let api = match &self.resource.namespace {
            Some(namespace) => kube::Api::namespaced_with(client, namespace, kind),
            None => kube::Api::all_with(client, kind),
        };
        let config = self.resource.watcher_config(&self.api.options);
        watcher::watcher(api, if streams_list { config.streaming_lists() } else { config })
    }

    /// Adds events to `batch`: up to a page of a list, the events of a watch that are ready, or those before a failure.
    async fn next_batch<T>(
        &self,
        mut events: Pin<&mut impl Stream<Item = watcher::Result<watcher::Event<T>>>>,
        batch: &mut Vec<watcher::Event<T>>,
    ) -> Result<(), Failure> {
        loop {
            let event = match &self.list {
                // The watcher limits the silence of a watch, and not that of a list.
                Some(_) => {
                    let limit = self.api.options.list_silence;
                    tokio::time::timeout(limit, events.next()).await.map_err(|_| Failure::Silent)?
                }
                None if batch.is_empty() => events.next().await,
                None => events.next().now_or_never().flatten(),
            };
            let Some(event) = event else { return Ok(()) };
            let event = event.map_err(Failure::Watcher)?;
            let ends_page = matches!(event, watcher::Event::Init | watcher::Event::InitDone);
            batch.push(event);
            let limit = if self.list.is_some() { self.api.options.page_size as usize } else { MAX_EVENTS_PER_BATCH };
            if ends_page || batch.len() >= limit {
                return Ok(());
            }
        }
    }

    fn deliver<const METADATA_ONLY: bool>(&mut self, batch: Vec<watcher::Event<RawObject<METADATA_ONLY>>>) {
        let (mut objects, mut changes) = (Vec::new(), Vec::new());
        for event in batch {
            match event {
                watcher::Event::Init => {
                    objects.clear();
                    // The watcher also begins a list after a failure.
                    self.list = Some(List::default());
                    self.receiver.begin_list();
                }
                watcher::Event::InitApply(object) => objects.push(object.json),
                watcher::Event::InitDone => {
                    self.add_to_list(std::mem::take(&mut objects));
                    self.end_list();
                }
                watcher::Event::Apply(object) => changes.push(WatchEvent::Apply(object.json)),
                watcher::Event::Delete(object) => changes.push(WatchEvent::Delete(object.json)),
            }
        }
        self.add_to_list(objects);
        if !changes.is_empty() {
            self.receiver.watched(changes);
        }
    }

    fn add_to_list(&mut self, objects: Vec<Value>) {
        if objects.is_empty() {
            return;
        }
        if let Some(list) = &mut self.list {
            list.objects += objects.len();
        }
        self.receiver.listed(objects);
    }

    fn end_list(&mut self) {
        self.receiver.end_list();
        self.api.succeeded();
        let List { started, objects, .. } = self.list.take().unwrap_or_default();
        let milliseconds = started.elapsed().as_millis();
        self.listed = Some(Instant::now());
        if self.expired_early > 1 {
            // The failure lasts, and is logged once a minute.
            debug!(objects, milliseconds, "listed again");
            return;
        }
        info!(objects, milliseconds, "listed");
        pace::report_success(self.state());
    }

    /// Logs a failure, waits if the API server needs time, and returns what follows.
    async fn failed(&mut self, failure: Failure, streams_list: bool) -> Next {
        let is_listing = self.list.is_some();
        let error = match failure {
            Failure::Watcher(error) if streams_list && is_listing && is_rejected(&error) => {
                debug!(%error, "the API server does not stream lists, listing in pages");
                self.api.list_in_pages();
                return Next::ListAgain;
            }
            Failure::Watcher(error) => ApiError::from(error),
            Failure::Silent => {
                // The server may have accepted a streaming list that it cannot complete.
                self.api.list_in_pages();
                let silence = self.api.options.list_silence.as_secs_f64();
                self.report(is_listing, &ApiError::Other(format!("the list has received nothing for {silence} s")));
                self.wait().await;
                return Next::ListAgain;
            }
        };
        let (next, error) = match error {
            ApiError::Gone if !is_listing && self.is_listed_recently() => {
                self.expired_early += 1;
                // The API server answers so once after it has begun to serve a kind: its cache of events begins later.
                match self.expired_early {
                    1 => debug!("resourceVersion of the list has expired at once, listing again"),
                    _ => self.report(true, &ApiError::Other("its resourceVersion has expired at once".to_owned())),
                }
                self.wait().await;
                return Next::ListAgain;
            }
            ApiError::Gone if !is_listing => {
                self.expired_early = 0;
                info!("resourceVersion of the watch has expired, listing again");
                return Next::ListAgain;
            }
            // A list whose continue token has expired starts again.
            ApiError::Gone => (Next::ListAgain, ApiError::Gone),
            ApiError::NotFound(message) => match self.api.is_served(&self.resource).await {
                Ok(false) => return Next::End,
                Ok(true) if self.is_first_not_found() => {
                    debug!(message, "404 although discovery has the kind, retrying");
                    self.wait().await;
                    return Next::Continue;
                }
                Ok(true) => {
                    let reason = format!("404 although discovery has the kind: {message}");
                    (Next::Continue, ApiError::Other(reason))
                }
                Err(reason) => {
                    let reason = format!("404 and no discovery that the kind is not served: {reason}");
                    (Next::Continue, ApiError::Other(reason))
                }
            },
            error => (Next::Continue, error),
        };
        self.report(is_listing, &error);
        self.wait().await;
        next
    }

    /// Whether the last list has just ended. A server whose resourceVersions have expired then would be listed without end.
    fn is_listed_recently(&self) -> bool {
        self.listed.is_some_and(|listed| listed.elapsed() < MIN_SUCCESSFUL_WATCH)
    }

    /// Whether this is the first 404 of a list: discovery has a new kind a moment before the API server serves it.
    fn is_first_not_found(&mut self) -> bool {
        self.list.as_mut().is_some_and(|list| !std::mem::replace(&mut list.was_not_found, true))
    }

    /// Waits after a failure, until the API server is reachable again at most.
    async fn wait(&self) {
        let wait = self.pace.failed();
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.api.recovered() => self.pace.reset(),
        }
    }

    /// Logs a failure once a minute. An unreachable API server is reported once for all kinds.
    fn report(&self, is_listing: bool, error: &ApiError) {
        let reason = format!("{error}; the objects that were read stay");
        let event = match is_listing {
            true => "list fails, retrying; reported once a minute",
            false => "watch fails, continuing from the last resourceVersion; reported once a minute",
        };
        match error {
            ApiError::Unreachable(cause) => {
                self.state().unreachable(&reason);
                self.api.unreachable(cause);
            }
            ApiError::Gone => debug!(%error, "{event}"),
            ApiError::NotFound(_) | ApiError::Other(_) => match self.state().failed(&reason) {
                true => warn!(%error, "{event}"),
                false => debug!(%error, "{event}"),
            },
        }
    }
}

/// Whether the API server rejects the parameters of a streaming list.
fn is_rejected(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if matches!(status.code, 400 | 422))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::transport::is_watch;
    use crate::{KubeOptions, WatchStates};

    struct NoReceiver;

    impl Receiver for NoReceiver {
        fn begin_list(&mut self) {}
        fn listed(&mut self, _: Vec<Value>) {}
        fn end_list(&mut self) {}
        fn watched(&mut self, _: Vec<WatchEvent>) {}
        fn absent(&mut self) {}
    }

    /// Requests to a server.
    #[derive(Clone, Default)]
    struct Requests {
        lists: Vec<Instant>,
        watches: usize,
    }

    /// A server that answers 410 to this number of watches, and nothing to later ones.
    fn expiring_server(expired: usize) -> (Client, watch::Receiver<Requests>) {
        let (requests, received) = watch::channel(Requests::default());
        let answer = move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let (status, answer) = if query.contains("sendInitialEvents") {
                (400, json!({"kind": "Status", "status": "Failure", "message": "unknown parameter", "code": 400}))
            } else if is_watch(request.uri()) {
                requests.send_modify(|requests| requests.watches += 1);
                (410, json!({"kind": "Status", "status": "Failure", "message": "too old", "code": 410}))
            } else {
                requests.send_modify(|requests| requests.lists.push(Instant::now()));
                (200, json!({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}))
            };
            let is_answered = status != 410 || requests.borrow().watches <= expired;
            async move {
                if !is_answered {
                    std::future::pending::<()>().await;
                }
                let response = Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(response.expect("a response"))
            }
        };
        (Client::new(tower::service_fn(answer), "default"), received)
    }

    fn start(client: Client) -> (tokio::task::JoinHandle<()>, WatchStates) {
        let (options, states) = (KubeOptions::default(), WatchStates::default());
        let api = Api::new(client, "east".into(), options, states.clone());
        let resource = Resource::of::<k8s_openapi::api::core::v1::Pod>();
        let mut watching = ListWatch::new(api, resource, options.backoff(), NoReceiver);
        (tokio::spawn(async move { watching.run().await }), states)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn lists_whose_resource_version_expires_at_once_are_read_again_after_growing_waits() {
        let (client, mut requests) = expiring_server(usize::MAX);
        let (watching, states) = start(client);
        let requests = requests.wait_for(|requests| requests.lists.len() == 5).await.expect("it lists").clone();
        let waits: Vec<Duration> = requests.lists.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (wait, shortest) in waits.iter().zip([125, 250, 500, 1000]) {
            assert!(*wait >= Duration::from_millis(shortest), "{waits:?}");
        }
        let [summary] = states.of("east").try_into().expect("one collection");
        assert!(summary.failure.is_some_and(|failure| failure.reason.contains("expired at once")));
        watching.abort();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn list_that_follows_an_expired_resource_version_is_read_soon_and_watched() {
        let (client, mut requests) = expiring_server(1);
        let (watching, states) = start(client);
        let requests = requests.wait_for(|requests| requests.watches == 2).await.expect("it watches").clone();
        assert_eq!(requests.lists.len(), 2);
        assert!(requests.lists[1] - requests.lists[0] < Duration::from_secs(5), "within the time of recovery");
        let [summary] = states.of("east").try_into().expect("one collection");
        assert_eq!(summary.failure, None, "an API server answers so after a CRD is installed again");
        watching.abort();
    }
}
