//! Sends requests while something changes. Every response has to be the expected one.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use futures::future::try_join_all;

use super::app::{AppReply, AppRequest};
use super::pod_set::Pod;

/// Pause between two requests of a stream, so that they do not occupy the CPUs.
const PAUSE: Duration = Duration::from_millis(10);

/// Requests of each stream before the change begins, and after it is complete.
const MIN_REQUESTS: usize = 10;

/// A sequence of equal requests, one after the other, on reused connections.
pub struct Stream {
    from: Arc<Pod>,
    call: AppRequest,
    expected: &'static str,
    sent: AtomicUsize,
}

impl Stream {
    /// Requests from a pod. `expected` must respond to each, as named by [`AppReply::responder`].
    #[must_use]
    pub fn new(from: Arc<Pod>, call: AppRequest, expected: &'static str) -> Self {
        Self { from, call: call.reuse_connection(), expected, sent: AtomicUsize::new(0) }
    }

    async fn run(&self) -> Result<Infallible> {
        loop {
            let reply: AppReply = self.from.call(self.call.clone()).await?;
            let number = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
            if reply.responder() != self.expected {
                bail!(
                    "{}; expected {} each time, but response {number} after {:?} is {:?}\n{}",
                    self.call.describe(self.from.workload.name),
                    self.expected,
                    reply.elapsed(),
                    reply.outcome,
                    self.from.stats_of(&self.call.host).await
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Waits until each stream has sent some further requests.
async fn send_more(streams: &[Stream]) {
    for stream in streams {
        let before = stream.sent.load(Ordering::Relaxed);
        while stream.sent.load(Ordering::Relaxed) < before + MIN_REQUESTS {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Sends requests before, during and after `change`. Returns its result and the number of requests.
///
/// # Errors
/// The change fails, or a response is not the expected one.
pub async fn under_load<T>(streams: &[Stream], change: impl Future<Output = Result<T>>) -> Result<(T, usize)> {
    let change = async {
        send_more(streams).await;
        let changed = change.await?;
        send_more(streams).await;
        anyhow::Ok(changed)
    };
    let changed = tokio::select! {
        changed = change => changed?,
        stopped = try_join_all(streams.iter().map(|stream| stream.run())) => match stopped {
            Err(error) => return Err(error),
            Ok(never) => bail!("{} streams ended", never.len()),
        },
    };
    Ok((changed, streams.iter().map(|stream| stream.sent.load(Ordering::Relaxed)).sum()))
}
