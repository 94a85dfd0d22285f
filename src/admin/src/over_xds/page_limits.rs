//! Limits of the debug pages over xDS: each is one message, which is in memory until the client has read it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use sluice_xds::NamedResource;
use sluice_xds_protocol::StreamError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Largest page in bytes. `istioctl` accepts messages of 2 GiB, `sluicectl` of 512 MiB.
const MAX_PAGE_BYTES: usize = 128 << 20;
/// Bytes of all pages that are being built, or that clients have not read yet.
const MAX_HELD_BYTES: usize = 128 << 20;
/// Pages of up to this size do not count.
const UNCOUNTED_PAGE_BYTES: usize = 64 << 10;
/// How long a page waits until clients have read others.
const HELD_PAGES_TIMEOUT: Duration = Duration::from_secs(10);

/// The limits that the pages of some callers share. A clone shares them, too.
#[derive(Clone, Debug)]
pub(super) struct PageLimits {
    max_page_bytes: usize,
    held_pages_timeout: Duration,
    turns: Arc<Semaphore>,
    free_bytes: Arc<Semaphore>,
}

impl Default for PageLimits {
    fn default() -> Self {
        Self::new(MAX_PAGE_BYTES, MAX_HELD_BYTES, HELD_PAGES_TIMEOUT)
    }
}

impl PageLimits {
    fn new(max_page_bytes: usize, max_held_bytes: usize, held_pages_timeout: Duration) -> Self {
        Self {
            max_page_bytes,
            held_pages_timeout,
            turns: Arc::new(Semaphore::new(1)),
            free_bytes: Arc::new(Semaphore::new(max_held_bytes)),
        }
    }

    /// Waits for the turn to build a page: one page is built at a time.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.turns.clone().acquire_owned().await.ok()
    }

    /// Begins to count the bytes of the page `/debug/NAME`.
    pub(super) fn page(&self, name: &str) -> CountedPage<'_> {
        CountedPage { limits: self, name: name.to_owned(), bytes: 0, reserved: None }
    }
}

/// A page that is being built.
pub(super) struct CountedPage<'a> {
    limits: &'a PageLimits,
    name: String,
    bytes: usize,
    reserved: Option<OwnedSemaphorePermit>,
}

impl CountedPage<'_> {
    /// Counts further bytes of the page. Waits while clients have not read enough of other pages.
    pub(super) async fn add(&mut self, bytes: usize) -> Result<(), StreamError> {
        let PageLimits { max_page_bytes, held_pages_timeout, free_bytes, .. } = self.limits;
        self.bytes += bytes;
        if self.bytes > *max_page_bytes {
            return Err(StreamError::Exhausted(format!(
                "the debug page has more than {max_page_bytes} bytes, the limit over xDS; request /debug/{} over HTTP",
                self.name
            )));
        }
        let reserved = self.reserved.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if self.bytes <= reserved.max(UNCOUNTED_PAGE_BYTES) {
            return Ok(());
        }
        let more = u32::try_from(self.bytes - reserved).unwrap_or(u32::MAX);
        let Ok(Ok(more)) = timeout(*held_pages_timeout, free_bytes.clone().acquire_many_owned(more)).await else {
            return Err(StreamError::Exhausted(format!(
                "clients have not read other debug pages over xDS within {} s; request /debug/{} over HTTP",
                held_pages_timeout.as_secs_f64(),
                self.name
            )));
        };
        match &mut self.reserved {
            Some(reserved) => reserved.merge(more),
            None => self.reserved = Some(more),
        }
        Ok(())
    }

    /// Reads the page while it is written. What exceeds a limit is not written.
    pub(super) async fn collect(&mut self, mut body: Body) -> Result<Bytes, StreamError> {
        let mut page = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                StreamError::Unavailable(format!("the debug page /debug/{} is incomplete: {error}", self.name))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            self.add(data.len()).await?;
            if page.is_empty() {
                page = BytesMut::from(data);
            } else {
                page.extend_from_slice(&data);
            }
        }
        Ok(page.freeze())
    }

    /// The resources of the page. Their bytes count until the transport has sent and dropped them.
    pub(super) fn finish(self, mut resources: Vec<NamedResource>) -> Vec<NamedResource> {
        let Some(reserved) = self.reserved.map(Arc::new) else { return resources };
        for resource in &mut resources {
            let bytes = std::mem::take(&mut resource.bytes);
            resource.bytes = Bytes::from_owner(CountedBytes { bytes, _reserved: reserved.clone() });
        }
        resources
    }
}

/// Bytes of a page that count until they are dropped.
struct CountedBytes {
    bytes: Bytes,
    _reserved: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;
    use crate::answer;

    const LONG_TIMEOUT: Duration = Duration::from_secs(30);

    /// Limits with a short wait for clients to read.
    fn limits(max_page_bytes: usize, max_held_bytes: usize) -> PageLimits {
        PageLimits::new(max_page_bytes, max_held_bytes, Duration::from_millis(10))
    }

    fn refusal<T>(result: Result<T, StreamError>) -> String {
        match result {
            Err(StreamError::Exhausted(reason)) => reason,
            Err(error) => panic!("another error: {error}"),
            Ok(_) => panic!("the page is not refused"),
        }
    }

    #[tokio::test]
    async fn page_above_the_limit_is_refused_with_the_page_over_http_and_is_not_written_further() {
        const LIMIT: usize = 100_000;
        const CHUNK: [u8; 1000] = [b'x'; 1000];
        let written = Arc::new(AtomicUsize::new(0));
        let (end, ended) = oneshot::channel::<()>();
        let counter = written.clone();
        let endless = answer::stream("text/plain", move |mut out| {
            // Dropped when the writer ends.
            let _end = end;
            loop {
                out.write_all(&CHUNK)?;
                counter.fetch_add(CHUNK.len(), Ordering::SeqCst);
            }
        });
        let limits = limits(LIMIT, 2 * LIMIT);
        let mut page = limits.page("krtz");
        let collected = timeout(LONG_TIMEOUT, page.collect(endless.into_body())).await.expect("the page is refused");
        let reason = refusal(collected);
        assert!(reason.contains("100000 bytes") && reason.contains("/debug/krtz over HTTP"), "{reason}");
        assert!(timeout(LONG_TIMEOUT, ended).await.expect("the writer ends").is_err());
        let written = written.load(Ordering::SeqCst);
        assert!((LIMIT..LIMIT + 10 * CHUNK.len()).contains(&written), "{written} bytes are written");
        drop(page);
        assert_eq!(limits.free_bytes.available_permits(), 2 * LIMIT, "what was reserved is free");
    }

    #[tokio::test]
    async fn pages_count_until_their_clients_have_read_them() {
        const PAGE_BYTES: usize = 2 * UNCOUNTED_PAGE_BYTES;
        let limits = limits(PAGE_BYTES, PAGE_BYTES);
        let build = async |bytes: usize| {
            let mut page = limits.page("config_dump");
            let bytes = page.collect(Body::from(vec![b'x'; bytes])).await?;
            let resource = NamedResource { name: String::new(), type_url: String::new(), bytes };
            Ok::<_, StreamError>(page.finish(vec![resource]))
        };
        let unread = build(PAGE_BYTES).await.expect("a page");
        assert_eq!(unread[0].bytes, vec![b'x'; PAGE_BYTES]);
        let reason = refusal(build(PAGE_BYTES).await);
        assert!(reason.contains("have not read") && reason.contains("/debug/config_dump over HTTP"), "{reason}");
        assert!(build(UNCOUNTED_PAGE_BYTES).await.is_ok(), "small pages do not count");
        // The transport holds the bytes.
        let sending = unread[0].bytes.clone();
        drop(unread);
        assert!(build(PAGE_BYTES).await.is_err());
        drop(sending);
        assert!(build(PAGE_BYTES).await.is_ok());
    }
}
