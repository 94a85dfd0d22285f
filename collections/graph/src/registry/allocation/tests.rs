use std::collections::BTreeMap;

use ipnet::Ipv4Net;
use sluice_engine::Incremental;
use sluice_model::{Host, ObjectKey, ObjectMeta, Resolution, ServiceEntry, Text};

use super::places::AllocatedPlaces;
use super::{AddressClaim, AllocationKey, allocate, claim, in_status};
use crate::options::AddressPools;

pub(super) fn entry(created: i64, hosts: &[&str]) -> ServiceEntry {
    ServiceEntry {
        meta: ObjectMeta { created, ..ObjectMeta::default() },
        hosts: hosts.iter().map(|host| Host::new(host)).collect(),
        resolution: Resolution::DnsLb,
        ..ServiceEntry::default()
    }
}

/// The first address of each host, of entries by name.
fn allocate_to(pools: &AddressPools, entries: &[(&str, ServiceEntry)]) -> BTreeMap<String, Text> {
    let mut claims: Vec<(ObjectKey, Box<AddressClaim>)> = entries
        .iter()
        .filter_map(|(name, entry)| Some((ObjectKey::new("c", "ns", *name), Box::new(claim(entry)?))))
        .collect();
    claims.sort_by(|(a, left), (b, right)| (left.created, a).cmp(&(right.created, b)));
    let all = allocate(pools, &claims).into_iter();
    all.filter_map(|(key, addresses)| Some((key.host.to_string(), addresses.into_iter().next()?))).collect()
}

/// A pool of seven addresses.
fn small() -> AddressPools {
    AddressPools { v4: Ipv4Net::new_assert([10, 0, 0, 0].into(), 29), ..AddressPools::default() }
}

#[test]
fn hosts_get_an_address_of_each_family() {
    let claims = [(ObjectKey::new("c", "ns", "a"), Box::new(claim(&entry(1, &["a.example"])).expect("a claim")))];
    let all = allocate(&AddressPools::default(), &claims);
    let [(_, addresses)] = all.as_slice() else { panic!("{all:?}") };
    let [v4, v6] = addresses.as_slice() else { panic!("{addresses:?}") };
    let v4: std::net::Ipv4Addr = v4.parse().expect("IPv4");
    let v6: std::net::Ipv6Addr = v6.parse().expect("IPv6");
    assert!(AddressPools::default().v4.contains(&v4) && v4.octets() != [240, 240, 0, 0], "{v4}");
    assert_eq!(u128::from(v6) & 0xffff, u128::from(u32::from(v4) & 0xffff), "the same position in both families");
}

#[test]
fn a_new_entry_moves_no_other() {
    let names: Vec<String> = (0..7).map(|number| format!("h{number}.example")).collect();
    let all: Vec<(&str, ServiceEntry)> =
        names.iter().zip(1..).map(|(name, created)| (name.as_str(), entry(created, &[name]))).collect();
    let mut before = BTreeMap::new();
    for count in 1..=all.len() {
        let now = allocate_to(&small(), &all[..count]);
        assert_eq!(now.len(), count, "every address of a pool is used");
        for (host, address) in &before {
            assert_eq!(now.get(host), Some(address), "{host} moved when entry {count} was added");
        }
        before = now;
    }
    let distinct: std::collections::BTreeSet<&Text> = before.values().collect();
    assert_eq!(distinct.len(), 7);
    // The pool has no eighth address.
    let mut more = all.clone();
    more.push(("late", entry(99, &["late.example"])));
    assert_eq!(allocate_to(&small(), &more), before);
}

#[test]
fn an_address_in_a_status_is_kept_unless_an_older_entry_has_it() {
    let written = |created, host: &str, address: &str| ServiceEntry {
        allocated_addresses: vec![(Host::new(host), address.into())],
        ..entry(created, &[host])
    };
    let entries = [("a", written(5, "a.example", "10.0.0.3")), ("b", written(1, "b.example", "10.0.0.3"))];
    let all = allocate_to(&small(), &entries);
    assert_eq!(all["b.example"], *"10.0.0.3");
    assert_ne!(all["a.example"], *"10.0.0.3");
    // An address that a user declares is not allocated, not even to an older entry.
    let declared = ServiceEntry { addresses: vec!["10.0.0.3/32".into()], ..entry(9, &["c.example"]) };
    let all = allocate_to(&small(), &[entries[1].clone(), ("c", declared)]);
    assert_ne!(all["b.example"], *"10.0.0.3");
    // An address outside the pool is kept.
    let all = allocate_to(&small(), &[("d", written(1, "d.example", "192.0.2.1"))]);
    assert_eq!(all["d.example"], *"192.0.2.1");
}

#[test]
fn only_names_that_are_resolved_get_addresses() {
    let none = ServiceEntry { resolution: Resolution::Passthrough, ..entry(1, &["a.example"]) };
    assert!(claim(&none).is_none());
    assert!(claim(&entry(1, &["*.example"])).is_none());
    let dynamic = ServiceEntry { resolution: Resolution::DynamicDns, ..entry(1, &["*.example"]) };
    assert!(claim(&dynamic).is_some());
    let mut opted_out = entry(1, &["a.example"]);
    opted_out.meta.labels.insert("networking.istio.io/enable-autoallocate-ip".into(), "False".into());
    assert!(claim(&opted_out).is_none());
}

#[test]
fn one_address_a_family_counts() {
    let host = Host::new("a.example");
    let addresses = ["2001:2::1", "240.240.0.1", "nonsense", "240.240.0.2"];
    let allocated_addresses = addresses.iter().map(|address| (host.clone(), (*address).into())).collect();
    let entry = ServiceEntry { allocated_addresses, ..entry(1, &["a.example"]) };
    assert_eq!(in_status(&entry, &host), ["240.240.0.2", "2001:2::1"]);
}

/// A reproducible sequence of numbers below `bound`.
fn random(state: &mut u64, bound: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) % bound
}

#[test]
fn changes_lead_to_the_addresses_of_the_set() {
    // Pools of 8, 32 and 128 positions: crowded always, at times, and seldom.
    for (prefix, seed) in [(29, 1), (27, 2), (27, 3), (25, 4), (25, 5)] {
        let pools = AddressPools { v4: Ipv4Net::new_assert([10, 0, 0, 0].into(), prefix), ..AddressPools::default() };
        let mut seed: u64 = 0x9e37_79b9_7f4a_7c15 ^ seed;
        let mut state = AllocatedPlaces::new(pools);
        let mut claims: BTreeMap<ObjectKey, AddressClaim> = BTreeMap::new();
        let mut found: BTreeMap<AllocationKey, Vec<Text>> = BTreeMap::new();
        for round in 0..1500 {
            for _ in 0..=random(&mut seed, 4) {
                let name = random(&mut seed, 24);
                let key = ObjectKey::new("c", "ns", format!("e{name}").as_str());
                let hosts: Vec<String> =
                    (0..=random(&mut seed, 2)).map(|host| format!("h{}.example", name * 2 + host)).collect();
                let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
                let mut new = entry(i64::try_from(random(&mut seed, 5)).unwrap_or_default(), &hosts);
                let mut address = || Text::from(format!("10.0.0.{}", random(&mut seed, 24)));
                match name % 4 {
                    0 => new.addresses = vec![address()],
                    1 => new.allocated_addresses = vec![(Host::new(hosts[0]), address())],
                    _ => {}
                }
                let new = claim(&new).filter(|_| random(&mut seed, 3) > 0);
                let old = match &new {
                    Some(new) => claims.insert(key.clone(), new.clone()),
                    None => claims.remove(&key),
                };
                state.change(&key, old.as_ref(), new.as_ref());
            }
            for (key, addresses) in state.settle() {
                match addresses {
                    Some(addresses) => found.insert(key, addresses),
                    None => found.remove(&key),
                };
            }
            let mut all: Vec<(ObjectKey, Box<AddressClaim>)> =
                claims.iter().map(|(key, claim)| (key.clone(), Box::new(claim.clone()))).collect();
            all.sort_by(|(a, left), (b, right)| (left.created, a).cmp(&(right.created, b)));
            let expected: BTreeMap<AllocationKey, Vec<Text>> = allocate(&pools, &all).into_iter().collect();
            assert_eq!(found, expected, "pool /{prefix}, round {round}");
        }
    }
}
