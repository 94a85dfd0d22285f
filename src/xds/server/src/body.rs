//! The body of a stream's gRPC response: it reads requests and yields responses as shared bytes.
//!
//! The transport polls for the next frame when it has room. The next response is built only then, from the latest
//! state, so nothing is queued for a slow client.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Buf as _;
use http_body::Frame;
use hyper::body::Incoming;
use sluice_tls::WallClockSleep;
use sluice_xds_protocol::wire::{BufferChunks, ResponseFrame};
use sluice_xds_protocol::{Request, StreamError, XdsProtocol};
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;
use tonic::body::Body;

use crate::activity::RequestGuard;
use crate::admission::{AdmissionClass, PushPermit};
use crate::caller_streams::CountedStream;
use crate::grpc_messages::GrpcMessages;
use crate::stream::{AdsStream, EncodedResponse};

/// Maximum number of requests that are read before the next response.
const MAX_REQUESTS_PER_POLL: usize = 32;

/// Chunks of a response are passed to the transport together, in frames of about this size.
const FRAME_TARGET_BYTES: usize = 64 << 10;

/// The body of a stream's gRPC response.
pub(crate) struct AdsBody {
    stream: AdsStream,
    protocol: XdsProtocol,
    requests: GrpcMessages<Incoming>,
    /// The rest of the response that is being sent.
    chunks: Option<BufferChunks>,
    /// When the server began to build the response that is being sent.
    sending: Option<Instant>,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The task that `ending` and `expiry` wake.
    ending_waker: Option<Waker>,
    retry: Option<Pin<Box<Sleep>>>,
    permit: PushPermit,
    /// A response was built with the permit.
    permit_used: bool,
    end: StreamEnd,
    request: RequestGuard,
    counted: CountedStream,
    /// Time limit of the request that identifies the proxy, and the maximum size of later ones.
    first_request: Option<(Pin<Box<Sleep>>, usize)>,
    /// Ends when the credentials of the caller expire, if they do.
    expiry: Option<WallClockSleep>,
}

enum StreamEnd {
    /// The stream is open.
    Open,
    /// The trailers are to be sent.
    Due(Status),
    /// The trailers are sent.
    Done,
}

impl AdsBody {
    pub(crate) fn new(
        stream: AdsStream,
        protocol: XdsProtocol,
        requests: GrpcMessages<Incoming>,
        max_request_bytes: usize,
        request: RequestGuard,
        counted: CountedStream,
    ) -> Self {
        let expiry = stream.caller().expiry;
        let deadline = Box::pin(tokio::time::sleep(request.connection().first_request_timeout()));
        let ending = Box::pin(request.connection().ending().clone().cancelled_owned());
        let permit = PushPermit::new(stream.server().admission().clone());
        Self {
            permit,
            permit_used: false,
            stream,
            protocol,
            requests,
            chunks: None,
            sending: None,
            ending,
            ending_waker: None,
            retry: None,
            end: StreamEnd::Open,
            request,
            counted,
            first_request: Some((deadline, max_request_bytes)),
            expiry: expiry.map(WallClockSleep::until),
        }
    }

    /// Whether the request that identifies the proxy has not arrived in time.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        self.first_request.as_mut().is_some_and(|(deadline, _)| deadline.as_mut().poll(cx).is_ready())
    }

    /// Lifts the limits of the first request once the proxy is identified. Returns the status with which the stream ends, if its
    /// caller has too many streams that are not of proxies.
    fn lift_first_limits(&mut self) -> Result<(), Status> {
        if self.stream.is_identified()
            && let Some((_, max_request_bytes)) = self.first_request.take()
        {
            self.requests.set_max_bytes(max_request_bytes);
            self.counted.identified();
            if self.stream.proxy().is_none() && !self.counted.add_other() {
                self.stream.server().metrics().refused("caller");
                return Err(Status::resource_exhausted(
                    "too many streams of this caller for debug pages and configuration",
                ));
            }
        }
        Ok(())
    }

    /// The next frame of the response that is being sent.
    fn next_frame(&mut self) -> Option<ResponseFrame> {
        let rest = self.chunks.as_mut()?;
        let mut frame = ResponseFrame::default();
        while frame.remaining() < FRAME_TARGET_BYTES
            && let Some(chunk) = rest.next()
        {
            frame.push(chunk);
        }
        if rest.size_hint().0 == 0 {
            self.chunks = None;
            if let Some(begun) = self.sending.take() {
                self.stream.server().metrics().sent(begun.elapsed());
            }
        }
        Some(frame)
    }

    fn start(&mut self, response: EncodedResponse) -> Result<(), Status> {
        let chunks = response.buffer.finish_response();
        self.chunks = Some(chunks.ok_or_else(|| Status::resource_exhausted("the response is larger than 4 GiB"))?);
        self.sending = Some(response.begun);
        Ok(())
    }

    /// Reads the available requests. Returns the status with which the stream ends, if it does.
    fn read_requests(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        for _ in 0..MAX_REQUESTS_PER_POLL {
            match self.requests.poll_next(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(None)) => return Err(Status::ok("")),
                Poll::Ready(Err(status)) => {
                    match (self.requests.refusal(), status.code()) {
                        (Some(reason), _) => self.stream.server().metrics().refused(reason),
                        (None, tonic::Code::Cancelled | tonic::Code::Unavailable) => {}
                        (None, _) => self.stream.failed(&status),
                    }
                    return Err(status);
                }
                Poll::Ready(Ok(Some(message))) => {
                    self.stream.server().metrics().requested(message.len());
                    let request = Request::decode(self.protocol, &message);
                    let request = request.map_err(|malformed| {
                        let status = Status::invalid_argument(malformed.to_string());
                        self.stream.failed(&status);
                        status
                    })?;
                    self.stream.request(request, Instant::now()).map_err(status_of)?;
                    self.lift_first_limits()?;
                }
            }
        }
        // Further requests are read after the next response.
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Why the stream has to end, if the server drains or a limit ends the connection. If not, the task is woken when it
    /// does.
    fn end_reason(&mut self, cx: &mut Context<'_>) -> Option<&'static str> {
        if !self.ending_waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.ending_waker = Some(cx.waker().clone());
            // Pending registers the task. Whether they are ready is read below without the cost of a registration.
            let _ = self.ending.as_mut().poll(cx);
            if let Some(expiry) = &mut self.expiry {
                let _ = Pin::new(expiry).poll(cx);
            }
        }
        if self.stream.server().is_draining() {
            return Some("the server is shutting down");
        }
        self.request.connection().is_ending().then_some("the connection has to be opened again")
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseFrame, Status>> {
        if std::mem::take(&mut self.permit_used) {
            // The transport has the whole response.
            self.permit.release(Instant::now());
        }
        loop {
            if let Some(reason) = self.end_reason(cx) {
                return Poll::Ready(Err(Status::unavailable(reason)));
            }
            self.read_requests(cx)?;
            if self.requests.turn().is_taken() && !self.stream.keeps_requests() {
                self.requests.turn().release();
            }
            if self.is_late(cx) {
                self.stream.server().metrics().refused("first_request");
                return Poll::Ready(Err(Status::deadline_exceeded("no request has identified the proxy in time")));
            }
            if self.expiry.as_mut().is_some_and(|expiry| expiry.has_ended(cx)) {
                self.stream.server().metrics().refused("expired");
                return Poll::Ready(Err(Status::unauthenticated("the credentials of the caller have expired")));
            }
            self.stream.register(cx);
            if let Some(reason) = self.stream.refused() {
                let status = Status::failed_precondition(reason);
                self.stream.server().metrics().refused("registration");
                return Poll::Ready(Err(status));
            }
            if let Poll::Ready(response) = self.stream.poll_other(cx) {
                self.start(response.map_err(status_of)?)?;
                if let Some(frame) = self.next_frame() {
                    return Poll::Ready(Ok(frame));
                }
            }
            let now = Instant::now();
            if let Some(class) = self.stream.permit_class(now)
                && self.permit.poll(class, cx, now).is_pending()
            {
                let endpoints = match class {
                    AdmissionClass::Configured => self.stream.poll_endpoints(now),
                    AdmissionClass::New => None,
                };
                let Some(response) = endpoints else { return Poll::Pending };
                self.start(response)?;
            } else if let Some(response) = self.stream.poll_encoded(now) {
                self.start(response)?;
                self.permit_used = true;
            }
            if let Some(frame) = self.next_frame() {
                return Poll::Ready(Ok(frame));
            }
            self.permit.release(now);
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
    type Data = ResponseFrame;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponseFrame>, Status>>> {
        // A thread polls many streams in turn, each of which may encode and send much.
        self.stream.server().short_requests().go_first();
        if let Some(frame) = self.next_frame() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        if matches!(self.end, StreamEnd::Open) {
            match std::task::ready!(self.poll_open(cx)) {
                Ok(frame) => return Poll::Ready(Some(Ok(Frame::data(frame)))),
                Err(status) => self.end = StreamEnd::Due(status),
            }
        }
        match std::mem::replace(&mut self.end, StreamEnd::Done) {
            StreamEnd::Due(status) => Poll::Ready(Some(Ok(trailers(&status)))),
            StreamEnd::Open | StreamEnd::Done => Poll::Ready(None),
        }
    }
}

/// The body of any response on an ADS connection.
#[expect(clippy::large_enum_variant, reason = "nearly all are the large variant, and are stored where they are polled")]
pub(crate) enum ResponseBody {
    Ads(AdsBody),
    Other {
        body: Body,
        /// Counts the request until the body is sent.
        _request: RequestGuard,
    },
}

impl http_body::Body for ResponseBody {
    type Data = ResponseFrame;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponseFrame>, Status>>> {
        match &mut *self {
            Self::Ads(body) => Pin::new(body).poll_frame(cx),
            Self::Other { body, .. } => {
                let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| Ok(frame?.map_data(ResponseFrame::from))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Ads(body) => body.is_end_stream(),
            Self::Other { body, .. } => body.is_end_stream(),
        }
    }
}

/// The last frame of a body, with its status.
pub(crate) fn trailers<D>(status: &Status) -> Frame<D> {
    let mut trailers = http::HeaderMap::new();
    // If the message cannot be encoded, the code alone is sent.
    if status.add_header(&mut trailers).is_err() {
        trailers.insert("grpc-status", http::HeaderValue::from(i32::from(status.code())));
    }
    Frame::trailers(trailers)
}

/// The gRPC status of an error.
pub(crate) fn status_of(error: StreamError) -> Status {
    match error {
        StreamError::Invalid(reason) => Status::invalid_argument(reason),
        StreamError::Unauthenticated(reason) => Status::unauthenticated(reason),
        StreamError::Denied(reason) => Status::permission_denied(reason),
        StreamError::Unavailable(reason) => Status::unavailable(reason),
        StreamError::Exhausted(reason) => Status::resource_exhausted(reason),
    }
}
