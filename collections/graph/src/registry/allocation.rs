//! Virtual addresses for hosts of ServiceEntries that declare none (S10).
//!
//! An address is a position within the prefixes, and the position is the same in both families. Entries are allocated
//! in the order of their age. Each entry takes the first free position of a sequence that is derived from its name.
//! Thus a new entry never moves another entry's address, the order of arrival does not matter, and every replica
//! computes the same addresses. An address in a status is kept, unless an older entry has it.

mod hashed;
mod places;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{Host, ObjectKey, Resolution, ServiceEntry, Text, Timestamp};

use crate::content_names::content_hashes;
use crate::inputs::ObjectCollections;
use crate::options::{AddressPools, GraphOptions};
use places::AllocatedPlaces;

/// Label of a ServiceEntry; with `false`, its hosts get no addresses.
const ALLOCATE: &str = "networking.istio.io/enable-autoallocate-ip";

impl AddressPools {
    /// Number of positions, including the network address.
    fn places(&self) -> u32 {
        let bits = (32 - self.v4.prefix_len()).min(128 - self.v6.prefix_len()).min(24);
        1 << bits
    }

    /// The position of an address, if the address is in one of the pools.
    fn place(&self, address: IpAddr) -> Option<u32> {
        let offset = match address {
            IpAddr::V4(it) if self.v4.contains(&it) => u128::from(u32::from(it) - u32::from(self.v4.network())),
            IpAddr::V6(it) if self.v6.contains(&it) => u128::from(it) - u128::from(self.v6.network()),
            _ => return None,
        };
        u32::try_from(offset).ok().filter(|place| *place < self.places())
    }

    fn addresses(&self, place: u32) -> Vec<Text> {
        let v4 = Ipv4Addr::from(u32::from(self.v4.network()) + place);
        let v6 = Ipv6Addr::from(u128::from(self.v6.network()) + u128::from(place));
        vec![v4.to_string().into(), v6.to_string().into()]
    }
}

/// A host of a ServiceEntry.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct AllocationKey {
    pub(crate) entry: ObjectKey,
    pub(crate) host: Host,
}

/// The addresses that an entry has in the pools, or needs from them.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct AddressClaim {
    created: Timestamp,
    /// The user declared the address, so it is not allocated to another host.
    declared: Vec<IpAddr>,
    /// The addresses in its status, by host in declared order, each host once.
    hosts: Vec<(Host, Vec<Text>)>,
}

/// The present and the required `status.addresses` of a ServiceEntry.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AddressUpdate {
    /// The present addresses: (host, address).
    pub is: Vec<(Host, Text)>,
    /// The required addresses.
    pub wanted: Vec<(Host, Text)>,
}

/// Whether hosts of the entry get addresses.
pub(crate) fn allocates(entry: &ServiceEntry) -> bool {
    let opted_out = entry.meta.labels.get(ALLOCATE).is_some_and(|word| word.eq_ignore_ascii_case("false"));
    entry.addresses.is_empty() && entry.resolution != Resolution::Passthrough && !opted_out
}

/// The addresses of one host in a status, in the order that clients see them: one for each family.
pub(crate) fn in_status(entry: &ServiceEntry, host: &Host) -> Vec<Text> {
    let own = || entry.allocated_addresses.iter().filter(|(of, _)| of == host).map(|(_, address)| address);
    let last = |v6: bool| own().rfind(|address| address.parse::<IpAddr>().is_ok_and(|it| it.is_ipv6() == v6));
    [last(false), last(true)].into_iter().flatten().cloned().collect()
}

/// Addresses of the hosts of ServiceEntries that declare none.
/// Key: entry and host. From: `service_entries`.
/// Changes when: an entry that declares no address is added or removed, or its status changes; for other entries, only
/// when their position becomes free or taken.
/// Size: such hosts. A change visits the hosts that it moves, except when more than half of the positions are needed, or
/// addresses follow from hashes.
/// Rejects: none; when the pools are exhausted, a host gets no address.
pub(crate) fn derive_allocations<'s>(
    objects: &ObjectCollections<'s>,
    one: &Collection<'s, (), ()>,
    options: &GraphOptions,
) -> Collection<'s, AllocationKey, Vec<Text>> {
    let pools = options.address_pools;
    let hashes = !options.allocates_addresses;
    let claims = objects.service_entries.filter_map("address_claims", move |_, entry| match pools {
        _ if hashes => hashed::claim(entry),
        pools => pools.and_then(|_| claim(entry)),
    });
    if let Some(pools) = pools.filter(|_| !hashes) {
        return claims.incremental("address_allocations", move || AllocatedPlaces::new(pools));
    }
    one.derive_many("address_allocations", |deps| {
        let claims = deps.on(&claims);
        move |cx, (), ()| {
            let mut claims: Vec<_> = cx.all(&claims);
            claims.sort_by(|(a, left), (b, right)| (left.created, a).cmp(&(right.created, b)));
            if hashes { hashed::allocate(&claims) } else { Vec::new() }
        }
    })
}

/// The hosts of an entry, each once.
fn distinct_hosts(entry: &ServiceEntry) -> impl Iterator<Item = &Host> {
    let mut known = BTreeSet::new();
    entry.hosts.iter().filter(move |host| known.insert(*host))
}

fn claim(entry: &ServiceEntry) -> Option<AddressClaim> {
    let declared = entry.addresses.iter().filter_map(|text| {
        let block = || text.parse::<IpNet>().ok().filter(|it| it.prefix_len() == it.max_prefix_len());
        text.parse().ok().or_else(|| block().map(|block| block.addr()))
    });
    let hosts = distinct_hosts(entry).filter(|host| allocates(entry) && entry.is_resolved(host));
    let claim = AddressClaim {
        created: entry.meta.created,
        declared: declared.collect(),
        hosts: hosts.map(|host| (host.clone(), in_status(entry, host))).collect(),
    };
    (!claim.declared.is_empty() || !claim.hosts.is_empty()).then_some(claim)
}

/// `claims`, the oldest first.
fn allocate<C: AsRef<AddressClaim>>(
    pools: &AddressPools,
    claims: &[(ObjectKey, C)],
) -> Vec<(AllocationKey, Vec<Text>)> {
    let places = |addresses: &[Text]| -> Vec<u32> {
        addresses.iter().filter_map(|text| text.parse().ok()).filter_map(|address| pools.place(address)).collect()
    };
    let mut taken: HashSet<u32> = HashSet::from([0]);
    taken.extend(claims.iter().flat_map(|(_, claim)| &claim.as_ref().declared).filter_map(|it| pools.place(*it)));
    let mut given: BTreeMap<AllocationKey, Vec<Text>> = BTreeMap::new();
    let mut open = Vec::new();
    for (entry, claim) in claims {
        for (host, has) in &claim.as_ref().hosts {
            let key = AllocationKey { entry: entry.clone(), host: host.clone() };
            let own = places(has);
            // Addresses outside the pools cannot collide.
            if !has.is_empty() && own.iter().all(|place| !taken.contains(place)) {
                taken.extend(own);
                given.insert(key, has.clone());
            } else {
                open.push(key);
            }
        }
    }
    for key in open {
        if let Some(place) = PlaceSequence::new(pools, &key).first_free(&taken) {
            taken.insert(place);
            given.insert(key, pools.addresses(place));
        }
    }
    given.into_iter().collect()
}

/// The positions that a host takes in turn: all, each once.
#[derive(Clone, Copy)]
struct PlaceSequence {
    start: u32,
    /// It is odd. As the number of positions is a power of two, every position is visited.
    step: u32,
    mask: u32,
}

impl PlaceSequence {
    fn new(pools: &AddressPools, key: &AllocationKey) -> Self {
        let hashes = content_hashes(&(&key.entry.namespace, &key.entry.name, &key.host));
        let mask = pools.places() - 1;
        let [start, step] = hashes.map(|hash| u32::try_from(hash & u64::from(mask)).unwrap_or_default());
        Self { start, step: step | 1, mask }
    }

    /// Number of positions.
    fn len(self) -> u32 {
        self.mask + 1
    }

    /// The position at this turn.
    fn at(self, turn: u32) -> u32 {
        self.start.wrapping_add(turn.wrapping_mul(self.step)) & self.mask
    }

    /// The first position that is not taken.
    fn first_free(self, taken: &HashSet<u32>) -> Option<u32> {
        (0..self.len()).map(|turn| self.at(turn)).find(|place| !taken.contains(place))
    }
}

/// ServiceEntries whose status must be written.
/// Key: the entry. From: `service_entries`, `address_allocations`.
/// Changes when: an allocation changes, or the status contains it.
/// Size: entries that are not written yet; none once all are written, and none without pools. Rejects: none.
pub(crate) fn derive_address_updates<'s>(
    objects: &ObjectCollections<'s>,
    allocations: &Collection<'s, AllocationKey, Vec<Text>>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, AddressUpdate> {
    let enabled = options.allocates_addresses && options.address_pools.is_some();
    let cluster = options.cluster.clone();
    objects.service_entries.derive("address_updates", |deps| {
        let allocations = deps.on(allocations);
        move |cx, key, entry| {
            if !enabled || key.cluster != cluster {
                return None;
            }
            let mut wanted = Vec::new();
            let mut known = BTreeSet::new();
            for host in entry.hosts.iter().filter(|_| allocates(entry)).filter(|host| known.insert(*host)) {
                let of = AllocationKey { entry: key.clone(), host: host.clone() };
                let addresses = cx.get(&allocations, &of).map(|found| (*found).clone()).unwrap_or_default();
                wanted.extend(addresses.into_iter().map(|address| (host.clone(), address)));
            }
            let update = AddressUpdate { is: entry.allocated_addresses.clone(), wanted };
            (update.is != update.wanted).then_some(update)
        }
    })
}

#[cfg(test)]
mod tests;
