//! The wait of components that write to a cluster.

use sluice_engine::{Batch, Feed};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Waits for the next batch of the feed. `Some(None)` at `due`; `None` once `stop` is cancelled or the engine stops.
pub async fn next_turn(feed: &mut Feed, due: Option<Instant>, stop: &CancellationToken) -> Option<Option<Batch>> {
    let wait = async {
        match due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => None,
        batch = feed.next() => batch.map(Some),
        () = wait => Some(None),
    }
}
