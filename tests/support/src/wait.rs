//! Waiting for what comes by itself.

use std::time::{Duration, Instant};

/// Asks until there is an answer.
///
/// # Panics
/// When there is none in 20 s; `what` says of what.
pub async fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
