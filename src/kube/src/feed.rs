//! The waits of components that write published values to a cluster.

use sluice_engine::{Batch, Feed};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Waits until `due`; forever if it is `None`.
pub async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Waits for the next batch of the feed, or until `due`. `Some(None)` if `due` is first; `None` if `stop` is cancelled or
/// the engine stops.
pub async fn next_batch_or_due(
    feed: &mut Feed,
    due: Option<Instant>,
    stop: &CancellationToken,
) -> Option<Option<Batch>> {
    tokio::select! {
        () = stop.cancelled() => None,
        batch = feed.next() => batch.map(Some),
        () = sleep_until_due(due) => Some(None),
    }
}
