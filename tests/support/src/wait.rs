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
