//! The state-of-the-world protocol on the wire.

use bytes::{Bytes, BytesMut};
use sluice_model::{ResourceType, Text};

use crate::xds::decode::{Piece, error, merge};
use crate::xds::request::{Interest, Malformed, NameList, Request, Response};
use crate::xds::store::{Entry, Item, put_pieces};
use crate::xds::wire::{Rope, field_len, put_field, put_head};

/// Which of a chunk's encodings this protocol uses.
const FORM: usize = 0;

// DiscoveryResponse.
const VERSION_INFO: u8 = 1;
const RESOURCES: u8 = 2;
const TYPE_URL: u8 = 4;
const NONCE: u8 = 5;
// google.protobuf.Any.
const ANY_TYPE_URL: u8 = 1;
const ANY_VALUE: u8 = 2;

/// The request in these bytes; names stay pieces of them.
///
/// # Errors
/// When they are no `DiscoveryRequest`.
pub(crate) fn decode(bytes: &Bytes) -> Result<Request, Malformed> {
    let mut request = Request::default();
    let mut names = NameList::default();
    for field in Piece::new(bytes).fields() {
        let (field, value) = field?;
        match field {
            2 => merge(request.node.get_or_insert_default(), value)?,
            3 => names.push(value)?,
            4 => request.type_url = value.text()?,
            5 => request.nonce = value.text()?,
            6 => request.error = Some(error(value)?),
            _ => {}
        }
    }
    request.interest = Interest::Exactly(names);
    Ok(request)
}

/// The encoded `DiscoveryResponse`.
pub(crate) fn encode(response: &Response) -> Rope {
    let mut rope = Rope::response();
    rope.write(|out| {
        put_field(VERSION_INFO, response.version.as_bytes(), out);
        put_field(TYPE_URL, response.type_url.as_bytes(), out);
        put_field(NONCE, response.nonce.as_bytes(), out);
    });
    for item in &response.items {
        match item {
            Item::Stretch { chunk, rows } => {
                let kind = response.kind;
                rope.push(chunk.wire(FORM, rows.clone(), |name, entry, out| put_row(kind, name, entry, out)));
            }
            Item::One(found) => {
                rope.write(|out| put_any_head(RESOURCES, &response.type_url, found.len(), out));
                put_pieces(ANY_VALUE, &found.pieces, &mut rope);
            }
        }
    }
    rope
}

fn put_row(kind: Option<ResourceType>, _: &Text, entry: &Entry, out: &mut BytesMut) {
    if let (Some(kind), Some((_, bytes))) = (kind, entry.shared()) {
        put_any_head(RESOURCES, kind.type_url(), bytes.len(), out);
        put_field(ANY_VALUE, bytes, out);
    }
}

/// Size of an `Any` with a value of that size.
pub(crate) fn any_len(type_url: &str, value: usize) -> usize {
    field_len(type_url.len()) + field_len(value)
}

/// Writes an `Any` as that field, up to its value.
pub(crate) fn put_any_head(field: u8, type_url: &str, value: usize, out: &mut BytesMut) {
    put_head(field, any_len(type_url, value), out);
    put_field(ANY_TYPE_URL, type_url.as_bytes(), out);
}
