//! Waits of tasks whose next work may not be known.

use tokio::time::Instant;

/// Waits until `due`; forever if it is `None`.
pub async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
