//! Reads messages from a gRPC request body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use sluice_xds_protocol::wire::GRPC_PREFIX_BYTES;
use tonic::Status;

use crate::partial_request::{PartialRequest, PartialRequests, TooManyWaiting};
use crate::request_turns::{RequestTurn, RequestTurns};

/// A message up to this size counts as received in part only if its rest has not arrived yet.
const MAX_UNCOUNTED_BYTES: usize = 4096;
/// Time limit for a message that no stream of a server reads.
const UNLIMITED: Duration = Duration::MAX;

/// Splits a request body into its messages. A message that arrives in one frame shares the frame's bytes. The parts of
/// other messages are copied into one buffer.
pub struct GrpcMessages<B> {
    body: B,
    /// The received bytes after the last message.
    frame: Bytes,
    /// The received part of an incomplete message.
    parts: BytesMut,
    max_bytes: usize,
    ended: bool,
    turn: RequestTurn,
    /// The message whose rest has not been received.
    partial: Option<Box<PartialRequest>>,
    /// The room for such messages of all streams of the caller, and the time that a client may take to send the rest.
    partial_limits: (PartialRequests, Duration),
    /// The reason in the metric of refused streams, if a limit ended the stream.
    refusal: Option<&'static str>,
}

impl<B: Body<Data = Bytes, Error: Into<tower::BoxError>> + Unpin> GrpcMessages<B> {
    /// Reads messages of at most this size, large ones in turns. The messages that the streams of a caller have sent in part have
    /// room together, and the rest has to arrive in time.
    pub(crate) fn new(
        body: B,
        max_bytes: usize,
        turn: RequestTurn,
        partial_limits: (PartialRequests, Duration),
    ) -> Self {
        let (frame, parts) = (Bytes::new(), BytesMut::new());
        Self { body, frame, parts, max_bytes, ended: false, turn, partial: None, partial_limits, refusal: None }
    }

    /// Reads messages of at most this size, in turns that no other stream shares.
    #[must_use]
    pub fn of_body(body: B, max_bytes: usize) -> Self {
        let turn = RequestTurn::new(&RequestTurns::default());
        Self::new(body, max_bytes, turn, (PartialRequests::default(), UNLIMITED))
    }

    /// The turn of the stream.
    pub(crate) fn turn(&mut self) -> &mut RequestTurn {
        &mut self.turn
    }

    /// The reason of the refusal for the metric, if the last error is that of a limit of partial requests.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        self.refusal
    }

    /// Sets the maximum size of the next messages.
    pub(crate) fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// The next message; `None` at the end of the body.
    ///
    /// # Errors
    /// A message is too large, compressed or incomplete, its rest does not arrive in time, too many streams wait for room,
    /// or the body cannot be read.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        // Nothing more has arrived.
        let mut is_waiting = false;
        loop {
            let begun = if self.parts.is_empty() { &self.frame[..] } else { &self.parts[..] };
            let size = self.size_of(begun)?;
            let is_complete = self.parts.is_empty() && size.is_some_and(|size| size <= self.frame.len());
            let is_counted =
                is_waiting || self.partial.is_some() || size.is_some_and(|size| size > MAX_UNCOUNTED_BYTES);
            if !is_complete && !begun.is_empty() && is_counted {
                let (of_caller, timeout) = &self.partial_limits;
                let partial = self.partial.get_or_insert_with(|| PartialRequest::new(of_caller, *timeout).into());
                if let Some(size) = size
                    && let Err(TooManyWaiting) = ready!(partial.poll_room(size, cx))
                {
                    self.refusal = Some("waiting");
                    return Poll::Ready(Err(Status::resource_exhausted(
                        "too many streams wait until an earlier request has been received, try again later",
                    )));
                }
            }
            if let Some(size) = size {
                ready!(self.turn.poll_ready(size, cx));
            }
            if self.partial.as_mut().is_some_and(|partial| partial.is_late(cx)) {
                self.refusal = Some("slow_request");
                return Poll::Ready(Err(Status::deadline_exceeded("the rest of a request has not arrived in time")));
            }
            if let Some(message) = self.take_message()? {
                self.turn.finish_request();
                self.partial = None;
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                return Poll::Ready(match self.parts.is_empty() {
                    true => Ok(None),
                    false => Err(Status::invalid_argument("the request ends within a message")),
                });
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending if self.parts.is_empty() || self.partial.is_some() => return Poll::Pending,
                Poll::Pending => is_waiting = true,
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(Status::from_error(error.into()))),
                Poll::Ready(Some(Ok(frame))) => self.frame = frame.into_data().unwrap_or_default(),
            }
        }
    }

    /// The next message if it is complete; if not, `frame` is empty afterwards.
    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        if self.parts.is_empty() {
            match self.size_of(&self.frame)? {
                Some(size) if size <= self.frame.len() => {
                    return Ok(Some(self.frame.split_to(size).slice(GRPC_PREFIX_BYTES..)));
                }
                // The whole size is reserved at once, because a buffer that grows frame by frame is copied repeatedly.
                size => self.parts.reserve(size.unwrap_or(self.frame.len())),
            }
        }
        loop {
            let size = self.size_of(&self.parts)?;
            let missing = size.unwrap_or(GRPC_PREFIX_BYTES) - self.parts.len();
            if size.is_some() && missing == 0 {
                return Ok(Some(std::mem::take(&mut self.parts).freeze().slice(GRPC_PREFIX_BYTES..)));
            }
            if self.frame.is_empty() {
                return Ok(None);
            }
            self.parts.reserve(missing);
            self.parts.extend_from_slice(&self.frame.split_to(missing.min(self.frame.len())));
        }
    }

    /// Size of the message at the start of the bytes, with its prefix; `None` if the prefix is incomplete.
    fn size_of(&self, bytes: &[u8]) -> Result<Option<usize>, Status> {
        let Some((&[flag, a, b, c, d], _)) = bytes.split_first_chunk::<GRPC_PREFIX_BYTES>() else { return Ok(None) };
        if flag != 0 {
            return Err(Status::unimplemented("compressed requests are not supported"));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.max_bytes {
            let max = self.max_bytes;
            return Err(Status::resource_exhausted(format!(
                "the request has {len} bytes, more than the maximum of {max} (ISTIO_GPRC_MAXRECVMSGSIZE, and \
                 --maxAnonymousRequestBytes for the first request of an anonymous caller)"
            )));
        }
        Ok(Some(GRPC_PREFIX_BYTES + len))
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use http_body_util::StreamBody;

    use super::*;
    use crate::partial_request::waiting_streams;

    fn messages(frames: &[&[u8]], max_bytes: usize) -> Vec<Result<Bytes, tonic::Code>> {
        let frames: Vec<Result<_, Status>> =
            frames.iter().map(|frame| Ok(http_body::Frame::data(Bytes::copy_from_slice(frame)))).collect();
        let body = StreamBody::new(futures::stream::iter(frames));
        let mut messages = GrpcMessages::of_body(body, max_bytes);
        let mut cx = Context::from_waker(futures::task::noop_waker_ref());
        let mut all = Vec::new();
        loop {
            match messages.poll_next(&mut cx) {
                Poll::Ready(Ok(Some(message))) => all.push(Ok(message)),
                Poll::Ready(Ok(None)) => return all,
                Poll::Ready(Err(status)) => {
                    all.push(Err(status.code()));
                    return all;
                }
                Poll::Pending => panic!("all frames are available"),
            }
        }
    }

    #[test]
    fn messages_are_read_across_frame_boundaries() {
        let bytes = b"\0\0\0\0\x03abc\0\0\0\0\0\0\0\0\0\x01d";
        for cut in 0..bytes.len() {
            let (a, b) = bytes.split_at(cut);
            let texts: Vec<Bytes> =
                messages(&[a, b], 10).into_iter().map(|message| message.expect("a message")).collect();
            assert_eq!(texts, ["abc", "", "d"], "cut at {cut}");
        }
    }

    #[test]
    fn message_in_one_frame_shares_its_bytes() {
        let frame = Bytes::from_static(b"\0\0\0\0\x03abc\0\0\0\0\x01d");
        let body = http_body_util::Full::new(frame.clone());
        let mut messages = GrpcMessages::of_body(body, 10);
        let mut cx = Context::from_waker(futures::task::noop_waker_ref());
        for at in [5, 13] {
            let Poll::Ready(Ok(Some(message))) = messages.poll_next(&mut cx) else { panic!("the message is complete") };
            assert_eq!(message.as_ptr(), frame[at..].as_ptr());
        }
        assert!(matches!(messages.poll_next(&mut cx), Poll::Ready(Ok(None))));
    }

    #[test]
    fn stream_that_may_not_wait_for_room_ends() {
        let (of_caller, turns) = (PartialRequests::new(1, &waiting_streams(10)), RequestTurns::default());
        let prefix = [&[0][..], &(10_u32 << 20).to_be_bytes()].concat();
        let mut streams = [0; 3].map(|_| {
            let part = futures::stream::iter([Ok::<_, Status>(http_body::Frame::data(Bytes::from(prefix.clone())))]);
            let body = StreamBody::new(part.chain(futures::stream::pending()));
            GrpcMessages::new(body, 16 << 20, RequestTurn::new(&turns), (of_caller.clone(), UNLIMITED))
        });
        let mut cx = Context::from_waker(futures::task::noop_waker_ref());
        let polled = streams.each_mut().map(|messages| match messages.poll_next(&mut cx) {
            Poll::Pending => None,
            Poll::Ready(result) => Some(result.expect_err("no message").code()),
        });
        assert_eq!(polled, [None, None, Some(tonic::Code::ResourceExhausted)], "one is read, one waits");
        assert_eq!(streams.map(|messages| messages.refusal()), [None, None, Some("waiting")]);
    }

    #[test]
    fn small_message_in_two_frames_counts_only_while_its_rest_is_missing() {
        let (of_caller, turns) = (PartialRequests::new(0, &waiting_streams(0)), RequestTurns::default());
        let stream = |frames: Vec<&'static [u8]>| {
            let frames = frames.into_iter().map(|frame| Ok::<_, Status>(http_body::Frame::data(Bytes::from(frame))));
            let body = StreamBody::new(futures::stream::iter(frames).chain(futures::stream::pending()));
            GrpcMessages::new(body, 32 << 20, RequestTurn::new(&turns), (of_caller.clone(), UNLIMITED))
        };
        let mut cx = Context::from_waker(futures::task::noop_waker_ref());
        let mut large = stream(vec![b"\0\x01\0\0\0"]);
        assert!(large.poll_next(&mut cx).is_pending(), "its size is all of the room");
        let mut whole = stream(vec![b"\0\0\0\0\x03", b"abc"]);
        assert!(matches!(whole.poll_next(&mut cx), Poll::Ready(Ok(Some(message))) if message == "abc"));
        let mut missing = stream(vec![b"\0\0\0\0\x03", b"ab"]);
        assert!(matches!(missing.poll_next(&mut cx), Poll::Ready(Err(_))));
        assert_eq!(missing.refusal(), Some("waiting"));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        assert_eq!(messages(&[b"\0\0\0\0\x03ab"], 10), [Err(tonic::Code::InvalidArgument)]);
        assert_eq!(messages(&[b"\0\0\0\0\x0babcdefghijk"], 10), [Err(tonic::Code::ResourceExhausted)]);
        assert_eq!(messages(&[b"\x01\0\0\0\x01a"], 10), [Err(tonic::Code::Unimplemented)]);
    }
}
