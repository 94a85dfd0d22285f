//! The delta protocol on the wire.

use bytes::{Bytes, BytesMut};
use sluice_model::{ResourceType, Text};

use crate::xds::decode::{Piece, error, merge};
use crate::xds::request::{HeldList, Interest, Malformed, NameList, Request, Response};
use crate::xds::sotw::{any_len, put_any_head};
use crate::xds::store::{Entry, Item, put_pieces};
use crate::xds::version::Version;
use crate::xds::wire::{Rope, field_len, put_field, put_head};

/// Which of a chunk's encodings this protocol uses.
const FORM: usize = 1;

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
// google.protobuf.Any.
const ANY_VALUE: u8 = 2;

/// The request in these bytes; names stay pieces of them.
///
/// # Errors
/// When they are no `DeltaDiscoveryRequest`.
pub(crate) fn decode(bytes: &Bytes) -> Result<Request, Malformed> {
    let mut request = Request::default();
    let (mut subscribe, mut unsubscribe) = (NameList::default(), NameList::default());
    let mut holds = HeldList::default();
    for field in Piece::new(bytes).fields() {
        let (field, value) = field?;
        match field {
            1 => merge(request.node.get_or_insert_default(), value)?,
            2 => request.type_url = value.text()?,
            3 => subscribe.push(value)?,
            4 => unsubscribe.push(value)?,
            5 => take_held(value, &mut holds)?,
            6 => request.nonce = value.text()?,
            7 => request.error = Some(error(value)?),
            _ => {}
        }
    }
    request.interest = Interest::Change { subscribe, unsubscribe, holds };
    Ok(request)
}

/// Takes an entry of `initial_resource_versions` in. One without a name is none.
fn take_held(entry: Piece<'_>, holds: &mut HeldList) -> Result<(), Malformed> {
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

/// The encoded `DeltaDiscoveryResponse`.
pub(crate) fn encode(response: &Response) -> Rope {
    let mut rope = Rope::response();
    rope.write(|out| {
        put_field(SYSTEM_VERSION_INFO, response.version.as_bytes(), out);
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
                let head = Head { name: &found.name, version: found.version, aliases: &found.aliases };
                rope.write(|out| head.put(&response.type_url, found.len(), out));
                put_pieces(ANY_VALUE, &found.pieces, &mut rope);
            }
        }
    }
    rope.write(|out| {
        // A resource without a message, known by the name that was asked for.
        for name in &response.unresolved {
            put_head(RESOURCES, field_len(name.len()) * 2, out);
            put_field(NAME, name.as_bytes(), out);
            put_field(ALIASES, name.as_bytes(), out);
        }
        for name in &response.removed {
            put_field(REMOVED_RESOURCES, name.as_bytes(), out);
        }
    });
    rope
}

fn put_row(kind: Option<ResourceType>, name: &Text, entry: &Entry, out: &mut BytesMut) {
    if let (Some(kind), Some((version, bytes))) = (kind, entry.shared()) {
        Head { name, version, aliases: &[] }.put(kind.type_url(), bytes.len(), out);
        put_field(ANY_VALUE, bytes, out);
    }
}

/// A `Resource` without its message.
struct Head<'a> {
    name: &'a str,
    version: Version,
    aliases: &'a [Text],
}

impl Head<'_> {
    /// Writes it as an element of the response, up to the bytes of its message.
    fn put(&self, type_url: &str, value: usize, out: &mut BytesMut) {
        let version = self.version.to_string();
        let any = any_len(type_url, value);
        let aliases: usize = self.aliases.iter().map(|alias| field_len(alias.len())).sum();
        put_head(RESOURCES, field_len(version.len()) + field_len(self.name.len()) + aliases + field_len(any), out);
        put_field(VERSION, version.as_bytes(), out);
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

    use crate::xds::request::Protocol;
    use crate::xds::session::Session;
    use crate::xds::store::{Changes, Store};

    use super::*;

    /// Asks for all clusters, or acknowledges them; gives addresses and sizes of the pieces that are sent then, and the nonce.
    fn pieces(store: &Store, session: &mut Session, nonce: String) -> (Vec<(usize, usize)>, String) {
        let (subscribe, unsubscribe, holds) = Default::default();
        let interest = Interest::Change { subscribe, unsubscribe, holds };
        let request =
            Request { type_url: ResourceType::Cluster.type_url().into(), nonce, interest, ..Request::default() };
        session.request(request, Instant::now()).expect("taken");
        let cut = store.cut(session.proxy(), session.kinds().iter());
        let response = session.poll(&cut, None, Instant::now()).expect("clusters");
        let pieces = encode(&response).finish().collect::<Vec<_>>();
        (pieces.iter().map(|piece| (piece.as_ptr() as usize, piece.len())).collect(), response.nonce)
    }

    fn total(pieces: &[(usize, usize)]) -> usize {
        pieces.iter().map(|(_, len)| len).sum()
    }

    /// How much of some pieces lies within others.
    fn shared(pieces: &[(usize, usize)], with: &[(usize, usize)]) -> usize {
        let within =
            |(at, len): &(usize, usize)| with.iter().any(|(start, size)| at >= start && at + len <= start + size);
        pieces.iter().filter(|piece| within(piece)).map(|(_, len)| len).sum()
    }

    #[test]
    fn proxies_are_sent_the_same_bytes() {
        let layer = |name: &str| Layer { view: View::Namespace(name.into()), ..Layer::default() };
        let mut changes = Changes::default();
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
        store.apply(changes);
        let session = |proxy: &ProxyKey| Session::new(Protocol::Delta, proxy.clone(), 1, Arc::default());
        let mut sessions = [&plain, &plain, &special].map(session);
        let [first, again, other] = sessions.each_mut().map(|session| pieces(&store, session, String::new()));
        assert!(total(&first.0) > 1_000_000);
        assert!(total(&again.0) - shared(&again.0, &first.0) < 1000, "all but the head is shared");
        assert!(total(&other.0) - shared(&other.0, &first.0) < 10_000, "and but what is special");

        let mut changes = Changes::default();
        for name in (0..1000).filter(|name| name % 50 != 0) {
            let name = format!("cluster-{name:04}").into();
            let key = ResourceKey { resource_type: ResourceType::Cluster, layer: Layer::default(), name };
            changes.resources.push((key, Some(Resource::Encoded(vec![b'y'; 1000].into()))));
        }
        store.apply(changes);
        let all = total(&first.0);
        let next = sessions.iter_mut().zip([first, again, other]);
        let next: Vec<_> = next.map(|(session, (_, nonce))| pieces(&store, session, nonce).0).collect();
        let [first, again, other] = &*next else { unreachable!("there are three") };
        assert!(total(first) > all * 9 / 10 && total(first) < all * 99 / 100, "only what changes");
        // Short stretches at the ends of chunks are copied.
        let copied = |pieces: &[(usize, usize)]| total(pieces) - shared(pieces, first);
        assert!(copied(again) < total(again) / 10, "a change of many is shared too: {} copied", copied(again));
        assert!(copied(other) < total(other) / 10, "{} copied", copied(other));
    }
}
