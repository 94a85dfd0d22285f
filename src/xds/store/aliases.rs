//! By which names addresses of ambient mode are asked for besides their own (X26).
//!
//! A client without a wildcard asks for `NETWORK/IP`, or for a service and means its workloads as well. The names are read
//! from the encoded messages; what is kept of them are rows of a sorted map, shared from epoch to epoch as resources are.

use std::net::IpAddr;

use sluice_model::{ResourceType, Text};
use sluice_proto::wire::{Record, contents, fields};

use super::entry::Entry;
use crate::xds::run::Run;

/// Rows `ALIAS\0NAME` of the resources known by an alias.
pub(crate) type Aliases = Run<Text>;

// Address.
const WORKLOAD: u32 = 1;
const SERVICE: u32 = 2;

/// What a resource is known by besides its name.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Known {
    /// Its addresses, as `NETWORK/IP` or `NETWORK/IP/LENGTH`.
    pub(crate) addresses: Vec<Text>,
    /// Services it is part of: who asks for one is told of it.
    pub(crate) services: Vec<Text>,
    /// The node it runs on, empty for a service.
    pub(crate) node: Text,
}

impl Known {
    /// What the message says.
    pub(crate) fn of(kind: ResourceType, message: &[u8]) -> Self {
        match kind {
            ResourceType::Workload => workload(message),
            _ => {
                let service = || contents(message, SERVICE).next().map(service);
                contents(message, WORKLOAD).next().map(workload).or_else(service).unwrap_or_default()
            }
        }
    }

    fn of_entry(kind: ResourceType, entry: Option<&Entry>) -> Self {
        entry.and_then(Entry::shared).map(|(_, bytes)| Self::of(kind, bytes)).unwrap_or_default()
    }

    fn rows<'a>(&'a self, name: &'a Text) -> impl Iterator<Item = Text> + 'a {
        let node = Some(on_node(&self.node)).filter(|_| !self.node.is_empty());
        let aliases = self.addresses.iter().chain(&self.services).cloned().chain(node);
        aliases.map(move |alias| format!("{alias}\0{name}").into())
    }
}

/// Whether resources of the type are known by other names.
pub(crate) fn has_aliases(kind: ResourceType) -> bool {
    matches!(kind, ResourceType::Address | ResourceType::Workload)
}

/// The alias of everything that runs on a node. No name that a client may ask for begins like it.
pub(crate) fn on_node(node: &str) -> Text {
    format!("\0{node}").into()
}

/// The resources known by an alias.
pub(crate) fn named<'a>(aliases: &'a Aliases, alias: &str) -> impl Iterator<Item = &'a Text> {
    let prefix = format!("{alias}\0");
    let rows = aliases.from(&prefix);
    rows.take_while(move |(row, _)| row.starts_with(&prefix)).map(|(_, name)| name)
}

/// The rows with those of a resource as it was taken out and as it is put in.
pub(crate) fn change(
    kind: ResourceType,
    name: &Text,
    old: Option<&Entry>,
    new: Option<&Entry>,
) -> Vec<(Text, Option<Text>)> {
    let (old, new) = (Known::of_entry(kind, old), Known::of_entry(kind, new));
    if old == new {
        return Vec::new();
    }
    let mut rows: std::collections::BTreeMap<Text, Option<Text>> = old.rows(name).map(|row| (row, None)).collect();
    rows.extend(new.rows(name).map(|row| (row, Some(name.clone()))));
    rows.into_iter().collect()
}

fn text(record: &Record<'_>) -> Text {
    record.content().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default().into()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

fn workload(message: &[u8]) -> Known {
    const ADDRESSES: u32 = 3;
    const NETWORK: u32 = 4;
    const NODE: u32 = 9;
    const SERVICES: u32 = 22;
    let (mut known, mut network, mut addresses) = (Known::default(), Text::default(), Vec::new());
    for record in fields(message) {
        match record.number {
            ADDRESSES => addresses.extend(record.content().and_then(ip)),
            NETWORK => network = text(&record),
            NODE => known.node = text(&record),
            SERVICES => {
                let key = record.content().and_then(|entry| contents(entry, 1).next());
                known.services.extend(key.and_then(|key| std::str::from_utf8(key).ok()).map(Text::from));
            }
            _ => {}
        }
    }
    known.addresses = addresses.into_iter().map(|address| format!("{network}/{address}").into()).collect();
    known
}

fn service(message: &[u8]) -> Known {
    const ADDRESSES: u32 = 4;
    Known { addresses: contents(message, ADDRESSES).filter_map(service_address).collect(), ..Known::default() }
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
    fn an_alias_stands_for_all_that_have_it_and_for_nothing_that_begins_alike() {
        let aliases = rows(&["/10.0.0.1\0a", "/10.0.0.1\0b", "/10.0.0.10\0c"]);
        assert_eq!(named(&aliases, "/10.0.0.1").map(|name| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(named(&aliases, "/10.0.0.10").count(), 1);
        assert_eq!(named(&aliases, "/10.0.0").count(), 0);
    }
}
