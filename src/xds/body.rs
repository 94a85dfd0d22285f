//! The body of a stream's answer: it takes requests in and yields responses as shared bytes.
//!
//! The transport asks for the next frame when it has room for it, and only then is the next response made. So a slow client
//! costs nothing but its place, and what it is sent then is the latest.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Buf as _;
use http_body::Frame;
use hyper::body::Incoming;
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;
use tonic::body::Body;

use crate::xds::admission::{Class, Turn};
use crate::xds::hub::{Encoded, Stream};
use crate::xds::messages::Messages;
use crate::xds::request::{Protocol, Refusal, Request};
use crate::xds::wire::{Finished, Pieces};

/// Requests taken in before it is the turn of a response.
const TURN: usize = 32;

/// The transport is handed pieces of a response until they are as many bytes: a few of its frames.
const HANDED: usize = 64 << 10;

/// The body of a stream's answer.
pub(crate) struct AdsBody {
    stream: Stream,
    protocol: Protocol,
    requests: Messages<Incoming>,
    /// What is left of the response that is being sent.
    pieces: Option<Finished>,
    /// When the response that is being sent was begun.
    sending: Option<Instant>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Who is woken when the server drains.
    told: Option<Waker>,
    retry: Option<Pin<Box<Sleep>>>,
    /// Its place among new streams.
    turn: Turn,
    /// An answer has been made in it.
    answered: bool,
    end: End,
}

enum End {
    /// Not yet.
    Open,
    /// Trailers are to be sent.
    Due(Status),
    /// They were.
    Done,
}

impl AdsBody {
    pub(crate) fn new(stream: Stream, protocol: Protocol, requests: Messages<Incoming>) -> Self {
        let draining = Box::pin(stream.hub().draining().clone().cancelled_owned());
        let turn = Turn::new(stream.hub().admission().clone());
        Self {
            turn,
            answered: false,
            stream,
            protocol,
            requests,
            pieces: None,
            sending: None,
            draining,
            told: None,
            retry: None,
            end: End::Open,
        }
    }

    /// What is handed to the transport next of the response that is being sent.
    fn next_pieces(&mut self) -> Option<Pieces> {
        let left = self.pieces.as_mut()?;
        let mut next = Pieces::default();
        while next.remaining() < HANDED
            && let Some(piece) = left.next()
        {
            next.push(piece);
        }
        if left.size_hint().0 == 0 {
            self.pieces = None;
            if let Some(begun) = self.sending.take() {
                self.stream.hub().metrics().sent(begun.elapsed());
            }
        }
        Some(next)
    }

    fn start(&mut self, response: Encoded) -> Result<(), Status> {
        let pieces = response.rope.finish_response();
        self.pieces = Some(pieces.ok_or_else(|| Status::resource_exhausted("the response is too big"))?);
        self.sending = Some(response.begun);
        Ok(())
    }

    /// Takes in the requests that are there; gives the status with which the stream ends, if it does.
    fn take_requests(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        for _ in 0..TURN {
            match self.requests.poll_next(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(None)) => return Err(Status::ok("")),
                Poll::Ready(Err(status)) => {
                    if !matches!(status.code(), tonic::Code::Cancelled | tonic::Code::Unavailable) {
                        self.stream.failed(&status);
                    }
                    return Err(status);
                }
                Poll::Ready(Ok(Some(message))) => {
                    self.stream.hub().metrics().requested(message.len());
                    let request = Request::decode(self.protocol, &message);
                    let request = request.map_err(|malformed| Status::invalid_argument(malformed.to_string()))?;
                    self.stream.request(request, Instant::now()).map_err(status_of)?;
                }
            }
        }
        // There may be more; they come after the next response.
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Whether the server drains; if not, the task is woken when it does.
    fn is_draining(&mut self, cx: &mut Context<'_>) -> bool {
        if self.told.as_ref().is_some_and(|told| told.will_wake(cx.waker())) {
            return self.stream.hub().is_draining();
        }
        self.told = Some(cx.waker().clone());
        self.draining.as_mut().poll(cx).is_ready()
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<Pieces, Status>> {
        if std::mem::take(&mut self.answered) {
            // What was to be sent is in the transport's hands.
            self.turn.end(Instant::now());
        }
        loop {
            if self.is_draining(cx) {
                return Poll::Ready(Err(Status::unavailable("the server is shutting down")));
            }
            self.take_requests(cx)?;
            self.stream.register(cx);
            if let Poll::Ready(answer) = self.stream.poll_debug(cx) {
                self.start(answer.map_err(status_of)?)?;
                if let Some(pieces) = self.next_pieces() {
                    return Poll::Ready(Ok(pieces));
                }
            }
            let now = Instant::now();
            if let Some(class) = self.stream.takes_turns(now)
                && self.turn.poll(class, cx, now).is_pending()
            {
                let endpoints = match class {
                    Class::Configured => self.stream.poll_endpoints(now),
                    Class::New => None,
                };
                let Some(response) = endpoints else { return Poll::Pending };
                self.start(response)?;
            } else if let Some(response) = self.stream.poll_encoded(now) {
                self.start(response)?;
                self.answered = true;
            }
            if let Some(pieces) = self.next_pieces() {
                return Poll::Ready(Ok(pieces));
            }
            self.turn.end(now);
            let Some(at) = self.stream.retry_at() else {
                self.retry = None;
                return Poll::Pending;
            };
            let at = tokio::time::Instant::from_std(at);
            let retry = self.retry.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
            if retry.deadline() != at {
                retry.as_mut().reset(at);
            }
            std::task::ready!(retry.as_mut().poll(cx));
        }
    }
}

impl http_body::Body for AdsBody {
    type Data = Pieces;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Pieces>, Status>>> {
        if let Some(pieces) = self.next_pieces() {
            return Poll::Ready(Some(Ok(Frame::data(pieces))));
        }
        if matches!(self.end, End::Open) {
            match std::task::ready!(self.poll_open(cx)) {
                Ok(pieces) => return Poll::Ready(Some(Ok(Frame::data(pieces)))),
                Err(status) => self.end = End::Due(status),
            }
        }
        match std::mem::replace(&mut self.end, End::Done) {
            End::Due(status) => {
                let mut trailers = http::HeaderMap::new();
                // A status whose message cannot be written is still a status.
                if status.add_header(&mut trailers).is_err() {
                    trailers.insert("grpc-status", http::HeaderValue::from(i32::from(status.code())));
                }
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            End::Open | End::Done => Poll::Ready(None),
        }
    }
}

/// The body of any answer on a connection that ADS is served on.
#[expect(clippy::large_enum_variant, reason = "nearly all are the big one, and lie where they are polled")]
pub(crate) enum AnyBody {
    Ads(AdsBody),
    Other(Body),
}

impl http_body::Body for AnyBody {
    type Data = Pieces;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Pieces>, Status>>> {
        match &mut *self {
            Self::Ads(body) => Pin::new(body).poll_frame(cx),
            Self::Other(body) => {
                let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| Ok(frame?.map_data(Pieces::from))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Ads(body) => body.is_end_stream(),
            Self::Other(body) => body.is_end_stream(),
        }
    }
}

/// The gRPC status of a refusal.
pub(crate) fn status_of(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Invalid(reason) => Status::invalid_argument(reason),
        Refusal::Unauthenticated(reason) => Status::unauthenticated(reason),
        Refusal::Denied(reason) => Status::permission_denied(reason),
        Refusal::Unavailable(reason) => Status::unavailable(reason),
        Refusal::Exhausted(reason) => Status::resource_exhausted(reason),
    }
}
