//! Requests that have been received in part: their memory for each caller, and the time that a client may take to send the rest.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::PollSemaphore;

/// Size of all requests of one caller that have been received in part, in KiB. Further ones are not read meanwhile.
const PARTIAL_REQUESTS_KIB: u32 = 16 << 10;

/// The room for the partial requests of one caller. A clone is the same room.
#[derive(Clone, Debug)]
pub(crate) struct PartialRequests(Arc<Semaphore>);

impl Default for PartialRequests {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PARTIAL_REQUESTS_KIB as usize)))
    }
}

/// A request that has been received in part.
#[derive(Debug)]
pub(crate) struct PartialRequest {
    room: RoomOfRequest,
    timeout: Duration,
    /// Begins when the rest is read. `None` outside of a runtime.
    deadline: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum RoomOfRequest {
    Waiting(PollSemaphore),
    Taken { _permit: Option<OwnedSemaphorePermit> },
}

impl PartialRequest {
    /// The client may take this time to send the rest.
    pub(crate) fn new(of_caller: &PartialRequests, timeout: Duration) -> Self {
        Self { room: RoomOfRequest::Waiting(PollSemaphore::new(of_caller.0.clone())), timeout, deadline: None }
    }

    /// Waits until the caller has room for a request of this size.
    pub(crate) fn poll_room(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        if let RoomOfRequest::Waiting(semaphore) = &mut self.room {
            let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(PARTIAL_REQUESTS_KIB);
            // The semaphore is never closed.
            self.room = RoomOfRequest::Taken { _permit: ready!(semaphore.poll_acquire_many(cx, kib)) };
        }
        Poll::Ready(())
    }

    /// Whether the rest has not been received in time. The time begins with the first call; the task is woken at its end.
    pub(crate) fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        if self.deadline.is_none() && Handle::try_current().is_ok() {
            self.deadline = Some(Box::pin(tokio::time::sleep(self.timeout)));
        }
        self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready())
    }
}

#[cfg(test)]
mod tests {
    use futures::future::poll_fn;
    use futures::task::noop_waker_ref;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn requests_of_a_caller_have_room_together_and_their_rest_arrives_in_time() {
        let of_caller = PartialRequests::default();
        let [mut first, mut second] = [0; 2].map(|_| PartialRequest::new(&of_caller, TIMEOUT));
        poll_fn(|cx| first.poll_room(10 << 20, cx)).await;
        let mut cx = Context::from_waker(noop_waker_ref());
        assert!(second.poll_room(10 << 20, &mut cx).is_pending(), "the room is taken");
        assert!(
            PartialRequest::new(&PartialRequests::default(), TIMEOUT).poll_room(1, &mut cx).is_ready(),
            "of another caller"
        );
        poll_fn(|cx| if first.is_late(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
        assert!(second.poll_room(10 << 20, &mut cx).is_pending(), "until the first one ends");
        drop(first);
        poll_fn(|cx| second.poll_room(10 << 20, cx)).await;
        assert!(!second.is_late(&mut cx), "its time begins now");
    }

    #[tokio::test]
    async fn a_request_that_is_larger_than_the_room_takes_all_of_it() {
        let of_caller = PartialRequests::default();
        poll_fn(|cx| PartialRequest::new(&of_caller, TIMEOUT).poll_room(1 << 30, cx)).await;
    }
}
