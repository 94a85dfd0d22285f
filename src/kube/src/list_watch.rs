//! Lists and watches one collection of an API server, until the server no longer serves its kind.
//!
//! ```text
//! List ──ok──▶ Watch ──ended──▶ Watch, from the last resourceVersion
//!  ▲  ▲          │ └───failed──▶ wait, Watch
//!  │  └──────────┘ resourceVersion expired (410)
//!  └─ failed: wait          kind not served (404): `Receiver::absent`, end
//! ```
//!
//! This is not `kube::runtime::watcher`: a page of raw JSON goes to the receiver without a copy of the whole list in
//! between, up to `MAX_EVENTS_PER_BATCH` events that arrive together are one commit, and a kind that disappears ends it.

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::Value;
use tracing::{Instrument as _, debug, error_span, info, warn};

use crate::api::{Api, ApiError, Resource, WatchEvent};
use crate::backoff::Backoff;

/// Most events of a watch in one call of the receiver.
const MAX_EVENTS_PER_BATCH: usize = 1024;
/// A watch that lasts this long resets the backoff.
const MIN_SUCCESSFUL_WATCH: Duration = Duration::from_secs(5);

/// Receives the objects of a collection.
pub trait Receiver: Send {
    /// A list begins. Objects that are not in it have been deleted once it ends.
    fn begin_list(&mut self);
    /// Objects of the list.
    fn listed(&mut self, objects: Vec<Value>);
    /// The list is complete.
    fn end_list(&mut self);
    /// Events of a watch, in order, without bookmarks.
    fn watched(&mut self, events: Vec<WatchEvent>);
    /// The API server does not serve the kind: no objects exist.
    fn absent(&mut self);
}

/// Lists and watches a collection.
pub struct ListWatch<R> {
    api: Api,
    resource: Resource,
    backoff: Backoff,
    receiver: R,
}

impl<R: Receiver> ListWatch<R> {
    /// Lists and watches `resource` for `receiver`.
    #[must_use]
    pub fn new(api: Api, resource: Resource, backoff: Backoff, receiver: R) -> Self {
        Self { api, resource, backoff, receiver }
    }

    /// Runs until the API server no longer serves the kind, and returns the receiver then.
    pub async fn run(self) -> R {
        let cluster = self.api.cluster().unwrap_or_default();
        // The level of an error, so that every message inside names the cluster and the kind.
        let span = error_span!("kube_watch", cluster, kind = %self.resource);
        self.list_and_watch().instrument(span).await
    }

    async fn list_and_watch(mut self) -> R {
        loop {
            match self.list().await {
                Ok(version) => match self.watch(version).await {
                    ApiError::Absent => break,
                    // The watch cannot be continued: a list finds the missed changes.
                    _ => continue,
                },
                Err(ApiError::Absent) => break,
                Err(error) => {
                    self.report("list failed, retrying", &error);
                    self.wait().await;
                }
            }
        }
        debug!("the API server does not serve the kind");
        self.receiver.absent();
        self.receiver
    }

    /// Lists all pages. Returns the resourceVersion to watch from.
    async fn list(&mut self) -> Result<String, ApiError> {
        let started = Instant::now();
        self.receiver.begin_list();
        let (mut next, mut objects) = (None, 0);
        let version = loop {
            let page = self.api.list(&self.resource, next.as_deref()).await?;
            let items = page.items.unwrap_or_default();
            objects += items.len();
            // The receiver may wait for a full queue, which must not block other tasks of this thread.
            tokio::task::block_in_place(|| self.receiver.listed(items));
            next = page.metadata.next.filter(|token| !token.is_empty());
            if next.is_none() {
                break page.metadata.resource_version;
            }
        };
        tokio::task::block_in_place(|| self.receiver.end_list());
        self.succeeded();
        let milliseconds = started.elapsed().as_millis();
        info!(objects, milliseconds, "listed");
        Ok(version)
    }

    /// Watches from a resourceVersion, one watch after the other, until a list is needed.
    async fn watch(&mut self, mut version: String) -> ApiError {
        loop {
            let started = Instant::now();
            match self.watch_once(&mut version).await {
                Ok(()) => {
                    if started.elapsed() < MIN_SUCCESSFUL_WATCH {
                        self.wait().await;
                    } else {
                        self.succeeded();
                    }
                }
                Err(ApiError::Gone) => {
                    info!("resourceVersion of the watch has expired, listing again");
                    return ApiError::Gone;
                }
                Err(ApiError::Absent) => return ApiError::Absent,
                Err(error) => {
                    self.report("watch failed, continuing from the last resourceVersion", &error);
                    self.wait().await;
                }
            }
        }
    }

    /// One watch until the server ends it.
    async fn watch_once(&mut self, version: &mut String) -> Result<(), ApiError> {
        let events = self.api.watch(&self.resource, version).await?;
        let mut events = std::pin::pin!(events.ready_chunks(MAX_EVENTS_PER_BATCH));
        while let Some(chunk) = events.next().await {
            let (mut batch, mut failure) = (Vec::new(), None);
            for event in chunk {
                match event {
                    Ok(WatchEvent::Bookmark(at)) => *version = at,
                    Ok(event) => {
                        let (WatchEvent::Apply(object) | WatchEvent::Delete(object)) = &event else { continue };
                        let at = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                        if let Some(at) = at {
                            at.clone_into(version);
                        }
                        batch.push(event);
                    }
                    Err(error) => failure = Some(error),
                }
            }
            if !batch.is_empty() {
                tokio::task::block_in_place(|| self.receiver.watched(batch));
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Logs a failure. An unreachable API server is one line for all kinds.
    fn report(&self, event: &str, error: &ApiError) {
        match error {
            ApiError::Unreachable(cause) => self.api.reachability.failed(self.api.cluster(), cause),
            ApiError::Gone => debug!(%error, "{event}"),
            ApiError::Absent | ApiError::Other(_) => warn!(%error, "{event}"),
        }
    }

    fn succeeded(&mut self) {
        self.backoff.worked();
        self.api.reachability.succeeded(self.api.cluster());
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.backoff.failed()).await;
    }
}
