//! Waits for a condition.

use std::time::{Duration, Instant};

/// Polls until `poll` returns a value.
///
/// # Panics
/// There is no value within 20 s. The message is `what`.
pub async fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The same with a poll that waits itself, and a longer limit: a real API server on a busy machine takes longer.
///
/// # Panics
/// There is no value within 60 s. The message is `what`.
pub async fn until_async<T>(what: &str, poll: impl AsyncFnMut() -> Option<T>) -> T {
    until_within(Duration::from_secs(60), what, poll).await
}

/// The same with another limit.
///
/// # Panics
/// There is no value within `limit`, or a poll does not end. The message is `what`.
pub async fn until_within<T>(limit: Duration, what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        // A poll that has begun in time may still end.
        let polled = tokio::time::timeout(limit * 2, poll()).await;
        if let Some(value) = polled.unwrap_or_else(|_| panic!("{what}: no answer")) {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
