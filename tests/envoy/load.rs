//! Requests that go on while something else happens, each of which has to be answered as it should.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::mesh::Mesh;

use crate::ask::{stats_of, words};

/// Between two requests of a stream, so that the machine has time for what is tested.
const PAUSE: Duration = Duration::from_millis(10);

/// A stream of requests that are all alike: one after the other, on connections that are kept.
pub(crate) struct Stream {
    from: &'static str,
    call: AppRequest,
    wanted: &'static str,
    sent: AtomicUsize,
}

impl Stream {
    /// From a pod; every response must be of `wanted`, as named by [`AppReply::who`].
    pub(crate) fn new(from: &'static str, call: AppRequest, wanted: &'static str) -> Self {
        Self { from, call: call.kept(), wanted, sent: AtomicUsize::new(0) }
    }

    async fn run(&self, mesh: &Mesh) -> Result<Infallible> {
        loop {
            let reply: AppReply = mesh.pod(self.from).call(self.call.clone()).await?;
            let number = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
            if reply.who() != self.wanted {
                bail!(
                    "{}, wanted {} each time, and got as answer {number} after {:?}: {:?}\n{}",
                    words(self.from, &self.call),
                    self.wanted,
                    reply.elapsed(),
                    reply.outcome,
                    stats_of(mesh, self.from, &self.call.host).await
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Sends requests until `change` is through; how many there were.
///
/// # Errors
/// The change fails, or one answer was not as wanted.
pub(crate) async fn under_load<T>(
    mesh: &Mesh,
    streams: &[Stream],
    change: impl Future<Output = Result<T>>,
) -> Result<(T, usize)> {
    let changed = tokio::select! {
        changed = change => changed?,
        stopped = try_join_all(streams.iter().map(|stream| stream.run(mesh))) => match stopped {
            Err(error) => return Err(error),
            Ok(never) => bail!("{} streams ended", never.len()),
        },
    };
    let sent: Vec<usize> = streams.iter().map(|stream| stream.sent.load(Ordering::Relaxed)).collect();
    ensure!(sent.iter().all(|count| *count > 20), "each stream was to have sent many requests: {sent:?}");
    Ok((changed, sent.iter().sum()))
}
