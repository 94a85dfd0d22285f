//! Messages out of a gRPC request body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::Body;
use tonic::Status;

use crate::xds::wire::PREFIX;

/// Cuts a request body into its messages. One that came in a frame is a piece of that; others are put together.
pub(crate) struct Messages<B> {
    body: B,
    /// What has come after the last message.
    frame: Bytes,
    /// A message of which there was more to come than its first frame had.
    parts: BytesMut,
    most: usize,
    ended: bool,
}

impl<B: Body<Data = Bytes, Error: Into<tower::BoxError>> + Unpin> Messages<B> {
    /// Messages of at most that many bytes.
    pub(crate) fn new(body: B, most: usize) -> Self {
        Self { body, frame: Bytes::new(), parts: BytesMut::new(), most, ended: false }
    }

    /// The next message; nothing at the end of the body.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(message) = self.cut()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                return Poll::Ready(match self.parts.is_empty() {
                    true => Ok(None),
                    false => Err(Status::invalid_argument("the request ends within a message")),
                });
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => self.ended = true,
                Some(Err(error)) => return Poll::Ready(Err(Status::from_error(error.into()))),
                Some(Ok(frame)) => self.frame = frame.into_data().unwrap_or_default(),
            }
        }
    }

    /// The next message if all of it is there; if not, `frame` is empty.
    fn cut(&mut self) -> Result<Option<Bytes>, Status> {
        if self.parts.is_empty() {
            match self.size_of(&self.frame)? {
                Some(size) if size <= self.frame.len() => return Ok(Some(self.frame.split_to(size).slice(PREFIX..))),
                // In one go: what grows by frames is copied again and again.
                size => self.parts.reserve(size.unwrap_or(self.frame.len())),
            }
        }
        loop {
            let size = self.size_of(&self.parts)?;
            let wanted = size.unwrap_or(PREFIX) - self.parts.len();
            if size.is_some() && wanted == 0 {
                return Ok(Some(std::mem::take(&mut self.parts).freeze().slice(PREFIX..)));
            }
            if self.frame.is_empty() {
                return Ok(None);
            }
            self.parts.reserve(wanted);
            self.parts.extend_from_slice(&self.frame.split_to(wanted.min(self.frame.len())));
        }
    }

    /// Size of the message that begins there, with its prefix; nothing if that has not all come.
    fn size_of(&self, bytes: &[u8]) -> Result<Option<usize>, Status> {
        let Some((&[flag, a, b, c, d], _)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
        if flag != 0 {
            return Err(Status::unimplemented("compressed requests are not taken"));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.most {
            let most = self.most;
            return Err(Status::resource_exhausted(format!(
                "a request has {len} bytes, at most {most} are taken (ISTIO_GPRC_MAXRECVMSGSIZE)"
            )));
        }
        Ok(Some(PREFIX + len))
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
    fn a_message_that_came_in_a_frame_is_a_piece_of_it() {
        let frame = Bytes::from_static(b"\0\0\0\0\x03abc\0\0\0\0\x01d");
        let body = http_body_util::Full::new(frame.clone());
        let (mut messages, mut cx) = (Messages::new(body, 10), Context::from_waker(futures::task::noop_waker_ref()));
        for at in [5, 13] {
            let Poll::Ready(Ok(Some(message))) = messages.poll_next(&mut cx) else { panic!("it is there") };
            assert_eq!(message.as_ptr(), frame[at..].as_ptr());
        }
        assert!(matches!(messages.poll_next(&mut cx), Poll::Ready(Ok(None))));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        assert_eq!(messages(&[b"\0\0\0\0\x03ab"], 10), [Err(tonic::Code::InvalidArgument)]);
        assert_eq!(messages(&[b"\0\0\0\0\x0babcdefghijk"], 10), [Err(tonic::Code::ResourceExhausted)]);
        assert_eq!(messages(&[b"\x01\0\0\0\x01a"], 10), [Err(tonic::Code::Unimplemented)]);
    }
}
