//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Polls until there is a value.
///
/// # Panics
/// There is none within 20 s. The message is `what`.
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
