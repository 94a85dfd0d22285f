//! Responses as they come in, a field at a time: one is tens of megabytes in a big mesh, and thousands of proxies are in
//! the middle of theirs at once.

use anyhow::{Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint};

/// A piece of a response.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    /// The field of that number: a text, bytes or a message.
    Field(u32, Bytes),
    /// The response is over; it had so many bytes.
    End(usize),
}

/// Before each message of gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The gRPC messages of a stream.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// What came last, as far as it was not looked at.
    rest: Bytes,
    /// A piece that began before it.
    begun: BytesMut,
    /// Of the present message: its length, and how much of it is left.
    message: Option<(usize, usize)>,
}

impl Incoming {
    /// Takes what came in. All parts of what came before have to be taken by then.
    pub(crate) fn put(&mut self, bytes: Bytes) {
        debug_assert!(self.rest.is_empty());
        self.rest = bytes;
    }

    /// The next part, if all of it has come.
    ///
    /// # Errors
    /// It is not gRPC, is compressed, or is no protobuf.
    pub(crate) fn part(&mut self) -> Result<Option<Part>> {
        loop {
            if let Some((length, 0)) = self.message {
                self.message = None;
                return Ok(Some(Part::End(length)));
            }
            let Some((length, left)) = self.message else {
                let Some(mut prefix) = self.piece(|_| Some(PREFIX))? else { return Ok(None) };
                ensure!(prefix.get_u8() == 0, "a compressed message, which was not asked for");
                let length = prefix.get_u32() as usize;
                self.message = Some((length, length));
                continue;
            };
            let Some(mut field) = self.piece(field_length)? else { return Ok(None) };
            let Some(left) = left.checked_sub(field.len()) else { bail!("a field is longer than its message") };
            self.message = Some((length, left));
            let (number, kind) = decode_key(&mut field)?;
            if kind == WireType::LengthDelimited {
                decode_varint(&mut field)?;
                return Ok(Some(Part::Field(number, field)));
            }
        }
    }

    /// The next bytes, as many as `length` says of their beginning when it can, if they have come.
    fn piece(&mut self, length: impl Fn(&[u8]) -> Option<usize>) -> Result<Option<Bytes>> {
        loop {
            let come = if self.begun.is_empty() { &*self.rest } else { &*self.begun };
            // One more byte may tell how many it takes.
            let wanted = length(come).unwrap_or(come.len() + 1);
            if come.len() >= wanted {
                let is_whole = self.begun.is_empty();
                return Ok(Some(if is_whole { self.rest.split_to(wanted) } else { self.begun.split().freeze() }));
            }
            ensure!(
                self.message.is_none_or(|(_, left)| wanted <= left),
                "a field is longer than its message, or is no protobuf"
            );
            if self.rest.is_empty() {
                return Ok(None);
            }
            let missing = wanted - self.begun.len();
            self.begun.reserve(missing);
            self.begun.extend_from_slice(&self.rest.split_to(missing.min(self.rest.len())));
        }
    }
}

/// The length of the field that begins here, if it can be told yet.
fn field_length(mut bytes: &[u8]) -> Option<usize> {
    let all = bytes.len();
    let (_, kind) = decode_key(&mut bytes).ok()?;
    let value = match kind {
        WireType::Varint => {
            let end = bytes.iter().position(|byte| byte & 0x80 == 0)?;
            end + 1
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => usize::try_from(decode_varint(&mut bytes).ok()?).ok()?,
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    Some(all - bytes.len() + value)
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;
    use prost::Message as _;
    use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse, Resource};

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut out = vec![0];
        out.put_u32(u32::try_from(message.len()).expect("a short message"));
        out.extend_from_slice(message);
        out
    }

    /// What is read of bytes that come in chunks of that size.
    fn read(bytes: &[u8], chunk: usize) -> Result<Vec<Part>> {
        let (mut incoming, mut parts) = (Incoming::default(), Vec::new());
        for chunk in bytes.chunks(chunk) {
            incoming.put(Bytes::copy_from_slice(chunk));
            while let Some(part) = incoming.part()? {
                parts.push(part);
            }
        }
        Ok(parts)
    }

    #[test]
    fn parts_are_the_same_however_the_bytes_come() {
        let resource = |name: &str| Resource { name: name.into(), version: "v".repeat(300), ..Default::default() };
        let response = DeltaDiscoveryResponse {
            resources: vec![resource("a"), resource("b")],
            type_url: "t".into(),
            nonce: "n".into(),
            ..Default::default()
        };
        let with_a_number = DiscoveryResponse { canary: true, version_info: "7".into(), ..Default::default() };
        let messages = [response.encode_to_vec(), Vec::new(), with_a_number.encode_to_vec()];
        let bytes: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
        let resources = response.resources.iter().map(|resource| Part::Field(2, resource.encode_to_vec().into()));
        let mut expected: Vec<Part> = resources.collect();
        expected.push(Part::Field(4, "t".into()));
        expected.push(Part::Field(5, "n".into()));
        expected.push(Part::End(messages[0].len()));
        expected.push(Part::End(0));
        expected.push(Part::Field(1, "7".into()));
        expected.push(Part::End(messages[2].len()));
        for chunk in [1, 2, 3, 5, 7, 64, 309, 310, bytes.len()] {
            assert_eq!(read(&bytes, chunk).expect("messages"), expected, "in chunks of {chunk}");
        }
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let compressed = [1, 0, 0, 0, 1, 0];
        assert!(read(&compressed, 6).is_err());
        let longer_than_its_message = framed(&[0x12, 0x7f, 1, 2]);
        let group = framed(&[0x13, 0x7f, 1, 2]);
        for bytes in [&longer_than_its_message, &group] {
            for chunk in [1, bytes.len()] {
                assert!(read(bytes, chunk).is_err(), "{bytes:?} in chunks of {chunk}");
            }
        }
    }
}
