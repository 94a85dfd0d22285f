//! Aliases of ambient mode's addresses: the names by which clients request them besides the resource name (X26).
//!
//! A client without a wildcard requests `NETWORK/IP`, or a service, which includes its workloads. Aliases are read from the
//! encoded messages and kept as rows of a sorted map, which epochs share as they share resources.

use std::net::IpAddr;

use sluice_model::{ResourceType, Text};
use sluice_proto::wire::{WireField, contents, fields};

use super::entry::LayerEntry;
use crate::chunked_map::ChunkedMap;

/// Rows `ALIAS\0NAME` to resource name.
pub(crate) type Aliases = ChunkedMap<Text>;

// Address.
const WORKLOAD: u32 = 1;
const SERVICE: u32 = 2;

/// The aliases of a resource.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct ResourceAliases {
    /// Its addresses, as `NETWORK/IP` or `NETWORK/IP/LENGTH`.
    pub(crate) addresses: Vec<Text>,
    /// Services that it is part of: a subscription to one includes it.
    pub(crate) services: Vec<Text>,
    /// The node it runs on, empty for a service.
    pub(crate) node: Text,
}

impl ResourceAliases {
    /// The aliases in an encoded resource of this type.
    pub(crate) fn of(kind: ResourceType, message: &[u8]) -> Self {
        match kind {
            ResourceType::Workload => workload(message),
            _ => {
                let service = || contents(message, SERVICE).next().map(service);
                contents(message, WORKLOAD).next().map(workload).or_else(service).unwrap_or_default()
            }
        }
    }

    fn of_entry(kind: ResourceType, entry: Option<&LayerEntry>) -> Self {
        entry.and_then(LayerEntry::shared).map(|(_, bytes)| Self::of(kind, bytes)).unwrap_or_default()
    }

    fn rows<'a>(&'a self, name: &'a Text) -> impl Iterator<Item = Text> + 'a {
        let node = Some(on_node(&self.node)).filter(|_| !self.node.is_empty());
        let aliases = self.addresses.iter().chain(&self.services).cloned().chain(node);
        aliases.map(move |alias| format!("{alias}\0{name}").into())
    }
}

/// Whether resources of the type have aliases.
pub(crate) fn has_aliases(kind: ResourceType) -> bool {
    matches!(kind, ResourceType::Address | ResourceType::Workload)
}

/// The alias of all workloads on a node. No name that a client may request begins with NUL.
pub(crate) fn on_node(node: &str) -> Text {
    format!("\0{node}").into()
}

/// The names of the resources with this alias.
pub(crate) fn named<'a>(aliases: &'a Aliases, alias: &str) -> impl Iterator<Item = &'a Text> {
    let prefix = format!("{alias}\0");
    let rows = aliases.from(&prefix);
    rows.take_while(move |(row, _)| row.starts_with(&prefix)).map(|(_, name)| name)
}

/// The changes of rows when the entry of a resource changes from `old` to `new`.
pub(crate) fn change(
    kind: ResourceType,
    name: &Text,
    old: Option<&LayerEntry>,
    new: Option<&LayerEntry>,
) -> Vec<(Text, Option<Text>)> {
    let (old, new) = (ResourceAliases::of_entry(kind, old), ResourceAliases::of_entry(kind, new));
    if old == new {
        return Vec::new();
    }
    let mut rows: std::collections::BTreeMap<Text, Option<Text>> = old.rows(name).map(|row| (row, None)).collect();
    rows.extend(new.rows(name).map(|row| (row, Some(name.clone()))));
    rows.into_iter().collect()
}

fn text(record: &WireField<'_>) -> Text {
    record.content().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default().into()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

fn workload(message: &[u8]) -> ResourceAliases {
    const ADDRESSES: u32 = 3;
    const NETWORK: u32 = 4;
    const NODE: u32 = 9;
    const SERVICES: u32 = 22;
    let (mut aliases, mut network, mut addresses) = (ResourceAliases::default(), Text::default(), Vec::new());
    for record in fields(message) {
        match record.number {
            ADDRESSES => addresses.extend(record.content().and_then(ip)),
            NETWORK => network = text(&record),
            NODE => aliases.node = text(&record),
            SERVICES => {
                let key = record.content().and_then(|entry| contents(entry, 1).next());
                aliases.services.extend(key.and_then(|key| std::str::from_utf8(key).ok()).map(Text::from));
            }
            _ => {}
        }
    }
    aliases.addresses = addresses.into_iter().map(|address| format!("{network}/{address}").into()).collect();
    aliases
}

fn service(message: &[u8]) -> ResourceAliases {
    const ADDRESSES: u32 = 4;
    ResourceAliases {
        addresses: contents(message, ADDRESSES).filter_map(service_address).collect(),
        ..ResourceAliases::default()
    }
}

fn service_address(message: &[u8]) -> Option<Text> {
    const NETWORK: u32 = 1;
    const ADDRESS: u32 = 2;
    const LENGTH: u32 = 3;
    let (mut network, mut address, mut length) = (Text::default(), None, None);
    for record in fields(message) {
        match record.number {
            NETWORK => network = text(&record),
            ADDRESS => address = record.content().and_then(ip),
            LENGTH => length = record.varint(),
            _ => {}
        }
    }
    let address = address?;
    Some(match length {
        Some(length) => format!("{network}/{address}/{length}").into(),
        None => format!("{network}/{address}").into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(list: &[&str]) -> Aliases {
        let row = |text: &&str| (Text::from(*text), text.split_once('\0').map(|(_, name)| name.into()));
        Aliases::default().apply(list.iter().map(row).collect())
    }

    #[test]
    fn alias_matches_exactly_and_not_by_prefix() {
        let aliases = rows(&["/10.0.0.1\0a", "/10.0.0.1\0b", "/10.0.0.10\0c"]);
        assert_eq!(named(&aliases, "/10.0.0.1").map(|name| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(named(&aliases, "/10.0.0.10").count(), 1);
        assert_eq!(named(&aliases, "/10.0.0").count(), 0);
    }
}
