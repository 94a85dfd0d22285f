//! Responses whose resources are not layers of the store: debug pages, and configuration for other control planes.

use bytes::{Bytes, BytesMut};
use sluice_xds_protocol::XdsProtocol;
use sluice_xds_protocol::wire::{ANY_VALUE, ResponseBuffer, any_len, field_len, put_any_head, put_field, put_head};

// Fields that DiscoveryResponse and DeltaDiscoveryResponse have in common.
const VERSION: u8 = 1;
const RESOURCES: u8 = 2;
const TYPE_URL: u8 = 4;
const NONCE: u8 = 5;
// `removed_resources` of DeltaDiscoveryResponse.
const REMOVED: u8 = 6;
// `control_plane` of either, and the identifier in it.
const CONTROL_PLANE: [(XdsProtocol, u8); 2] = [(XdsProtocol::Sotw, 6), (XdsProtocol::Delta, 7)];
const IDENTIFIER: u8 = 1;
// Resource.
const RESOURCE: u8 = 2;
const NAME: u8 = 3;

/// A resource of such a response.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedResource {
    /// Its name.
    pub name: String,
    /// Type of its contents.
    pub type_url: String,
    /// Its contents.
    pub bytes: Bytes,
}

/// A response that is not encoded yet. Its version is its nonce.
pub(crate) struct NamedResponse {
    pub(crate) protocol: XdsProtocol,
    pub(crate) type_url: String,
    pub(crate) nonce: String,
    /// The identifier of the control plane, if the response has one.
    pub(crate) identifier: Option<String>,
    pub(crate) resources: Vec<NamedResource>,
    /// Names of removed resources. Only delta responses have them.
    pub(crate) removed: Vec<String>,
}

impl NamedResponse {
    /// The response in the protocol's encoding.
    pub(crate) fn encode(self) -> ResponseBuffer {
        let mut buffer = ResponseBuffer::response();
        buffer.write(|out| {
            put_field(VERSION, self.nonce.as_bytes(), out);
            put_field(TYPE_URL, self.type_url.as_bytes(), out);
            put_field(NONCE, self.nonce.as_bytes(), out);
            if self.protocol == XdsProtocol::Delta {
                self.removed.iter().for_each(|name| put_field(REMOVED, name.as_bytes(), out));
            }
            let number = CONTROL_PLANE.into_iter().find(|(protocol, _)| *protocol == self.protocol);
            if let (Some((_, number)), Some(identifier)) = (number, &self.identifier) {
                put_head(number, field_len(identifier.len()), out);
                put_field(IDENTIFIER, identifier.as_bytes(), out);
            }
        });
        for resource in self.resources {
            buffer.write(|out| match self.protocol {
                XdsProtocol::Sotw => put_any_head(RESOURCES, &resource.type_url, resource.bytes.len(), out),
                XdsProtocol::Delta => put_resource_head(&resource, out),
            });
            buffer.write(|out| put_head(ANY_VALUE, resource.bytes.len(), out));
            buffer.push(resource.bytes);
        }
        buffer
    }
}

/// Writes a `Resource`, up to the value of its message.
fn put_resource_head(resource: &NamedResource, out: &mut BytesMut) {
    let any = any_len(&resource.type_url, resource.bytes.len());
    put_head(RESOURCES, field_len(resource.name.len()) + field_len(any), out);
    put_field(NAME, resource.name.as_bytes(), out);
    put_any_head(RESOURCE, &resource.type_url, resource.bytes.len(), out);
}
