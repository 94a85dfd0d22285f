//! Reads responses as they arrive, a field at a time: a response has tens of megabytes in a large mesh, and thousands of
//! proxies receive one at once. The content of a large resource is read a few fields at a time.

use anyhow::{Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint};

/// The message that a field belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MessageKind {
    Response,
    /// A large `Resource` of the delta protocol.
    Resource,
    /// The `Any` around the content of a large resource.
    Any,
}

/// The messages that enclose the content of a resource, the outermost first. Each is in field 2 of the one before.
pub(crate) type Nesting = &'static [MessageKind];
pub(crate) const DELTA_NESTING: Nesting = &[MessageKind::Response, MessageKind::Resource, MessageKind::Any];
pub(crate) const SOTW_NESTING: Nesting = &[MessageKind::Response, MessageKind::Any];
/// Resources of any size are read as a whole.
pub(crate) const UNSPLIT_NESTING: Nesting = &[MessageKind::Response];

/// A part of a response.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    /// The field of that number: a text, bytes or a message.
    Field(MessageKind, u32, Bytes),
    /// Some complete fields of the content of a large resource.
    Content(Bytes),
    /// The end of a large resource.
    ResourceEnd,
    /// The end of the response, with its length in bytes.
    ResponseEnd(usize),
}

/// Length of the prefix of a gRPC message: the flag of compression, and the length of the message.
const GRPC_PREFIX_BYTES: usize = 5;
/// Number of the field with the resources of a response, with the `Any` of a `Resource`, and with the content of an
/// `Any`.
const NESTED_FIELD: u32 = 2;
/// A resource of at least this size is large.
const LARGE_RESOURCE_BYTES: usize = 64 << 10;

/// The gRPC messages of a stream.
#[derive(Debug)]
pub(crate) struct Incoming {
    nesting: Nesting,
    /// Received bytes that are not processed yet.
    rest: Bytes,
    /// The first bytes of a part that continues in bytes that have not arrived.
    partial: BytesMut,
    /// The length of the present message.
    length: usize,
    /// The unread bytes of the present message, and of the messages in it that are read a field at a time.
    left: Vec<usize>,
}

/// The next bytes to read.
enum Next {
    /// That many bytes.
    Take(usize),
    /// That many bytes, then a nested message of that length, a field at a time.
    Enter(usize, usize),
}

impl Incoming {
    pub(crate) fn new(nesting: Nesting) -> Self {
        Self { nesting, rest: Bytes::new(), partial: BytesMut::new(), length: 0, left: Vec::new() }
    }

    /// Adds received bytes. All parts of earlier bytes must have been read.
    pub(crate) fn put(&mut self, bytes: Bytes) {
        debug_assert!(self.rest.is_empty());
        self.rest = bytes;
    }

    /// The next part, if all of it was received.
    ///
    /// # Errors
    /// The bytes are not gRPC, are compressed, or are not protobuf.
    pub(crate) fn part(&mut self) -> Result<Option<Part>> {
        loop {
            if let Some(0) = self.left.last() {
                self.left.pop();
                match self.left.len() {
                    0 => return Ok(Some(Part::ResponseEnd(self.length))),
                    1 => return Ok(Some(Part::ResourceEnd)),
                    _ => continue,
                }
            }
            let Some(level) = self.left.len().checked_sub(1) else {
                let Some((mut prefix, _)) = self.piece(|_| Some(Next::Take(GRPC_PREFIX_BYTES)))? else {
                    return Ok(None);
                };
                ensure!(prefix.get_u8() == 0, "the message is compressed, but the client accepts no compression");
                self.length = prefix.get_u32() as usize;
                self.left.push(self.length);
                continue;
            };
            let of = self.nesting.get(level).copied();
            let min_nested_bytes = match level {
                _ if self.nesting == UNSPLIT_NESTING => usize::MAX,
                0 => LARGE_RESOURCE_BYTES,
                _ => 0,
            };
            let next = |bytes: &[u8]| match of {
                Some(_) => next_field(bytes, min_nested_bytes),
                None => next_fields(bytes).map(Next::Take),
            };
            let Some((mut piece, inner)) = self.piece(next)? else { return Ok(None) };
            let Some(left) = self.left[level].checked_sub(piece.len().saturating_add(inner.unwrap_or_default())) else {
                bail!("a field is longer than its message");
            };
            self.left[level] = left;
            if let Some(inner) = inner {
                self.left.push(inner);
                continue;
            }
            let Some(of) = of else { return Ok(Some(Part::Content(piece))) };
            let (number, kind) = decode_key(&mut piece)?;
            if kind == WireType::LengthDelimited {
                decode_varint(&mut piece)?;
                return Ok(Some(Part::Field(of, number, piece)));
            }
        }
    }

    /// The next bytes, if they have arrived, and the length of the nested message to read after them, if any. `next`
    /// reads the number of bytes from the first of them.
    fn piece(&mut self, next: impl Fn(&[u8]) -> Option<Next>) -> Result<Option<(Bytes, Option<usize>)>> {
        let left = self.left.last().copied().unwrap_or(GRPC_PREFIX_BYTES);
        loop {
            let available = if self.partial.is_empty() { &*self.rest } else { &*self.partial };
            let available = &available[..available.len().min(left)];
            // `next` needs more bytes: one more may be enough.
            let (needed, inner) = match next(available) {
                Some(Next::Take(needed)) => (needed, None),
                Some(Next::Enter(needed, inner)) => (needed, Some(inner)),
                None => (available.len() + 1, None),
            };
            if available.len() >= needed {
                let is_whole = self.partial.is_empty();
                let piece = if is_whole { self.rest.split_to(needed) } else { self.partial.split().freeze() };
                return Ok(Some((piece, inner)));
            }
            ensure!(needed <= left, "a field is longer than its message, or is not protobuf");
            if self.rest.is_empty() {
                return Ok(None);
            }
            let missing = needed - self.partial.len();
            self.partial.reserve(missing);
            self.partial.extend_from_slice(&self.rest.split_to(missing.min(self.rest.len())));
        }
    }
}

/// How to read the first field; none if more bytes are needed to tell. Of a nested message of at least `min_nested_bytes`
/// bytes, only the part before its content is read.
fn next_field(bytes: &[u8], min_nested_bytes: usize) -> Option<Next> {
    let (before, length) = field_lengths(bytes)?;
    let is_inner = decode_key(&mut &*bytes).ok()? == (NESTED_FIELD, WireType::LengthDelimited);
    let enters = is_inner && length >= min_nested_bytes;
    Some(if enters { Next::Enter(before, length) } else { Next::Take(before.saturating_add(length)) })
}

/// The length of all complete fields, or else of the first field; none if more bytes are needed to tell.
fn next_fields(bytes: &[u8]) -> Option<usize> {
    let mut whole = 0;
    while let Some((before, length)) = field_lengths(&bytes[whole..]) {
        let field = before.saturating_add(length);
        if bytes.len() - whole < field {
            return Some(if whole == 0 { field } else { whole });
        }
        whole += field;
    }
    (whole > 0).then_some(whole)
}

/// The number of bytes before the value of the first field, and the length of the value; none if more bytes are needed
/// to tell.
fn field_lengths(mut bytes: &[u8]) -> Option<(usize, usize)> {
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
    Some((all - bytes.len(), value))
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;
    use prost::Message as _;
    use sluice_proto::envoy::config::route::v3::{RouteConfiguration, Vhds, VirtualHost};
    use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse, Resource};
    use sluice_proto::google::protobuf::Any;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut out = vec![0];
        out.put_u32(u32::try_from(message.len()).expect("a short message"));
        out.extend_from_slice(message);
        out
    }

    /// The parts of bytes that arrive in chunks of that size.
    fn read(nesting: Nesting, bytes: &[u8], chunk: usize) -> Result<Vec<Part>> {
        let (mut incoming, mut parts) = (Incoming::new(nesting), Vec::new());
        for chunk in bytes.chunks(chunk) {
            incoming.put(Bytes::copy_from_slice(chunk));
            while let Some(part) = incoming.part()? {
                parts.push(part);
            }
        }
        Ok(parts)
    }

    #[test]
    fn parts_do_not_depend_on_how_bytes_are_split() {
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
        let field = |number, value: Bytes| Part::Field(MessageKind::Response, number, value);
        let resources = response.resources.iter().map(|resource| field(2, resource.encode_to_vec().into()));
        let mut expected: Vec<Part> = resources.collect();
        expected.push(field(4, "t".into()));
        expected.push(field(5, "n".into()));
        expected.push(Part::ResponseEnd(messages[0].len()));
        expected.push(Part::ResponseEnd(0));
        expected.push(field(1, "7".into()));
        expected.push(Part::ResponseEnd(messages[2].len()));
        for nesting in [UNSPLIT_NESTING, DELTA_NESTING, SOTW_NESTING] {
            for chunk in [1, 2, 3, 5, 7, 64, 309, 310, bytes.len()] {
                assert_eq!(read(nesting, &bytes, chunk).expect("messages"), expected, "in chunks of {chunk}");
            }
        }
    }

    /// A route table of that many virtual hosts.
    fn table(hosts: usize) -> RouteConfiguration {
        let host = |number| VirtualHost { name: format!("{number}.shop:80"), ..Default::default() };
        let virtual_hosts = (0..hosts).map(host).collect();
        RouteConfiguration { name: "80".into(), virtual_hosts, vhds: Some(Vhds::default()), ..Default::default() }
    }

    #[test]
    fn large_resource_is_read_a_few_fields_at_a_time() {
        let any = |hosts| Any { type_url: "table".into(), value: table(hosts).encode_to_vec() };
        let resource = |name: &str, hosts| Resource {
            name: name.into(),
            version: "1".into(),
            resource: Some(any(hosts)),
            ..Default::default()
        };
        let delta = DeltaDiscoveryResponse {
            resources: vec![resource("small", 2), resource("big", 6000), resource("empty", 0)],
            nonce: "n".into(),
            ..Default::default()
        };
        let sotw =
            DiscoveryResponse { resources: vec![any(2), any(6000), any(0)], nonce: "n".into(), ..Default::default() };
        let (response, text) =
            (MessageKind::Response, |of, number, value: &'static str| Part::Field(of, number, value.into()));
        let small = |resource: Vec<u8>| Part::Field(response, 2, resource.into());
        let cases = [
            (DELTA_NESTING, delta.encode_to_vec(), {
                let of = |name, hosts| small(resource(name, hosts).encode_to_vec());
                let big = [text(MessageKind::Resource, 1, "1"), text(MessageKind::Any, 1, "table")];
                let end =
                    [text(MessageKind::Resource, 3, "big"), Part::ResourceEnd, of("empty", 0), text(response, 5, "n")];
                ([&[of("small", 2)], &big[..]].concat(), end)
            }),
            (SOTW_NESTING, sotw.encode_to_vec(), {
                let of = |hosts| small(any(hosts).encode_to_vec());
                let end = [Part::ResourceEnd, of(0), text(response, 5, "n"), Part::ResponseEnd(sotw.encoded_len())];
                (vec![of(2), text(MessageKind::Any, 1, "table")], end)
            }),
        ];
        for (nesting, message, (begin, end)) in cases {
            let bytes = framed(&message);
            for chunk in [1, 2, 3, 29, 64, 1000, 16 << 10, bytes.len()] {
                let parts = read(nesting, &bytes, chunk).expect("messages");
                let after = parts.iter().rposition(|part| matches!(part, Part::Content(_))).expect("content") + 1;
                assert_eq!(parts[..begin.len()], begin, "in chunks of {chunk}");
                assert_eq!(parts[after..after + end.len()], end, "in chunks of {chunk}");
                let mut content = Vec::new();
                for part in &parts[begin.len()..after] {
                    let Part::Content(fields) = part else { panic!("{part:?} is not content") };
                    RouteConfiguration::decode(fields.clone()).expect("whole fields");
                    assert!(fields.len() <= chunk.max(64), "at most one chunk is buffered");
                    content.extend_from_slice(fields);
                }
                assert_eq!(RouteConfiguration::decode(&*content).expect("a table"), table(6000));
            }
        }
    }

    #[test]
    fn invalid_messages_are_errors() {
        let compressed = [1, 0, 0, 0, 1, 0];
        assert!(read(UNSPLIT_NESTING, &compressed, 6).is_err());
        let longer_than_its_message = framed(&[0x12, 0x7f, 1, 2]);
        let group = framed(&[0x13, 0x7f, 1, 2]);
        for bytes in [&longer_than_its_message, &group] {
            for chunk in [1, bytes.len()] {
                for nesting in [UNSPLIT_NESTING, DELTA_NESTING] {
                    assert!(read(nesting, bytes, chunk).is_err(), "{bytes:?} in chunks of {chunk}");
                }
            }
        }
    }
}
