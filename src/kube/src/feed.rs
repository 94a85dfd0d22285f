//! The waits of components that write published values to a cluster.

use sluice_engine::{Batch, Feed};
use sluice_tasks::sleep_until_due;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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
