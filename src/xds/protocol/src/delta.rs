//! Encoding of the delta protocol.

use bytes::{Bytes, BytesMut};
use sluice_model::{MAX_NODE_VALUES, ResourceType, Text};

use crate::decode::{DecodeError, MessageSlice, error};
use crate::name_list::{HeldList, NameList};
use crate::node::merge_node;
use crate::request::{Interest, Request};
use crate::response::Response;
use crate::store::{LayerEntry, ResponseItem};
use crate::version::Version;
use crate::wire::{ANY_VALUE, ResponseBuffer, any_len, field_len, put_any_head, put_chunks, put_field, put_head};

/// The cache of a chunk's encoded rows that this protocol uses.
const ENCODING: usize = 1;

// DeltaDiscoveryRequest.
const INITIAL_RESOURCE_VERSIONS: u64 = 5;
// DeltaDiscoveryResponse.
const SYSTEM_VERSION_INFO: u8 = 1;
const RESOURCES: u8 = 2;
const TYPE_URL: u8 = 4;
const NONCE: u8 = 5;
const REMOVED_RESOURCES: u8 = 6;
// Resource.
const VERSION: u8 = 1;
const RESOURCE: u8 = 2;
const NAME: u8 = 3;
const ALIASES: u8 = 4;

/// Decodes a request. Its names share the bytes.
///
/// # Errors
/// The bytes are not a `DeltaDiscoveryRequest`.
pub(crate) fn decode(bytes: &Bytes) -> Result<Request, DecodeError> {
    let mut request = Request::default();
    let mut node_values_left = MAX_NODE_VALUES;
    let (mut subscribe, mut unsubscribe) = (NameList::default(), NameList::default());
    let mut holds = HeldList::default();
    for field in MessageSlice::new(bytes).fields_of_map(INITIAL_RESOURCE_VERSIONS) {
        let (field, value) = field?;
        match field {
            1 => merge_node(request.node.get_or_insert_default(), &mut node_values_left, value)?,
            2 => request.type_url = value.text()?,
            3 => subscribe.push(value)?,
            4 => unsubscribe.push(value)?,
            INITIAL_RESOURCE_VERSIONS => take_held(value, &mut holds)?,
            6 => request.nonce = value.text()?,
            7 => request.error = Some(error(value)?),
            _ => {}
        }
    }
    request.interest = Interest::Change { subscribe, unsubscribe, holds };
    Ok(request)
}

/// Adds an entry of `initial_resource_versions`. An entry without a name is ignored.
fn take_held(entry: MessageSlice<'_>, holds: &mut HeldList) -> Result<(), DecodeError> {
    let (mut name, mut version) = (None, None);
    for field in entry.fields() {
        match field? {
            (1, text) => name = Some(text),
            (2, text) => version = Version::parse(text.as_str()?),
            _ => {}
        }
    }
    name.map_or(Ok(()), |name| holds.push(name, version))
}

/// Encodes a `DeltaDiscoveryResponse`.
pub(crate) fn encode(response: &Response) -> ResponseBuffer {
    let mut buffer = ResponseBuffer::response();
    buffer.write(|out| {
        put_field(SYSTEM_VERSION_INFO, response.version.as_bytes(), out);
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
                let header =
                    ResourceHeader { name: &resource.name, version: resource.version, aliases: &resource.aliases };
                buffer.write(|out| header.put(&response.type_url, resource.len(), out));
                put_chunks(ANY_VALUE, &resource.chunks, &mut buffer);
            }
        }
    }
    buffer.write(|out| {
        // A resource without a message. Its alias is the name that the client requested.
        for name in &response.unresolved {
            put_head(RESOURCES, field_len(name.len()) * 2, out);
            put_field(NAME, name.as_bytes(), out);
            put_field(ALIASES, name.as_bytes(), out);
        }
        for name in &response.removed {
            put_field(REMOVED_RESOURCES, name.as_bytes(), out);
        }
    });
    buffer
}

fn put_row(kind: Option<ResourceType>, name: &Text, entry: &LayerEntry, out: &mut BytesMut) {
    if let (Some(kind), Some((version, bytes))) = (kind, entry.shared()) {
        ResourceHeader { name, version, aliases: &[] }.put(kind.type_url(), bytes.len(), out);
        put_field(ANY_VALUE, bytes, out);
    }
}

/// A `Resource` without its message.
struct ResourceHeader<'a> {
    name: &'a str,
    version: Version,
    aliases: &'a [Text],
}

impl ResourceHeader<'_> {
    /// Writes the resource as an element of the response, up to the bytes of its message.
    fn put(&self, type_url: &str, value: usize, out: &mut BytesMut) {
        let version = self.version.digits();
        let any = any_len(type_url, value);
        let aliases: usize = self.aliases.iter().map(|alias| field_len(alias.len())).sum();
        put_head(RESOURCES, field_len(version.len()) + field_len(self.name.len()) + aliases + field_len(any), out);
        put_field(VERSION, &version, out);
        put_field(NAME, self.name.as_bytes(), out);
        for alias in self.aliases {
            put_field(ALIASES, alias.as_bytes(), out);
        }
        put_any_head(RESOURCE, type_url, value, out);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Instant;

    use sluice_model::{Layer, ProxyKey, Resource, ResourceKey, Scope, View};

    use crate::name_set::{CallerNames, NameBudget, NameInterner};
    use crate::request::XdsProtocol;
    use crate::session::Session;
    use crate::store::{EpochChanges, Store};

    use super::*;

    /// Subscribes to all clusters, or acknowledges them. Returns addresses and sizes of the chunks that are sent next, and the
    /// nonce.
    fn chunks(store: &Store, session: &mut Session, nonce: String) -> (Vec<(usize, usize)>, String) {
        let (subscribe, unsubscribe, holds) = Default::default();
        let interest = Interest::Change { subscribe, unsubscribe, holds };
        let request =
            Request { type_url: ResourceType::Cluster.type_url().into(), nonce, interest, ..Request::default() };
        session.request(request, Instant::now()).expect("a valid request");
        let snapshot = store.snapshot(session.proxy(), session.kinds().iter());
        let response = session.poll(&snapshot, None, Instant::now()).expect("clusters");
        let chunks = encode(&response).finish().collect::<Vec<_>>();
        (chunks.iter().map(|chunk| (chunk.as_ptr() as usize, chunk.len())).collect(), response.nonce)
    }

    fn total(chunks: &[(usize, usize)]) -> usize {
        chunks.iter().map(|(_, len)| len).sum()
    }

    /// Number of bytes of some chunks that lie within others.
    fn shared(chunks: &[(usize, usize)], with: &[(usize, usize)]) -> usize {
        let within =
            |(at, len): &(usize, usize)| with.iter().any(|(start, size)| at >= start && at + len <= start + size);
        chunks.iter().filter(|chunk| within(chunk)).map(|(_, len)| len).sum()
    }

    #[test]
    fn proxies_share_the_encoded_bytes() {
        let layer = |name: &str| Layer { view: View::Namespace(name.into()), ..Layer::default() };
        let mut changes = EpochChanges::default();
        let mut set = |layer: Layer, name: String, size: usize| {
            let key = ResourceKey { resource_type: ResourceType::Cluster, layer, name: name.into() };
            changes.resources.push((key, Some(Resource::Encoded(vec![b'x'; size].into()))));
        };
        for name in 0..1000 {
            set(Layer::default(), format!("cluster-{name:04}"), 1000);
        }
        set(layer("own"), "cluster-0500".into(), 900);
        let (plain, special) = (ProxyKey("plain".into()), ProxyKey("special".into()));
        let scope = |layers: Vec<Layer>| {
            let layers = BTreeMap::from([(ResourceType::Cluster, layers.into())]);
            Some(Arc::new(Scope { layers, ..Scope::default() }))
        };
        changes.scopes.push((plain.clone(), scope(vec![Layer::default()])));
        changes.scopes.push((special.clone(), scope(vec![layer("own"), Layer::default()])));
        let store = Store::default();
        store.apply(changes, Instant::now());
        let names = CallerNames::new(Arc::new(NameInterner::with_seeds(1, 2)), NameBudget::new(usize::MAX));
        let session = |proxy: &ProxyKey| Session::new(XdsProtocol::Delta, proxy.clone(), 1, names.clone());
        let mut sessions = [&plain, &plain, &special].map(session);
        let [first, second, other] = sessions.each_mut().map(|session| chunks(&store, session, String::new()));
        assert!(total(&first.0) > 1_000_000);
        assert!(total(&second.0) - shared(&second.0, &first.0) < 1000, "everything except the header is shared");
        assert!(
            total(&other.0) - shared(&other.0, &first.0) < 10_000,
            "everything except the header and the overlay is shared"
        );

        let mut changes = EpochChanges::default();
        for name in (0..1000).filter(|name| name % 50 != 0) {
            let name = format!("cluster-{name:04}").into();
            let key = ResourceKey { resource_type: ResourceType::Cluster, layer: Layer::default(), name };
            changes.resources.push((key, Some(Resource::Encoded(vec![b'y'; 1000].into()))));
        }
        store.apply(changes, Instant::now());
        let all = total(&first.0);
        let next = sessions.iter_mut().zip([first, second, other]);
        let next: Vec<_> = next.map(|(session, (_, nonce))| chunks(&store, session, nonce).0).collect();
        let [first, second, other] = &*next else { unreachable!("there are three sessions") };
        assert!(total(first) > all * 9 / 10 && total(first) < all * 99 / 100, "only changed resources are sent");
        // Short ranges at the ends of chunks are copied.
        let copied = |chunks: &[(usize, usize)]| total(chunks) - shared(chunks, first);
        assert!(copied(second) < total(second) / 10, "a large change is shared too: {} copied", copied(second));
        assert!(copied(other) < total(other) / 10, "{} copied", copied(other));
    }
}
