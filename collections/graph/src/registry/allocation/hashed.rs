//! Addresses by hash of the host, which are not written to a status. The reference allocates them if it does not write
//! statuses (`PILOT_ENABLE_IP_AUTOALLOCATE=false`), for proxies with `ISTIO_META_DNS_AUTO_ALLOCATE`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use sluice_model::{ServiceEntry, Text};

use super::{AddressClaim, AllocationKey, distinct_hosts};

/// Number of addresses.
const PLACES: u32 = 256 * 254;
/// The highest prime below that number.
const PRIME: u32 = 65_011;

/// The hosts of an entry that get addresses: names that clients resolve, whose traffic need not carry the host.
pub(super) fn claim(entry: &ServiceEntry) -> Option<AddressClaim> {
    let open = entry.addresses.is_empty() && entry.resolution != sluice_model::Resolution::Passthrough;
    let hosts = distinct_hosts(entry).filter(|host| open && !host.is_wildcard());
    let hosts: Vec<_> = hosts.map(|host| (host.clone(), Vec::new())).collect();
    (!hosts.is_empty()).then(|| AddressClaim { created: entry.meta.created, declared: Vec::new(), hosts })
}

/// `claims`, the oldest first: of two hosts with one position the older host has it.
pub(super) fn allocate<C: AsRef<AddressClaim>>(
    claims: &[(sluice_model::ObjectKey, C)],
) -> Vec<(AllocationKey, Vec<Text>)> {
    let mut places: BTreeMap<u32, AllocationKey> = BTreeMap::new();
    let keys = claims.iter().flat_map(|(entry, claim)| {
        claim.as_ref().hosts.iter().map(|(host, _)| AllocationKey { entry: entry.clone(), host: host.clone() })
    });
    for key in keys.take(PLACES as usize - 1) {
        let hash = fnv(format!("{}/{}", key.entry.namespace, key.host).as_bytes());
        let step = PRIME - hash % PRIME;
        let further = (1..PLACES).map(|turn| hash.wrapping_add(turn.wrapping_mul(step)) % (PLACES - 1));
        let free = std::iter::once(hash % PLACES).chain(further).find(|place| !places.contains_key(place));
        if let Some(place) = free {
            places.insert(place, key);
        }
    }
    // A host has one address, whatever the number of entries that declare it. Addresses that end in 0 or 255 are
    // skipped.
    let mut skipped = 0;
    let mut known: BTreeMap<(Text, Text), Vec<Text>> = BTreeMap::new();
    let mut given = Vec::new();
    for (place, key) in places {
        let mut number = place + 1 + skipped;
        if number % 255 == 0 {
            number += 1;
            skipped += 1;
        }
        let addresses = match known.entry((key.entry.namespace.clone(), key.host.0.clone())) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => entry.insert(addresses(number / 255, number % 255)).clone(),
        };
        given.push((key, addresses));
    }
    given
}

fn addresses(third: u32, fourth: u32) -> Vec<Text> {
    let v6 = if third == 0 { format!("{fourth:x}") } else { format!("{third:x}{fourth:x}") };
    vec![format!("240.240.{third}.{fourth}").into(), format!("2001:2::f0f0:{v6}").into()]
}

/// FNV-1a of 32 bits.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use sluice_model::{Host, ObjectKey, Resolution};

    use super::*;
    use crate::registry::allocation::tests::entry;

    fn given(entries: &[(&str, ServiceEntry)]) -> Vec<(String, String)> {
        let claims: Vec<(ObjectKey, Box<AddressClaim>)> = entries
            .iter()
            .filter_map(|(name, entry)| Some((ObjectKey::new("c", "ns", *name), Box::new(claim(entry)?))))
            .collect();
        let given = allocate(&claims).into_iter();
        given.map(|(key, addresses)| (key.host.to_string(), addresses[0].to_string())).collect()
    }

    #[test]
    fn hashes_are_fnv_1a() {
        assert_eq!([fnv(b""), fnv(b"a"), fnv(b"foobar")], [0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968]);
    }

    #[test]
    fn addresses_follow_from_names_alone() {
        let one = given(&[("a", entry(1, &["a.example"]))]);
        let place = fnv(b"ns/a.example") % PLACES + 1;
        assert_eq!(one, [("a.example".to_owned(), format!("240.240.{}.{}", place / 255, place % 255))]);
        let several = given(&[("a", entry(1, &["a.example", "b.example"])), ("b", entry(2, &["a.example"]))]);
        assert_eq!(several.len(), 3);
        assert!(several.iter().filter(|(host, _)| host == "a.example").all(|found| *found == one[0]), "{several:?}");
        assert_eq!(addresses(0, 17), [Text::from("240.240.0.17"), "2001:2::f0f0:11".into()]);
        assert_eq!(addresses(16, 2), [Text::from("240.240.16.2"), "2001:2::f0f0:102".into()]);
    }

    #[test]
    fn only_names_that_are_reached_by_address_get_one() {
        let none = |change: &dyn Fn(&mut ServiceEntry)| {
            let mut entry = entry(1, &["a.example"]);
            change(&mut entry);
            assert_eq!(given(&[("a", entry)]), []);
        };
        none(&|entry| entry.addresses = vec!["10.0.0.1".into()]);
        none(&|entry| entry.resolution = Resolution::Passthrough);
        none(&|entry| entry.hosts = vec![Host::new("*.example")]);
    }
}
