//! One collection of the API, listed and watched for ever.
//!
//! ```text
//! List ──ok──▶ Watch ──ended──▶ Watch, from where it was
//!  ▲  ▲          │ └───failed──▶ wait, Watch
//!  │  └──────────┘ too old (410)
//!  └─ failed: wait          no such kind (404): told, and the end
//! ```

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::Value;
use tracing::{debug, info, warn};

use crate::api::{Api, ApiError, Resource, Told};
use crate::backoff::Backoff;

/// Events of a watch that are handed on together at most.
const TOGETHER: usize = 1024;
/// A watch that lasted this long has worked.
const LASTED: Duration = Duration::from_secs(5);

/// Who is told of the objects.
pub trait Receiver: Send {
    /// A list begins: objects that it does not name are gone when it ends.
    fn begin_list(&mut self);
    /// Objects of the list.
    fn listed(&mut self, objects: Vec<Value>);
    /// The list is complete.
    fn end_list(&mut self);
    /// What a watch told, in order. Bookmarks are not told.
    fn told(&mut self, events: Vec<Told>);
    /// There is no such kind: no object, that is.
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
    pub fn new(api: Api, resource: Resource, backoff: Backoff, receiver: R) -> Self {
        Self { api, resource, backoff, receiver }
    }

    /// Goes on until there is no such kind; gives the receiver back then.
    pub async fn run(mut self) -> R {
        loop {
            match self.list().await {
                Ok(version) => match self.watch(version).await {
                    ApiError::Absent => break,
                    // Watching failed for good: what was missed is found by listing again.
                    _ => continue,
                },
                Err(ApiError::Absent) => break,
                Err(ApiError::Gone) => {
                    debug!(cluster = self.api.cluster(), resource = %self.resource, "the list was too old to be continued, listing again");
                    self.wait().await;
                }
                Err(ApiError::Other(error)) => {
                    warn!(cluster = self.api.cluster(), resource = %self.resource, error, "cannot list, trying again");
                    self.wait().await;
                }
            }
        }
        debug!(cluster = self.api.cluster(), resource = %self.resource, "there is no such kind");
        self.receiver.absent();
        self.receiver
    }

    /// Lists everything; gives the resourceVersion to watch from.
    async fn list(&mut self) -> Result<String, ApiError> {
        let started = Instant::now();
        self.receiver.begin_list();
        let (mut next, mut objects) = (None, 0);
        let version = loop {
            let page = self.api.list(&self.resource, next.as_deref()).await?;
            let items = page.items.unwrap_or_default();
            objects += items.len();
            // Handing on may wait for room, which must not hold up other tasks of this thread.
            tokio::task::block_in_place(|| self.receiver.listed(items));
            next = page.metadata.next.filter(|token| !token.is_empty());
            if next.is_none() {
                break page.metadata.resource_version;
            }
        };
        tokio::task::block_in_place(|| self.receiver.end_list());
        self.backoff.worked();
        let milliseconds = started.elapsed().as_millis();
        info!(cluster = self.api.cluster(), resource = %self.resource, objects, milliseconds, "listed");
        Ok(version)
    }

    /// Watches from a resourceVersion, watch after watch, until that cannot go on.
    async fn watch(&mut self, mut version: String) -> ApiError {
        loop {
            let started = Instant::now();
            match self.watch_once(&mut version).await {
                Ok(()) => {
                    if started.elapsed() < LASTED {
                        self.wait().await;
                    } else {
                        self.backoff.worked();
                    }
                }
                Err(ApiError::Gone) => {
                    info!(cluster = self.api.cluster(), resource = %self.resource, "the watch is too far behind, listing again");
                    return ApiError::Gone;
                }
                Err(ApiError::Absent) => return ApiError::Absent,
                Err(ApiError::Other(error)) => {
                    warn!(cluster = self.api.cluster(), resource = %self.resource, error, "the watch failed, going on from where it was");
                    self.wait().await;
                }
            }
        }
    }

    /// One watch until the server ends it.
    async fn watch_once(&mut self, version: &mut String) -> Result<(), ApiError> {
        let events = self.api.watch(&self.resource, version).await?;
        let mut events = std::pin::pin!(events.ready_chunks(TOGETHER));
        while let Some(chunk) = events.next().await {
            let (mut told, mut failure) = (Vec::new(), None);
            for event in chunk {
                match event {
                    Ok(Told::Bookmark(at)) => *version = at,
                    Ok(event) => {
                        let (Told::Set(object) | Told::Deleted(object)) = &event else { continue };
                        let at = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                        if let Some(at) = at {
                            at.clone_into(version);
                        }
                        told.push(event);
                    }
                    Err(error) => failure = Some(error),
                }
            }
            if !told.is_empty() {
                tokio::task::block_in_place(|| self.receiver.told(told));
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
        }
        Ok(())
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.backoff.failed()).await;
    }
}
