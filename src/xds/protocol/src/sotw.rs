//! Encoding of the state-of-the-world protocol.

use bytes::{Bytes, BytesMut};
use sluice_model::{MAX_NODE_VALUES, ResourceType, Text};

use crate::decode::{DecodeError, MessageSlice, error};
use crate::name_list::NameList;
use crate::node::merge_node;
use crate::request::{Interest, Request};
use crate::response::Response;
use crate::store::{LayerEntry, ResponseItem};
use crate::wire::{ANY_VALUE, ResponseBuffer, put_any_head, put_chunks, put_field};

/// The cache of a chunk's encoded rows that this protocol uses.
const ENCODING: usize = 0;

// DiscoveryResponse.
const VERSION_INFO: u8 = 1;
const RESOURCES: u8 = 2;
const TYPE_URL: u8 = 4;
const NONCE: u8 = 5;

/// Decodes a request. Its names share the bytes.
///
/// # Errors
/// The bytes are not a `DiscoveryRequest`.
pub(crate) fn decode(bytes: &Bytes) -> Result<Request, DecodeError> {
    let mut request = Request::default();
    let mut node_values_left = MAX_NODE_VALUES;
    let mut names = NameList::default();
    for field in MessageSlice::new(bytes).fields() {
        let (field, value) = field?;
        match field {
            2 => merge_node(request.node.get_or_insert_default(), &mut node_values_left, value)?,
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

/// Encodes a `DiscoveryResponse`.
pub(crate) fn encode(response: &Response) -> ResponseBuffer {
    let mut buffer = ResponseBuffer::response();
    buffer.write(|out| {
        put_field(VERSION_INFO, response.version.as_bytes(), out);
        put_field(TYPE_URL, response.type_url.as_bytes(), out);
        put_field(NONCE, response.nonce.as_bytes(), out);
    });
    for item in &response.items {
        match item {
            ResponseItem::Range { chunk, rows } => {
                let kind = response.kind;
                buffer.push(chunk.encoded(ENCODING, rows.clone(), |name, entry, out| put_row(kind, name, entry, out)));
            }
            ResponseItem::Single(resource) => {
                buffer.write(|out| put_any_head(RESOURCES, &response.type_url, resource.len(), out));
                put_chunks(ANY_VALUE, &resource.chunks, &mut buffer);
            }
        }
    }
    buffer
}

fn put_row(kind: Option<ResourceType>, _: &Text, entry: &LayerEntry, out: &mut BytesMut) {
    if let (Some(kind), Some((_, bytes))) = (kind, entry.shared()) {
        put_any_head(RESOURCES, kind.type_url(), bytes.len(), out);
        put_field(ANY_VALUE, bytes, out);
    }
}
