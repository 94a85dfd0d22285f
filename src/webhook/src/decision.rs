//! How a request is decided apart from others, within a limit of memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::StatusCode;
use sluice_tasks::Panicked;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::error;

use crate::answer::HttpError;

/// Largest body of a request that is decided on the thread that has read it. It saves two changes of the thread, each of which can
/// wait for a CPU. It waits for no memory either.
const MAX_INLINE_BODY: usize = 64 << 10;
/// Memory of all larger requests that are decided at a time. A request that takes more alone is refused.
const MAX_MEMORY_BYTES: usize = 1 << 30;

/// Memory that the largest regular expression of an object takes while it is compiled.
pub(crate) const EXPRESSION_BYTES: usize = 26 << 20;

/// The most memory that a decision takes. What is built from a value of JSON is much larger than its text: `{}` becomes a route
/// of a VirtualService.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionMemory {
    /// For each byte of the body.
    per_byte: usize,
    /// For each value in it.
    per_value: usize,
}

impl DecisionMemory {
    /// Validation has the review as JSON and the parsed object.
    pub(crate) const VALIDATION: Self = Self { per_byte: 16, per_value: 1024 };
    /// Injection has up to seven copies of the pod as JSON.
    pub(crate) const INJECTION: Self = Self { per_byte: 16, per_value: 3072 };

    /// The most memory that the decision about a body takes.
    pub(crate) fn most(self, body: &[u8]) -> usize {
        let (bytes, values) = (body.len(), max_values(body));
        let of_values = values.saturating_mul(self.per_value);
        bytes.saturating_mul(self.per_byte).saturating_add(of_values).saturating_add(EXPRESSION_BYTES)
    }
}

/// A number of values that a JSON text does not exceed: each value but the first follows `{`, `[` or `,`, or its key does.
fn max_values(json: &[u8]) -> usize {
    let (mut values, mut is_text, mut is_escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b'{' | b'[' | b',' if !is_text => values += 1,
            _ => {}
        }
    }
    values
}

/// What is decided at a time: as many requests as there are CPUs, and large ones within a limit of memory. Clones share it.
#[derive(Clone)]
pub(crate) struct DecisionLimits {
    requests: Arc<Semaphore>,
    /// One permit for each KiB of memory of requests above [`MAX_INLINE_BODY`].
    memory: Arc<Semaphore>,
}

impl DecisionLimits {
    pub(crate) fn new(requests: usize) -> Self {
        let memory = Arc::new(Semaphore::new(MAX_MEMORY_BYTES >> 10));
        Self { requests: Arc::new(Semaphore::new(requests)), memory }
    }

    /// Waits until a request that takes this memory may be decided.
    ///
    /// # Errors
    /// It takes too much memory: status 413.
    async fn permits(&self, memory: usize) -> Result<[Option<OwnedSemaphorePermit>; 2], HttpError> {
        let kib = u32::try_from(memory.min(MAX_MEMORY_BYTES) >> 10).unwrap_or(u32::MAX);
        if memory > MAX_MEMORY_BYTES {
            let reason = "the request has too many values; its decision would take more than 1 GiB of memory";
            return Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, reason));
        }
        // The semaphores are never closed. A request that waits for memory does not keep small ones from their turn.
        let memory = self.memory.clone().acquire_many_owned(kib).await.ok();
        Ok([memory, self.requests.clone().acquire_owned().await.ok()])
    }
}

/// Decides about a request with this body, once there are permits: a large one on a thread for blocking work.
///
/// # Errors
/// The decision would take too much memory: status 413. It panicked: status 500.
pub(crate) async fn decide<T: Send + 'static>(
    limits: &DecisionLimits,
    body: &[u8],
    memory: DecisionMemory,
    decision: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HttpError> {
    let is_inline = body.len() <= MAX_INLINE_BODY;
    let permits = limits.permits(if is_inline { 0 } else { memory.most(body) }).await?;
    let decision = move || {
        let _permits = permits;
        catch_unwind(AssertUnwindSafe(decision)).map_err(|panic| Panicked::new(&*panic).to_string())
    };
    let decided = match is_inline {
        true => decision(),
        false => tokio::task::spawn_blocking(decision).await.unwrap_or_else(|cancelled| Err(cancelled.to_string())),
    };
    decided.map_err(|cause| {
        error!(target: "webhook", cause, "a request was not decided");
        HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error: the request was not decided")
    })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const MEMORY: DecisionMemory = DecisionMemory::VALIDATION;

    #[tokio::test]
    async fn panic_of_a_decision_is_status_500_and_frees_its_permit() {
        let limits = DecisionLimits::new(1);
        for _ in 0..3 {
            for size in [MAX_INLINE_BODY, MAX_INLINE_BODY + 1] {
                let body = vec![b'x'; size];
                let decided: Result<(), _> = decide(&limits, &body, MEMORY, || panic!("injected by the test")).await;
                let error = decided.expect_err("a panic");
                assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
                assert!(!error.reason.contains("injected"), "{}", error.reason);
            }
        }
        assert_eq!(decide(&limits, b"x", MEMORY, || 7).await.expect("decided"), 7);
    }

    #[tokio::test]
    async fn large_requests_are_decided_within_a_limit_of_memory_and_small_ones_do_not_wait_for_it() {
        let limits = DecisionLimits::new(8);
        let mut waiting = [600, 600].map(|mib: usize| limits.permits(mib << 20).boxed());
        let first = (&mut waiting[0]).now_or_never().expect("permits");
        assert!((&mut waiting[1]).now_or_never().is_none());
        assert_eq!(decide(&limits, &vec![b'['; MAX_INLINE_BODY], MEMORY, || 7).await.expect("decided"), 7);
        drop(first);
        assert!((&mut waiting[1]).now_or_never().is_some_and(|permits| permits.is_ok()));
    }

    #[tokio::test]
    async fn request_that_would_take_too_much_memory_is_refused() {
        let limits = DecisionLimits::new(1);
        let objects = |number: usize| format!("[{}]", vec!["{}"; number].join(","));
        let decided = async |body: String| decide(&limits, body.as_bytes(), MEMORY, || 7).await;
        assert_eq!(decided(objects(490_000)).await.expect("decided"), 7);
        assert_eq!(decided(objects(530_000)).await.expect_err("refused").status, StatusCode::PAYLOAD_TOO_LARGE);
        // The same characters in a text are no values.
        assert_eq!(decided(format!("{:?}", objects(530_000))).await.expect("decided"), 7);
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (json, values) in
            [("1", 1), ("[1,2]", 3), (r#"{"a":{"b":[1]}}"#, 4), (r#"["{\"[,",1]"#, 3), (r#"["\\",[]]"#, 4)]
        {
            assert_eq!(max_values(json.as_bytes()), values, "{json}");
        }
    }
}
