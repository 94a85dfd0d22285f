//! Large requests are read in turns, because each client that reconnects states all that it holds.
//!
//! A client may send a window's worth of bytes; the rest of a large request is read when the server has room for it. The
//! room is taken until the request is answered. It is counted for [`TURN_LEASE`] at most, so clients that send slowly or do
//! not read do not block others.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_util::sync::PollSemaphore;

/// A larger request waits for its turn.
const LARGE_REQUEST_BYTES: usize = 64 << 10;
/// Size of all large requests that are read and answered at a time, in KiB.
const LARGE_REQUESTS_KIB: u32 = 32 << 10;
/// A turn is counted for this time at most.
const TURN_LEASE: Duration = Duration::from_secs(1);

/// The room for large requests of all streams.
#[derive(Clone, Debug)]
pub(crate) struct RequestTurns(Arc<Semaphore>);

impl Default for RequestTurns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_REQUESTS_KIB as usize)))
    }
}

/// The turn of one stream.
#[derive(Debug)]
pub(crate) struct RequestTurn {
    turns: RequestTurns,
    /// Waits for room.
    waiting: Option<PollSemaphore>,
    taken: Vec<TakenRoom>,
    /// The request that is being read has its room.
    is_ready: bool,
}

/// Room that is free again when this is dropped, or when the lease expires: the transport does not poll the stream of a
/// client that does not read.
#[derive(Debug)]
struct TakenRoom {
    _permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    /// `None` outside of a runtime, where no other stream waits.
    lease: Option<AbortHandle>,
}

impl TakenRoom {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        let permit = Arc::new(Mutex::new(Some(permit)));
        let leased = permit.clone();
        let expire = async move {
            tokio::time::sleep(TURN_LEASE).await;
            *leased.lock().unwrap_or_else(PoisonError::into_inner) = None;
        };
        let lease = Handle::try_current().ok().map(|runtime| runtime.spawn(expire).abort_handle());
        Self { _permit: permit, lease }
    }
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            lease.abort();
        }
    }
}

impl RequestTurn {
    pub(crate) fn new(turns: &RequestTurns) -> Self {
        Self { turns: turns.clone(), waiting: None, taken: Vec::new(), is_ready: false }
    }

    /// Waits until a request of this size may be read.
    pub(crate) fn poll_ready(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        if bytes <= LARGE_REQUEST_BYTES || self.is_ready {
            return Poll::Ready(());
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(LARGE_REQUESTS_KIB);
        let waiting = self.waiting.get_or_insert_with(|| PollSemaphore::new(self.turns.0.clone()));
        // The semaphore is never closed.
        self.taken.extend(ready!(waiting.poll_acquire_many(cx, kib)).map(TakenRoom::new));
        self.waiting = None;
        self.is_ready = true;
        Poll::Ready(())
    }

    /// The request is read. The next one waits for a turn of its own.
    pub(crate) fn finish_request(&mut self) {
        self.is_ready = false;
    }

    /// Whether there is room that [`Self::release`] frees.
    pub(crate) fn is_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Frees the room, if no request is being read: nothing of the earlier ones is kept any more.
    pub(crate) fn release(&mut self) {
        if !self.is_ready {
            self.taken = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::poll_fn;
    use futures::task::noop_waker_ref;

    use super::*;

    fn is_ready(turn: &mut RequestTurn, bytes: usize) -> bool {
        turn.poll_ready(bytes, &mut Context::from_waker(noop_waker_ref())).is_ready()
    }

    #[tokio::test]
    async fn large_requests_wait_for_room_and_small_ones_do_not() {
        let turns = RequestTurns::default();
        let [mut first, mut second, mut third] = [0; 3].map(|_| RequestTurn::new(&turns));
        assert!(is_ready(&mut first, 20 << 20));
        assert!(is_ready(&mut first, 20 << 20), "the same request");
        first.release();
        assert!(!is_ready(&mut second, 20 << 20), "the first request is not read yet");
        assert!(is_ready(&mut third, LARGE_REQUEST_BYTES));
        first.finish_request();
        assert!(!is_ready(&mut third, 1 << 20), "the second stream is first");
        first.release();
        poll_fn(|cx| second.poll_ready(20 << 20, cx)).await;
        poll_fn(|cx| third.poll_ready(1 << 20, cx)).await;
        second.finish_request();
        second.release();
        // Larger than all room: it has its turn when no other has one.
        assert!(!is_ready(&mut first, 100 << 20));
        third.finish_request();
        third.release();
        poll_fn(|cx| first.poll_ready(100 << 20, cx)).await;
        assert!(!is_ready(&mut second, 1 << 20));
        // The stream of the first client is not polled any more.
        poll_fn(|cx| second.poll_ready(1 << 20, cx)).await;
        assert!(first.is_taken(), "only the lease has expired");
    }
}
