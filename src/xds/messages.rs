//! Messages out of a gRPC request body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body;
use tonic::Status;

use crate::xds::wire::PREFIX;

/// A buffer that has grown beyond this is given back after the message it grew for.
const KEPT: usize = 4096;

/// Cuts a request body into its messages, without a codec that keeps the biggest one's memory for the stream's life.
pub(crate) struct Messages<B> {
    body: B,
    buffer: BytesMut,
    most: usize,
    ended: bool,
}

impl<B: Body<Data = Bytes, Error: Into<tower::BoxError>> + Unpin> Messages<B> {
    /// Messages of at most that many bytes.
    pub(crate) fn new(body: B, most: usize) -> Self {
        Self { body, buffer: BytesMut::new(), most, ended: false }
    }

    /// The next message; nothing at the end of the body.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(message) = self.cut()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                return Poll::Ready(match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(Status::invalid_argument("the request ends within a message")),
                });
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => self.ended = true,
                Some(Err(error)) => return Poll::Ready(Err(Status::from_error(error.into()))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    fn cut(&mut self) -> Result<Option<Bytes>, Status> {
        let Some((&[flag, a, b, c, d], _)) = self.buffer.split_first_chunk::<PREFIX>() else { return Ok(None) };
        if flag != 0 {
            return Err(Status::unimplemented("compressed requests are not taken"));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.most {
            let most = self.most;
            return Err(Status::resource_exhausted(format!("a request has {len} bytes, at most {most} are taken")));
        }
        if self.buffer.len() < PREFIX + len {
            // In one go: what grows by frames is copied again and again.
            self.buffer.reserve(PREFIX + len - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        let message = self.buffer.split_to(len).freeze();
        if self.buffer.is_empty() && len > KEPT {
            self.buffer = BytesMut::new();
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;

    use super::*;

    fn messages(frames: &[&[u8]], most: usize) -> Vec<Result<Bytes, tonic::Code>> {
        let frames: Vec<Result<_, Status>> =
            frames.iter().map(|frame| Ok(http_body::Frame::data(Bytes::copy_from_slice(frame)))).collect();
        let mut messages = Messages::new(StreamBody::new(futures::stream::iter(frames)), most);
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
                Poll::Pending => panic!("the frames are all there"),
            }
        }
    }

    #[test]
    fn messages_are_cut_wherever_frames_end() {
        let bytes = b"\0\0\0\0\x03abc\0\0\0\0\0\0\0\0\0\x01d";
        for cut in 0..bytes.len() {
            let (a, b) = bytes.split_at(cut);
            let texts: Vec<Bytes> =
                messages(&[a, b], 10).into_iter().map(|message| message.expect("a message")).collect();
            assert_eq!(texts, ["abc", "", "d"], "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        assert_eq!(messages(&[b"\0\0\0\0\x03ab"], 10), [Err(tonic::Code::InvalidArgument)]);
        assert_eq!(messages(&[b"\0\0\0\0\x0babcdefghijk"], 10), [Err(tonic::Code::ResourceExhausted)]);
        assert_eq!(messages(&[b"\x01\0\0\0\x01a"], 10), [Err(tonic::Code::Unimplemented)]);
    }
}
