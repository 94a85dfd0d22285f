//! Requests that have been received in part: their memory for each caller, and the time that a client may take to send the rest.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::PollSemaphore;

/// Size of all requests of one caller that have been received in part, in KiB. Further ones are not read meanwhile.
const PARTIAL_REQUESTS_KIB: u32 = 16 << 10;

/// The room for the partial requests of one caller, and how many of its streams may wait for it. A clone is the same room.
#[derive(Clone, Debug)]
pub(crate) struct PartialRequests {
    room: Arc<Semaphore>,
    /// Permits of the streams that wait: those of the caller, and those of all callers.
    waiting: [Arc<Semaphore>; 2],
}

/// The stream has to wait for room, and too many others do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TooManyWaiting;

/// Permits of this number of streams that wait.
pub(crate) fn waiting_streams(number: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(number.min(Semaphore::MAX_PERMITS)))
}

impl PartialRequests {
    /// This number of streams of the caller may wait, within `waiting` of all callers.
    pub(crate) fn new(waiting_of_caller: usize, waiting: &Arc<Semaphore>) -> Self {
        let room = Arc::new(Semaphore::new(PARTIAL_REQUESTS_KIB as usize));
        Self { room, waiting: [waiting_streams(waiting_of_caller), waiting.clone()] }
    }

    /// Counts a stream that waits.
    fn wait(&self) -> Result<[OwnedSemaphorePermit; 2], TooManyWaiting> {
        let permit = |of: &Arc<Semaphore>| of.clone().try_acquire_owned().map_err(|_| TooManyWaiting);
        let [of_caller, of_all] = &self.waiting;
        Ok([permit(of_caller)?, permit(of_all)?])
    }
}

impl Default for PartialRequests {
    /// Any number of streams may wait.
    fn default() -> Self {
        Self::new(usize::MAX, &waiting_streams(usize::MAX))
    }
}

/// A request that has been received in part.
#[derive(Debug)]
pub(crate) struct PartialRequest {
    of_caller: PartialRequests,
    room: RoomOfRequest,
    timeout: Duration,
    /// Begins when the rest is read. `None` outside of a runtime.
    deadline: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum RoomOfRequest {
    Waiting {
        room: PollSemaphore,
        /// The stream as one that waits; `None` before the first attempt.
        counted: Option<[OwnedSemaphorePermit; 2]>,
    },
    Taken {
        _permit: Option<OwnedSemaphorePermit>,
    },
}

impl PartialRequest {
    /// The client may take this time to send the rest.
    pub(crate) fn new(of_caller: &PartialRequests, timeout: Duration) -> Self {
        let room = RoomOfRequest::Waiting { room: PollSemaphore::new(of_caller.room.clone()), counted: None };
        Self { of_caller: of_caller.clone(), room, timeout, deadline: None }
    }

    /// Waits until the caller has room for a request of this size. The wait has no time limit: when thousands of proxies
    /// reconnect, each of them waits for those before it.
    ///
    /// # Errors
    /// There is no room, and too many streams wait already.
    pub(crate) fn poll_room(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<Result<(), TooManyWaiting>> {
        let RoomOfRequest::Waiting { room, counted } = &mut self.room else { return Poll::Ready(Ok(())) };
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(PARTIAL_REQUESTS_KIB);
        match room.poll_acquire_many(cx, kib) {
            Poll::Ready(permit) => {
                // The semaphore is never closed.
                self.room = RoomOfRequest::Taken { _permit: permit };
                Poll::Ready(Ok(()))
            }
            Poll::Pending if counted.is_some() => Poll::Pending,
            Poll::Pending => match self.of_caller.wait() {
                Ok(permits) => {
                    *counted = Some(permits);
                    Poll::Pending
                }
                Err(too_many) => Poll::Ready(Err(too_many)),
            },
        }
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
        poll_fn(|cx| first.poll_room(10 << 20, cx)).await.expect("room");
        let mut cx = Context::from_waker(noop_waker_ref());
        assert!(second.poll_room(10 << 20, &mut cx).is_pending(), "the room is taken");
        assert!(
            PartialRequest::new(&PartialRequests::default(), TIMEOUT).poll_room(1, &mut cx).is_ready(),
            "of another caller"
        );
        poll_fn(|cx| if first.is_late(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
        assert!(second.poll_room(10 << 20, &mut cx).is_pending(), "until the first one ends");
        drop(first);
        poll_fn(|cx| second.poll_room(10 << 20, cx)).await.expect("room");
        assert!(!second.is_late(&mut cx), "its time begins now");
    }

    #[tokio::test]
    async fn a_request_that_is_larger_than_the_room_takes_all_of_it() {
        let of_caller = PartialRequests::default();
        poll_fn(|cx| PartialRequest::new(&of_caller, TIMEOUT).poll_room(1 << 30, cx)).await.expect("all of the room");
    }

    #[tokio::test]
    async fn streams_that_wait_for_room_are_limited_for_each_caller_and_in_total() {
        let waiting = waiting_streams(3);
        let [cart, till] = [2, 2].map(|of_caller| PartialRequests::new(of_caller, &waiting));
        let mut cx = Context::from_waker(noop_waker_ref());
        let mut begin = |of_caller: &PartialRequests| {
            let mut request = PartialRequest::new(of_caller, TIMEOUT);
            let room = request.poll_room(10 << 20, &mut cx);
            (request, room)
        };
        let ready = Poll::Ready(Ok(()));
        let refused = Poll::Ready(Err(TooManyWaiting));
        let mut of_cart: Vec<_> = (0..4).map(|_| begin(&cart)).collect();
        let rooms: Vec<_> = of_cart.iter().map(|(_, room)| *room).collect();
        assert_eq!(rooms, [ready, Poll::Pending, Poll::Pending, refused], "two may wait for the first one");
        let of_till: Vec<_> = (0..3).map(|_| begin(&till)).collect();
        let rooms: Vec<_> = of_till.iter().map(|(_, room)| *room).collect();
        assert_eq!(rooms, [ready, Poll::Pending, refused], "three wait in total");
        // The first one ends, and the next one has the room: it no longer waits.
        drop(of_cart.remove(0));
        poll_fn(|cx| of_cart[0].0.poll_room(10 << 20, cx)).await.expect("room");
        assert_eq!(begin(&cart).1, Poll::Pending, "another one may wait");
        drop((of_cart, of_till));
        assert_eq!(waiting.available_permits(), 3);
    }
}
